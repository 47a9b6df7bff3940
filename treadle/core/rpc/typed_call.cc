#include "treadle/core/rpc/typed_call.h"

namespace treadle::rpc {

const Functions::Entry& entryOf(const Engine& engine, const void* key, std::string (*what)()) {
  std::vector<const Functions::Entry*> entries = engine.functions().entriesOf(key);
  if (entries.empty())
    raise(failedPrecondition("this worker has no name for " + what() +
                             "; give it one with add or declare in JoinOptions::functions"));
  return *entries.front();
}

}  // namespace treadle::rpc
