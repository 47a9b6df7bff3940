#include "treadle/core/base/error.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <typeinfo>

namespace treadle {

void raise(Status status) {
  if (!status.remoteType().empty()) throw RemoteError(std::move(status));
  switch (status.code()) {
    case Code::kCancelled: throw CancelledError(std::move(status));
    case Code::kDeadlineExceeded: throw TimeoutError(std::move(status));
    case Code::kPeerLost: throw PeerLostError(std::move(status));
    case Code::kResourceExhausted: throw ResourceError(std::move(status));
    case Code::kInvalidArgument: throw ArgumentError(std::move(status));
    case Code::kFailedPrecondition: throw StateError(std::move(status));
    case Code::kNotFound: throw NotFoundError(std::move(status));
    case Code::kDataLoss: throw DataError(std::move(status));
    case Code::kUnauthenticated: throw AuthError(std::move(status));
    case Code::kOk:
    case Code::kInternal: break;
  }
  throw InternalError(std::move(status));
}

Status statusOfCurrentException(const std::string& function) {
  try {
    throw;
  } catch (const Error& error) {
    // Kept as it is: whoever was lost further away keeps their name on the way back through several calls.
    return error.status();
  } catch (const std::exception& error) {
    return internalError(error.what()).withFunction(function).withRemoteType(demangled(typeid(error).name()));
  } catch (...) {
    return internalError("an exception that is not a std::exception").withFunction(function).withRemoteType("unknown");
  }
}

std::string demangled(const char* name) {
  int failed = 0;
  std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &failed), &std::free);
  return failed == 0 && text ? text.get() : name;
}

}  // namespace treadle
