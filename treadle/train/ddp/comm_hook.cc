#include "treadle/train/ddp/comm_hook.h"

#include <utility>

#include "treadle/core/base/error.h"

namespace treadle {

void CommHook::bind(const ProcessGroup& /*group*/, const std::vector<HookParameter>& /*parameters*/) {}

void CommHook::passAveraged(const std::vector<bool>& /*isUsed*/) {}

// Nothing is left to do when the average has come.
Reduction AverageHook::reduce(Exchange& exchange, const ddp::Bucket& bucket) {
  at::Tensor average = bucket.flat;
  exchange.add(allReduce(exchange.group(), average, ReduceOp::kAverage));
  co_return;
}

HookClaim::HookClaim(std::shared_ptr<CommHook> hook) : hook_(std::move(hook)) {
  if (hook_ && std::exchange(hook_->isClaimed_, true))
    raise(failedPrecondition(
        "DdpOptions::hook is already that of another DistributedDataParallel: give each a hook of its own"));
}

HookClaim::~HookClaim() {
  if (hook_) hook_->isClaimed_ = false;
}

}  // namespace treadle
