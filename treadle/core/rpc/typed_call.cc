#include "treadle/core/rpc/typed_call.h"

namespace treadle::rpc {

const Functions::Entry& entryOf(const Engine& engine, const void* key, std::string (*what)()) {
  const Functions::Entry* entry = engine.functions().firstOf(key);
  if (entry == nullptr)
    raise(failedPrecondition("this worker has no name for " + what() +
                             "; give it one with add or declare in JoinOptions::functions"));
  return *entry;
}

// Once for all that is read in a row.
void readUntilReady(const io::FutureCore& future, link::Connection& connection, Interceptor* interceptor,
                    TimePoint deadline) {
  auto scope = interceptor != nullptr ? interceptor->onReading() : nullptr;
  connection.readUntil([&future] { return future.ready(); }, deadline);
}

}  // namespace treadle::rpc
