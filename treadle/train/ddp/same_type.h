#pragma once
// Whether one tensor may take the place of another.

#include <ATen/core/Tensor.h>

namespace treadle::ddp {

// Equal in dtype, device and shape.
inline bool haveSameType(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device() && a.sizes() == b.sizes();
}

}  // namespace treadle::ddp
