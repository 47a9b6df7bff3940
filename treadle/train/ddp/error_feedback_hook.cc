#include "treadle/train/ddp/error_feedback_hook.h"

#include <cmath>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/tensor/optim/unscale.h"

namespace treadle {

void ErrorFeedbackHook::setLossScale(double scale) {
  if (!(scale > 0) || !std::isfinite(scale))
    raise(invalidArgument("setLossScale was given " + std::to_string(scale) + ": a loss scale is positive and finite"));
  lossScale_ = scale;
}

OptimizerState ErrorFeedbackHook::state() const {
  if (!isBound_) return loaded_;
  OptimizerState state;
  memory_.save(state, prefix_ + "error.");
  saveRest(state, prefix_);
  return state;
}

void ErrorFeedbackHook::load(const OptimizerState& state) {
  if (isClaimed())
    raise(failedPrecondition("load the state of a hook before the DistributedDataParallel is constructed that has it"));
  isBound_ = false;
  loaded_ = state;
}

// The state so far is taken over by names, also where the hook served another DistributedDataParallel before.
void ErrorFeedbackHook::bind(const ProcessGroup& group, const std::vector<HookParameter>& parameters) {
  loaded_ = state();
  isBound_ = false;
  OptimizerState left = loaded_;
  memory_ = ddp::ErrorMemory(parameters);
  reset(group, parameters);
  if (!left.empty()) {
    memory_.load(left, prefix_ + "error.");
    loadRest(left, prefix_);
    optim::refuseRest(left);
  }
  isBound_ = true;
  loaded_.clear();
}

void ErrorFeedbackHook::beginPass() {
  isFinite_ = true;
  memory_.beginPass(lossScale_);
  beginRest();
}

// What this rank holds back belongs to batches of its own, and the passes are those of the other ranks.
void ErrorFeedbackHook::beginShadowPass() {
  beginPass();
  memory_.freeze();
}

void ErrorFeedbackHook::passAveraged(const std::vector<bool>& isUsed) {
  if (!isFinite_) return;
  memory_.commit(isUsed);
  commitRest(isUsed);
}

void ErrorFeedbackHook::addErrors(const ddp::Bucket& bucket, const std::vector<size_t>& positions) {
  for (const size_t position : positions) {
    const size_t parameter = bucket.parameters[position];
    if (!memory_.has(parameter)) continue;
    bucket.views[position].copy_(memory_.withError(parameter, bucket.views[position]));
    memory_.hold(parameter, {});
  }
}

void ErrorFeedbackHook::noteAverage(const at::Tensor& average) {
  if (at::isFloatingType(average.scalar_type()) && !optim::isFinite(average)) isFinite_ = false;
}

}  // namespace treadle
