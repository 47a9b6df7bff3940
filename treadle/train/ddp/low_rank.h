#pragma once
// The arithmetic of PowerSGD that must give the same bits on every rank. libtorch picks its kernels by the processor,
// so these are loops of our own; sums are in float64. Matrices are contiguous, of float32 or float64. Pure functions;
// any thread.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace treadle::ddp {

// Makes the rows of `rows` ([k, n], k <= n) orthonormal, by Gram-Schmidt, each against those before it, and twice, so
// that rounding leaves them orthogonal. A row that depends on those before it becomes 0, and is counted in the result.
int64_t orthonormalize(at::Tensor& rows);

// product ([n, m]) = p^T q for p ([k, n]) and q ([k, m]).
void multiplyTransposed(const at::Tensor& p, const at::Tensor& q, at::Tensor& product);

// Numbers between -1 and 1 in row `row` of `rows`, the same for the same seed on every machine.
void fillRandomly(at::Tensor& rows, int64_t row, uint64_t seed);

// Replaces rows that are 0 by random ones, until all are orthonormal. Their span has that of the rows before.
void completeRandomly(at::Tensor& rows, uint64_t seed);

}  // namespace treadle::ddp
