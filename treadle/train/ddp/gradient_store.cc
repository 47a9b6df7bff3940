#include "treadle/train/ddp/gradient_store.h"

namespace treadle::ddp {
namespace {

bool copyOrZero(at::Tensor& place, const at::Tensor& gradient) {
  gradient.defined() ? place.copy_(gradient) : place.zero_();
  return gradient.defined();
}

// In place, where others may hold the same tensor; a copy where there is none, because a bucket is used again.
at::Tensor& assignGrad(const at::Tensor& parameter, const at::Tensor& average) {
  at::Tensor& grad = const_cast<at::Tensor&>(parameter).mutable_grad();
  if (grad.defined()) {
    grad.copy_(average);
  } else {
    grad = average.clone();
  }
  return grad;
}

}  // namespace

bool LocalGradients::has(const at::Tensor& parameter, bool /*arrived*/) const { return parameter.grad().defined(); }

bool LocalGradients::copyTo(at::Tensor& place, const at::Tensor& parameter, bool /*arrived*/) const {
  return copyOrZero(place, parameter.grad());
}

void LocalGradients::put(const at::Tensor& average, const at::Tensor& parameter, bool /*arrived*/) {
  assignGrad(parameter, average);
}

bool ContextGradients::has(const at::Tensor& parameter, bool arrived) const {
  return (arrived && parameter.grad().defined()) || pass_.gradients().gradient(parameter).defined();
}

bool ContextGradients::copyTo(at::Tensor& place, const at::Tensor& parameter, bool arrived) const {
  const at::Tensor earlier = pass_.gradients().gradient(parameter);
  if (!arrived) return copyOrZero(place, earlier);
  const bool hasOwn = copyOrZero(place, parameter.grad());
  if (earlier.defined()) place.add_(earlier);
  return hasOwn || earlier.defined();
}

// What a user keeps in the `.grad` of a parameter to which the pass has not come stays.
void ContextGradients::put(const at::Tensor& average, const at::Tensor& parameter, bool arrived) {
  pass_.replaceGradient(parameter, arrived ? std::move(assignGrad(parameter, average)) : average.clone());
}

}  // namespace treadle::ddp
