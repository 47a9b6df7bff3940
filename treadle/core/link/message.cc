#include "treadle/core/link/message.h"

namespace treadle::link {

std::string describe(const WorkerInfo& worker) {
  if (worker.name.empty()) return "the worker of rank " + std::to_string(worker.rank);
  return "worker '" + worker.name + "' (rank " + std::to_string(worker.rank) + ")";
}

}  // namespace treadle::link
