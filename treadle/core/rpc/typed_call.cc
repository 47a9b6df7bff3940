#include "treadle/core/rpc/typed_call.h"

namespace treadle::rpc {

const Functions::Entry& entryOf(const Engine& engine, const void* key, std::string (*what)()) {
  const Functions::Entry* entry = engine.functions().firstOf(key);
  if (entry == nullptr)
    raise(failedPrecondition("this worker has no name for " + what() +
                             "; give it one with add or declare in JoinOptions::functions"));
  return *entry;
}

}  // namespace treadle::rpc
