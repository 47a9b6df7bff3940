#pragma once
// The elements of largest magnitude. A pure function; any thread.

#include <ATen/core/Tensor.h>

namespace treadle::ddp {

// The indexes, upwards, of the `count` elements of `values` ([n], contiguous, float32 or float64) with the largest
// magnitude; of those that are equal the ones with the lowest index. NaN counts as infinite. 0 <= count <= n. Expected
// time: linear.
at::Tensor indexesOfLargest(const at::Tensor& values, int64_t count);

}  // namespace treadle::ddp
