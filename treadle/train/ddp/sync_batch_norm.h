#pragma once
// Batch normalization over the batch of all ranks of a group, for data-parallel training with few samples on each rank:
// ranks that normalize by their own samples alone train another function than one process on the whole batch.
//
//   struct NetImpl : torch::nn::Module {
//     NetImpl(treadle::Worker& worker, const treadle::ProcessGroup& group)
//         : norm(register_module("norm", treadle::SyncBatchNorm(64, worker, group))) {}
//     treadle::SyncBatchNorm norm;
//   };
//
// Parameters, buffers and options are those of torch::nn::BatchNorm1d to 3d, with the same names, so that a state saved
// from one can be loaded into the other. There is no function that replaces the BatchNorm children of a module:
// libtorch's `replace_module` changes the list of children only. Members of a user's class, and the list that a
// Sequential runs, would still hold the old module.
//
// Used by one thread at a time. Shares ownership of its tensors as every module does; its group lives as long as the
// worker.

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "treadle/core/group/group.h"
#include "treadle/train/ddp/batch_moments.h"
#include "treadle/train/ddp/synced_normalize.h"

namespace treadle {

class SyncBatchNormImpl : public torch::nn::NormImplBase<1, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  // Every member of `group` makes its modules in the same order, with the same options. Each module gets a group of its
  // own, of the same members and options but a forced algorithm and with ".syncbn" at the end of its name, so that its
  // operations keep apart from those of DistributedDataParallel and of other modules. Nothing is sent. ArgumentError:
  // less than one channel. Throws what ProcessGroup::make throws, and StateError for a handle that means no group.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, group::Job& job, const ProcessGroup& group);

  // `input`: [N, C, ...] of 2 to 5 dimensions, float16, bfloat16, float32 or float64, on CPU; the output has its shape
  // and dtype. N may differ between ranks, and may be 0; without samples on any rank the buffers stay as they are.
  // Parameters and buffers have the dtype of the input, or float32 for an input of 16 bits. Then, and for float32, it
  // computes in float32, with means and sums of squares exchanged in float64.
  //
  // In training all ranks call it alike, and return when all have: an all-gather of 1 + 2 C numbers of float64, merged
  // on each rank to the same bits. So running means and variances stay equal on all ranks without being sent. In grad
  // mode the backward pass, plain or distributed, must also reach the output on all ranks: it waits for their
  // all-reduce (synced_normalize.h), whether the input needs a gradient or not. Each distributed pass blocks the thread
  // that runs the node meanwhile. The result equals one process on the joined batch whose loss is the sum of the ranks'
  // losses; DistributedDataParallel divides it by their number, and averages the gradients of weight and bias, which
  // are this rank's own. All ranks run the outputs backward in the same order: ArgumentError on all ranks if they meet
  // in outputs of different calls, TimeoutError if they wait in different modules. A distributed pass has no fixed
  // order where the gradients of two outputs come from other workers, neither of which depends on the other.
  //
  // In evaluation nothing is sent: it normalizes by the running mean and variance, or by those of this rank's batch if
  // it keeps none.
  //
  // ArgumentError, before anything is sent: another number of dimensions or channels, another dtype, device or layout.
  // The other ranks then wait until the group's timeout, which names this one.
  // ArgumentError on all ranks: they have one value for each channel together, which has no variance; their numbers of
  // channels differ. Throws what the group's operations throw: TimeoutError names the ranks that did not call it.
  at::Tensor forward(const at::Tensor& input);

  const ProcessGroup& group() const { return group_.group; }
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  at::Tensor forwardAlone(const at::Tensor& input) const;
  ddp::BatchMoments momentsOfAllRanks(const at::Tensor& input) const;
  void updateRunning(const ddp::BatchMoments& moments);

  ddp::CountedGroup group_;
};
// Copies mean the same module. `clone` makes another one, which shares the group: run one of them at a time.
TORCH_MODULE(SyncBatchNorm);

}  // namespace treadle

namespace treadle::ddp {

// ArgumentError: `module` is a SyncBatchNorm or has one, so `function`, for which ranks may have other numbers of
// batches, cannot be used.
void refuseSyncBatchNorm(const torch::nn::Module& module, const std::string& function);

}  // namespace treadle::ddp
