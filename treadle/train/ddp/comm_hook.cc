#include "treadle/train/ddp/comm_hook.h"

#include <utility>

#include "treadle/core/base/error.h"

namespace treadle {

void CommHook::bind(const ProcessGroup& /*group*/, const std::vector<HookParameter>& /*parameters*/) {}

void CommHook::agree(const ProcessGroup& /*group*/) {}

void CommHook::passAveraged(const std::vector<bool>& /*isUsed*/) {}

// Nothing is left to do when the average has come.
Reduction AverageHook::reduce(Exchange& exchange, const ddp::Bucket& bucket) {
  at::Tensor average = bucket.flat;
  exchange.add(allReduce(exchange.group(), average, ReduceOp::kAverage));
  co_return;
}

HookClaim::HookClaim(std::shared_ptr<CommHook> hook) {
  if (!hook) return;
  if (std::exchange(hook->isClaimed_, true))
    raise(failedPrecondition(
        "DdpOptions::hook is already that of another DistributedDataParallel: give each a hook of its own"));
  claimed_.reset(hook.get(), [hook](CommHook* claimed) { claimed->isClaimed_ = false; });
}

}  // namespace treadle
