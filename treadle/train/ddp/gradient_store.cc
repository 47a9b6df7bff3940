#include "treadle/train/ddp/gradient_store.h"

#include <ATen/ops/empty_like.h>

namespace treadle::ddp {
namespace {

bool copyOrZero(at::Tensor& place, const at::Tensor& gradient) {
  gradient.defined() ? place.copy_(gradient) : place.zero_();
  return gradient.defined();
}

// The pass has made it, in one piece, and nobody but `.grad` holds the tensor or its memory. Whatever adds to a
// gradient or clears it in place raises its version.
bool isNew(const at::Tensor& grad) {
  return grad._version() == 0 && grad.use_count() == 1 && grad.storage().use_count() == 1;
}

// Whether a gradient that autograd makes has other strides than the average: it takes those of a parameter whose
// elements lie in one piece in any order (torch/csrc/autograd/utils/grad_layout_contract.h). Equal strides on all ranks
// give equal bits in what is computed from them.
bool needsStridesOf(const at::Tensor& parameter, const at::Tensor& average) {
  return parameter.is_non_overlapping_and_dense() && parameter.strides() != average.strides();
}

at::Tensor copyOf(const at::Tensor& average, const at::Tensor& parameter) {
  return needsStridesOf(parameter, average) ? at::empty_like(parameter).copy_(average) : average.clone();
}

// In place, where a program may know the tensor or its memory.
void assignGrad(const at::Tensor& parameter, const at::Tensor& average) {
  at::Tensor& grad = const_cast<at::Tensor&>(parameter).mutable_grad();
  if (!grad.defined() && needsStridesOf(parameter, average)) {
    grad = copyOf(average, parameter);
  } else if (!grad.defined() || (isNew(grad) && grad.strides() == average.strides())) {
    grad = average.variable_data();  // not the bucket's own tensor: a program may give `.grad` other memory
  } else {
    grad.copy_(average);
  }
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
  at::Tensor& grad = const_cast<at::Tensor&>(parameter).mutable_grad();
  const bool hasOwn = arrived && grad.defined();
  pass_.replaceGradient(parameter, hasOwn ? std::move(grad.copy_(average)) : copyOf(average, parameter));
}

}  // namespace treadle::ddp
