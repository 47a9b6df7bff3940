#include "examples/common/group_of_all.h"

#include <string>
#include <vector>

namespace example {

treadle::ProcessGroup groupOfAll(treadle::Worker& worker) {
  std::vector<std::string> names;
  for (const treadle::WorkerInfo& peer : worker.peers()) names.push_back(peer.name);
  return treadle::ProcessGroup::make(worker, names);
}

}  // namespace example
