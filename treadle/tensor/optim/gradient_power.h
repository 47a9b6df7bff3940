#pragma once
// Norms of many gradients seen as one vector, for clipping. A norm is computed from powers: those of the elements of a
// gradient, of all gradients of a worker, of all workers, each a float64 that is combined with others in a fixed order.
// Equal gradients have powers with equal bits on every machine and with any number of threads: replicas that compute
// their factor each for itself stay replicas. Functions without state; any thread.

#include <ATen/core/Tensor.h>

#include <span>

namespace treadle::optim {

// `normType` is 1, 2 or infinity: the sum of |x|, the sum of x^2, or the largest |x| of the elements, in float64; NaN
// if there is a NaN. 0 for an undefined or empty gradient. The gradient is a dense or sparse (COO) tensor of float16,
// bfloat16, float32 or float64 in CPU memory; ArgumentError for others.
double gradientPower(const at::Tensor& gradient, double normType);

// The ArgumentError of gradientPower, for a gradient that is defined.
void checkHasPower(const at::Tensor& gradient);

// The power of all together, combined in this order.
double combinedPower(std::span<const double> powers, double normType);
double normOfPower(double power, double normType);

// ArgumentError: a norm other than 1, 2 and infinity.
void checkNormType(double normType);

}  // namespace treadle::optim
