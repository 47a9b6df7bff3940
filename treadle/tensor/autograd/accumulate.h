#pragma once
// Adding gradients up without ever writing into memory that somebody else may hold. No state; any thread,
// with grad mode off.

#include <ATen/core/Tensor.h>

namespace treadle::autograd {

// Nobody else holds this tensor or its storage, so nobody can see it change. False when it cannot be told.
bool isUnshared(const at::Tensor& tensor);

// Whether `sum.add_(gradient)` writes to a wrong place: libtorch counts the storage_offset of a dense sum twice where
// the gradient is sparse and has no dense dimension. Both are defined.
bool missesItsPlace(const at::Tensor& sum, const at::Tensor& gradient);

// sum += gradient. Either may be undefined, which counts as zero. Writes in place only where `sum` is
// unshared, and takes `gradient` over as it is when there was no sum.
void addGradient(at::Tensor& sum, at::Tensor&& gradient);

}  // namespace treadle::autograd
