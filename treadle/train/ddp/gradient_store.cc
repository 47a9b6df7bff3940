#include "treadle/train/ddp/gradient_store.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <utility>

#include "treadle/tensor/autograd/accumulate.h"

namespace treadle::ddp {
namespace {

bool isDenseTensor(const at::Tensor& tensor) { return tensor.defined() && !tensor.is_sparse(); }

// libtorch's add_ of a sparse tensor may miss a place that is a part of a larger tensor (gradient_hooks.h), so that is
// given as a tensor of its own over the same memory.
void addTo(at::Tensor& place, const at::Tensor& gradient) {
  if (!gradient.defined()) return;
  if (!gradient.is_sparse()) {
    place.add_(gradient);
    return;
  }
  at::from_blob(place.mutable_data_ptr(), place.sizes(), place.strides(), place.options()).add_(gradient);
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

// A sparse average has memory of its own. In place, where a program may know the tensor.
void assignSparseGrad(at::Tensor& grad, const at::Tensor& average) {
  if (grad.defined() && grad.is_sparse() && grad.use_count() > 1) {
    grad.copy_(average);
  } else {
    grad = average;
  }
}

// In place, where a program may know the tensor or its memory. A sparse tensor cannot become a dense one. The memory of
// a gradient that a pass has made may be that of other gradients too, as of a and b in a.view({-1}) + b.view({-1})
// (pytorch#34082), or of what backward() was given: a tensor that a program holds gets other memory then.
void assignGrad(at::Tensor& grad, const at::Tensor& parameter, const at::Tensor& average, bool made) {
  const bool isThere = grad.defined() && !grad.is_sparse();
  if (!isThere && needsStridesOf(parameter, average)) {
    grad = copyOf(average, parameter);
  } else if (!isThere || (made && grad.use_count() == 1 && grad.strides() == average.strides())) {
    grad = average.variable_data();  // not the bucket's own tensor: a program may give `.grad` other memory
  } else {
    if (made && grad.storage().use_count() > 1) grad.set_data(at::empty_like(grad));
    grad.copy_(average);
  }
}

}  // namespace

bool OwnGradient::isDense() const {
  if (isDenseTensor(ofPass) || isDenseTensor(earlier)) return true;
  return ofPass.defined() && earlier.defined() && ofPass.sparse_dim() != earlier.sparse_dim();
}

int64_t OwnGradient::sparseDims() const { return ofPass.defined() ? ofPass.sparse_dim() : earlier.sparse_dim(); }

void OwnGradient::copyTo(at::Tensor& place) const {
  const bool isFirstCopied = isDenseTensor(ofPass), isOtherCopied = !isFirstCopied && isDenseTensor(earlier);
  if (isFirstCopied || isOtherCopied) {
    place.copy_(isFirstCopied ? ofPass : earlier);
  } else {
    place.zero_();
  }
  if (!isFirstCopied) addTo(place, ofPass);
  if (!isOtherCopied) addTo(place, earlier);
}

at::Tensor OwnGradient::sparse() const {
  if (ofPass.defined() && earlier.defined()) return at::add(ofPass, earlier);
  return ofPass.defined() ? ofPass : earlier;
}

OwnGradient LocalGradients::gradientOf(const at::Tensor& parameter, bool /*arrived*/) const {
  return {.ofPass = parameter.grad(), .earlier = {}};
}

void LocalGradients::put(const at::Tensor& average, const at::Tensor& parameter, bool made) {
  at::Tensor& grad = const_cast<at::Tensor&>(parameter).mutable_grad();
  average.is_sparse() ? assignSparseGrad(grad, average) : assignGrad(grad, parameter, average, made);
}

OwnGradient ContextGradients::gradientOf(const at::Tensor& parameter, bool arrived) const {
  return {.ofPass = arrived ? parameter.grad() : at::Tensor(), .earlier = pass_.gradients().gradient(parameter)};
}

// What a user keeps in the `.grad` of a parameter to which the pass has not come stays.
void ContextGradients::put(const at::Tensor& average, const at::Tensor& parameter, bool made) {
  at::Tensor& grad = const_cast<at::Tensor&>(parameter).mutable_grad();
  at::Tensor own;
  if (made) std::swap(own, grad);
  if (average.is_sparse()) {
    pass_.replaceGradient(parameter, average);
  } else {
    const bool reused = own.defined() && autograd::isUnshared(own);
    pass_.replaceGradient(parameter, reused ? std::move(own.copy_(average)) : copyOf(average, parameter));
  }
}

}  // namespace treadle::ddp
