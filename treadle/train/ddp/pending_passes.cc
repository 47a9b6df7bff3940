#include "treadle/train/ddp/pending_passes.h"

#include <cmath>
#include <utility>

namespace treadle::ddp {

PendingPasses::PendingPasses(const std::vector<at::Tensor>& parameters, Divisor divisor)
    : parameters_(parameters), divisor_(divisor) {}

Status PendingPasses::setWeight(double weight) {
  if (divisor_ != Divisor::kWeights)
    return failedPrecondition("setWeight has no meaning unless DdpOptions::divisor is Divisor::kWeights");
  if (!(weight >= 0) || !std::isfinite(weight))
    return invalidArgument("setWeight was given " + std::to_string(weight) +
                           ": weights are finite and not negative, as a number of samples is");
  nextWeight_ = weight;
  return {};
}

void PendingPasses::begin(const autograd::Pass* distributed) {
  std::optional<int64_t> context;
  if (distributed != nullptr) context = distributed->contextId();
  if (std::exchange(context_, context) != context) {
    forget();
  } else {
    forgetCleared();
  }
  isCounted_ = false;
}

Status PendingPasses::addBatch() {
  if (std::exchange(isCounted_, true)) return {};
  if (divisor_ == Divisor::kWeights && !nextWeight_)
    return failedPrecondition("DdpOptions::divisor is Divisor::kWeights, and setWeight was not called for this pass");
  ++count_;
  weight_ += std::exchange(nextWeight_, std::nullopt).value_or(0);
  return {};
}

Status PendingPasses::checkMayAverage() const {
  if (divisor_ == Divisor::kWorldSize || !holdsAverages_) return {};
  return failedPrecondition(std::string("the gradients of an earlier averaged pass are still there, and the divisor ") +
                            nameOf(divisor_) + " would count them once for each rank: call zero_grad(), which makes " +
                            ".grad undefined, or make a new context, after each averaged pass");
}

void PendingPasses::averaged() {
  forget();
  holdsAverages_ = true;
}

void PendingPasses::end() {
  if (context_) return;
  seen_.clear();
  for (const at::Tensor& parameter : parameters_) seen_.emplace_back(parameter.grad().getIntrusivePtr());
}

// In a local pass gradients are added in place: what was cleared is another tensor now, or none. Those of a context
// cannot be cleared.
void PendingPasses::forgetCleared() {
  if (context_) return;
  for (size_t i = 0; i < seen_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (gradient.defined() && gradient.unsafeGetTensorImpl() == seen_[i]._unsafe_get_target()) return;
  }
  forget();
}

void PendingPasses::forget() {
  count_ = 0;
  weight_ = 0;
  holdsAverages_ = false;
}

}  // namespace treadle::ddp
