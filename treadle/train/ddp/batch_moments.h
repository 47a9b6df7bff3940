#pragma once
// Mean and variance of each channel over a batch that ranks hold parts of. Pure functions in float64; any thread.

#include <ATen/core/Tensor.h>

#include <vector>

namespace treadle::ddp {

// The moments of a batch [N, C, ...]: how many values each channel has, and for each channel their mean and the sum of
// the squares of their deviations from it.
struct BatchMoments {
  double count = 0;
  std::vector<double> mean, squares;

  double variance(size_t channel) const { return count > 0 ? squares[channel] / count : 0; }
  // The estimate from a sample, for a count of at least 2.
  double unbiasedVariance(size_t channel) const { return squares[channel] / (count - 1); }
};

// `batch`: [N, C, ...], float32 or float64, on CPU, also without values.
BatchMoments momentsOf(const at::Tensor& batch);

// float64 of shape [1 + 2 C]: the count, the means, the sums of squares.
at::Tensor packed(const BatchMoments& moments);

// `parts`: [W, 1 + 2 C], the packed moments of W parts of a batch. Merged in the order of the rows, without those that
// have no values, by the formula of T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm
// for computing sample variances", 1979. A plain loop: ranks whose libtorch picks other kernels get the same bits.
BatchMoments merged(const at::Tensor& parts);

}  // namespace treadle::ddp
