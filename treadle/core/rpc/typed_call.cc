#include "treadle/core/rpc/typed_call.h"

namespace treadle::rpc {

const Functions::Entry& entryOf(const Engine& engine, const void* key, std::string (*what)()) {
  const Functions::Entry* entry = engine.functions().firstOf(key);
  if (entry == nullptr)
    raise(failedPrecondition("this worker has no name for " + what() +
                             "; give it one with add or declare in JoinOptions::functions"));
  return *entry;
}

OutgoingCall outgoingCall(int rank, std::string_view function, std::string_view signature, const CallOptions& options,
                          UniqueFunction<void(Encoder&)> encode) {
  OutgoingCall call;
  call.rank = rank;
  call.function = function;
  call.signature = signature;
  call.options = options;
  call.encode = std::move(encode);
  return call;
}

OutgoingCall fetchCall(int owner, std::string_view what, HandlePtr target, const CallOptions& options) {
  OutgoingCall call = outgoingCall(owner, what, "", options, {});
  call.fetch = true;
  call.target = std::move(target);
  return call;
}

// One scope for all that is read in a row. The interceptor goes with the engine, which completes its calls before: then
// there is nothing left to read.
void readUntilReady(const io::FutureCore& future, link::Connection& connection,
                    const std::weak_ptr<Interceptor>& interceptor, TimePoint deadline) {
  const std::shared_ptr<Interceptor> alive = interceptor.lock();
  auto scope = alive ? alive->onReading() : nullptr;
  connection.readUntil([&future] { return future.ready(); }, deadline);
}

}  // namespace treadle::rpc
