#pragma once
// Checks of gradients out of which a loss scale is taken. Functions without state; any thread.

#include <ATen/core/Tensor.h>

namespace treadle::optim {

// ArgumentError for a gradient of float16, which a loss scale does not help: parameters must be float32 or wider, or
// bfloat16. Also for one whose elements are no real floating-point numbers, or are not in CPU memory.
void checkUnscalable(const at::Tensor& gradient);
// Whether no element is infinite or NaN. Undefined and empty gradients are finite.
bool isFinite(const at::Tensor& gradient);

}  // namespace treadle::optim
