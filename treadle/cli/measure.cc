#include "treadle/cli/measure.h"

#include "treadle/cli/gathering.h"
#include "treadle/core/group/group.h"
#include "treadle/core/group/group_core.h"

namespace treadle::cli {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(60);

}  // namespace

group::Surroundings measuredIn(const Launch& launch) {
  Gathering gathering("plan", launch, {}, kTimeout);
  std::vector<std::string> names;
  for (const WorkerInfo& worker : gathering.worker().peers()) names.push_back(worker.name);
  // As any group of all workers has them.
  group::Surroundings surroundings = ProcessGroup::make(gathering.worker(), names).core().surroundings();
  gathering.end();
  return surroundings;
}

}  // namespace treadle::cli
