#pragma once
// Clips the gradients of one training step of all ranks of a DistributedDataParallel by their global norm, where each
// rank makes its distributed pass in a context of its own. Gradients of the replicated parameters are averages, which
// all ranks have: they count once. All other parameters of the ranks' optimizers count for each rank: a parameter of a
// server that several ranks step has a gradient from each. Ranks that clipped alone, with
// DistributedOptimizer::clipGradNorm, would get different factors, and the replicas would drift apart.
//
// For gradients in `.grad`, after a plain backward(): the clipGradNorm of tensor/optim, which sends nothing.

#include "treadle/tensor/optim/distributed_optimizer.h"
#include "treadle/train/ddp/distributed_data_parallel.h"

namespace treadle {

namespace ddp {

double clipGradNorm(DistributedOptimizer& optimizer, const AutogradContext& context,
                    const std::vector<at::Tensor>& replicated, const ProcessGroup& group, double maxNorm,
                    const ClipOptions& options);

}  // namespace ddp

// Every rank of `ddp` calls it between its `backward` and its `step`, with its own optimizer and context; no pass over
// the module runs meanwhile. Each rank sends the power (gradient_power.h) of what it answers for, the lowest rank for
// the replicated parameters; all add these in the order of ranks and multiply the gradients of their context by the
// same factor, maxNorm / (norm + 1e-6) if below 1. Returns the norm before, with the same bits on all ranks. Its
// all-gather, of 32 bytes, is the group's next operation.
//
// Throws what DistributedOptimizer::clipGradNorm throws. If that is thrown on one rank before anything is scaled,
// nothing changes on any rank: the others throw StateError naming that rank. ArgumentError on all ranks if they differ
// in `maxNorm`, in the norm or in `errorIfNonFinite`.
template <class M>
double clipGradNorm(DistributedOptimizer& optimizer, const AutogradContext& context,
                    const DistributedDataParallel<M>& ddp, double maxNorm, const ClipOptions& options = {}) {
  return ddp::clipGradNorm(optimizer, context, ddp.module()->parameters(), ddp.group(), maxNorm, options);
}

}  // namespace treadle
