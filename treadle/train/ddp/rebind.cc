// DistributedDataParallel::rebind.

#include <algorithm>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/train/ddp/distributed_data_parallel.h"
#include "treadle/train/ddp/of_all_ranks.h"
#include "treadle/train/ddp/reducer.h"

namespace treadle::ddp {

void Reducer::checkRebind() {
  MutexLock lock(mutex_);
  checkNoPass("rebind");
  if (suspended_ > 0 || join_.isOpen())
    raise(failedPrecondition(
        "rebind cannot be called while a guard of noSync() or join() lives: leave its scope before"));
}

uint64_t Reducer::averages() {
  MutexLock lock(mutex_);
  return earlierAverages_ + recorder_.averagedPasses();
}

void Reducer::setEarlierAverages(uint64_t count) {
  MutexLock lock(mutex_);
  earlierAverages_ = count;
}

// What can fail on one rank alone comes before anything changes there. The values come last: from then on the old group
// is of no use for this rank. A hook may have learnt from the new one how many ranks there are.
bool rebind(std::shared_ptr<Reducer>& reducer, const torch::nn::Module& module, const DdpOptions& options,
            const ProcessGroup& before, const ProcessGroup& group) {
  reducer->checkRebind();
  try {
    compareReplicas(module, group, options, /*isRebind=*/true);
    std::shared_ptr<Reducer> next = makeReducer(module, group, options, reducer->claim());
    const std::vector<uint64_t> averages = ofAllRanks(group, reducer->averages());
    if (options.hook) options.hook->agree(group);
    receiveValues(module, group);
    const auto [fewest, most] = std::minmax_element(averages.begin(), averages.end());
    next->setEarlierAverages(*most);
    reducer = std::move(next);
    return *fewest == *most;
  } catch (...) {
    bindHook(options, module, before);
    throw;
  }
}

}  // namespace treadle::ddp
