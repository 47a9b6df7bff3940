#pragma once
// Adding gradients up without ever writing into memory that somebody else may hold. No state; any thread,
// with grad mode off.

#include <ATen/core/Tensor.h>

namespace treadle::autograd {

// Nobody else holds this tensor or its storage, so nobody can see it change. False when it cannot be told.
bool isUnshared(const at::Tensor& tensor);

// sum += gradient. Either may be undefined, which counts as zero. Writes in place only where `sum` is
// unshared, and takes `gradient` over as it is when there was no sum.
void addGradient(at::Tensor& sum, at::Tensor&& gradient);

}  // namespace treadle::autograd
