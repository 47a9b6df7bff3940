#pragma once
// The differentiable part of SyncBatchNorm: normalizes this rank's part of a batch by the moments of the whole batch.
// Its backward pass takes into account that the moments depend on the input of every rank, so it makes an all-reduce.

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>

#include "treadle/core/group/group.h"
#include "treadle/train/ddp/batch_moments.h"

namespace treadle::ddp {

// A group that nothing but one module and its clones uses, and how many operations they called in it. Members match
// operations by their order, so an operation has the same number on all of them.
struct CountedGroup {
  ProcessGroup group;
  std::shared_ptr<std::atomic<uint64_t>> called = std::make_shared<std::atomic<uint64_t>>(0);
};

// y = w (x - mean) / sqrt(var + eps) + b for x = `input`: [N, C, ...], float16, bfloat16, float32 or float64, on CPU;
// y has its dtype, and is computed in float32 unless the input is of float64. `weight`, `bias`: [C], or both undefined.
//
// In grad mode y requires a gradient, also if no argument does. So the backward pass of every rank reaches this node
// and makes its all-reduce of 2 C + 2 numbers of float64, the next operation of `group`: ranks whose inputs need no
// gradient would otherwise leave the others waiting. The gradient of the input belongs to the sum of the ranks'
// losses (S. Ioffe, C. Szegedy, "Batch Normalization", 2015, section 3, with sums over all ranks); those of weight and
// bias are this rank's own. The backward pass throws ArgumentError with create_graph, because the second derivative
// would miss the other ranks; ArgumentError on all ranks if their passes meet in nodes of different forward calls,
// which `use` numbers: the number of the operation that gathered the moments; and what the group's operations throw.
at::Tensor normalizeSynced(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                           BatchMoments moments, double eps, CountedGroup group, uint64_t use);

}  // namespace treadle::ddp
