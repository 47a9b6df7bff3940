#include "treadle/train/ddp/pending_passes.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace treadle::ddp {
namespace {

const c10::TensorImpl* noGradient() { return c10::UndefinedTensorImpl::singleton(); }

}  // namespace

// Room for all gradients from the start: the end of a pass must not fail.
PendingPasses::PendingPasses(const std::vector<at::Tensor>& parameters, Divisor divisor)
    : parameters_(parameters), divisor_(divisor) {
  seen_.reserve(parameters_.size());
}

Status PendingPasses::setWeight(double weight) {
  if (divisor_ != Divisor::kWeights)
    return failedPrecondition("setWeight has no meaning unless DdpOptions::divisor is Divisor::kWeights");
  if (!(weight >= 0) || !std::isfinite(weight))
    return invalidArgument("setWeight was given " + std::to_string(weight) +
                           ": weights are finite and not negative, as a number of samples is");
  nextWeight_ = weight;
  return {};
}

// The sum of a sparse and a dense gradient is a tensor that autograd makes.
void PendingPasses::beforeGradient(size_t parameter, const at::Tensor& gradient) {
  turned_.reset();
  const at::Tensor& grad = parameters_[parameter].grad();
  if (grad.defined() && grad.is_sparse() && gradient.defined() && !gradient.is_sparse() && isAsSeen(parameter))
    turned_ = parameter;
}

// In a context, a later pass of the same context adds to what is there, and nothing else does.
void PendingPasses::begin(const autograd::Pass* distributed, std::optional<size_t> arrived) {
  std::optional<int64_t> context;
  if (distributed != nullptr) context = distributed->contextId();
  const bool isElsewhere = std::exchange(context_, context) != context;
  if (turned_ != arrived) turned_.reset();  // of a pass that has come to nothing
  isCounted_ = false;
  if (isElsewhere) forget();
  if (distributed == nullptr) {
    forgetCleared();
    holdsOthers_ = holdsOthers_ || wereChanged(arrived);
    turned_.reset();
  } else if (isElsewhere) {
    holdsOthers_ = std::any_of(parameters_.begin(), parameters_.end(), [&](const at::Tensor& parameter) {
      return distributed->gradients().gradient(parameter).defined();
    });
  }
}

Status PendingPasses::addBatch() {
  if (isCounted_) return {};
  if (divisor_ == Divisor::kWeights && !nextWeight_) {
    holdsOthers_ = true;  // the gradients of this pass
    return failedPrecondition("DdpOptions::divisor is Divisor::kWeights, and setWeight was not called for this pass");
  }
  isCounted_ = true;
  ++count_;
  weight_ += std::exchange(nextWeight_, std::nullopt).value_or(0);
  return {};
}

Status PendingPasses::checkMayAverage(bool isInJoin) const {
  const bool countsAll = divisor_ == Divisor::kWorldSize;
  if (!holdsOthers_ || (countsAll && !isInJoin)) return {};
  return failedPrecondition(
      std::string("gradients are there that no pass since the last average has made, and ") +
      (countsAll ? "join()" : std::string("the divisor ") + nameOf(divisor_)) +
      " would count them wrong: call zero_grad(), which makes .grad undefined, or make a new context, after each "
      "averaged pass and after gradients were replaced");
}

void PendingPasses::averaged() {
  count_ = 0;
  weight_ = 0;
  holdsOthers_ = true;
}

void PendingPasses::end(bool hasFailed) {
  if (context_) {
    if (hasFailed) averaged();  // no pass counts for what is left there either
    return;
  }
  turned_.reset();
  seen_.clear();
  for (const at::Tensor& parameter : parameters_) seen_.emplace_back(parameter.grad().getIntrusivePtr());
}

const c10::TensorImpl* PendingPasses::seen(size_t parameter) const {
  return seen_.empty() ? noGradient() : seen_[parameter]._unsafe_get_target();
}

bool PendingPasses::isAsSeen(size_t parameter) const {
  return parameter == turned_ || parameters_[parameter].grad().unsafeGetTensorImpl() == seen(parameter);
}

// In a local pass gradients are added in place: what was cleared is another tensor now, or none. Those of a context
// cannot be cleared.
void PendingPasses::forgetCleared() {
  if (context_) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].grad().defined() && isAsSeen(i)) return;
  }
  forget();
}

// Whether one that the local pass has not come to is another tensor than at the end of the last pass, or was cleared
// alone. The pass may have made the first gradient of the parameter that it has come to.
bool PendingPasses::wereChanged(std::optional<size_t> arrived) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const bool isNew = i == arrived && seen(i) == noGradient();
    if (!isNew && !isAsSeen(i)) return true;
  }
  return false;
}

void PendingPasses::forget() {
  count_ = 0;
  weight_ = 0;
  holdsOthers_ = false;
  seen_.clear();
  turned_.reset();
}

}  // namespace treadle::ddp
