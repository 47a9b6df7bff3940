#pragma once
// Local SGD: each rank makes several steps by its own gradients, for which nothing is sent, and then the ranks average
// their parameters (S. U. Stich 2019, "Local SGD converges fast and communicates little"). Its first steps are made by
// averaged gradients, as far as LocalSgdOptions::startAfter says: T. Lin et al. 2020, "Don't use large mini-batches,
// use local SGD", call that post-local SGD. torch has a hook, an averager and an optimizer for it, whose numbers must
// agree.
//
//   auto local = ddp.localSgd({.period = 8, .startAfter = 100});
//   for (const Batch& batch : batchesOfThisRank) {
//     optimizer.zero_grad();
//     lossOf(ddp.forward(batch.input), batch.target).backward();
//     optimizer.step();
//     local.step();
//   }
//   local.finish();
//
// Where n parameters train, a mean sends what an averaged pass sends, once in `period` steps and after the step: it
// does not overlap with a backward pass.
//
// In training, the replicas stay near one process on the whole batch. For 50 steps of SGD without momentum of a small
// network, a period of 4 from the first step on, and ranks whose data differ: the loss of the whole batch, as a mean
// over the replicas, differs in each step by at most 5% of the first loss (tests/train/ddp/losses_test.cc).

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "treadle/core/group/group.h"
#include "treadle/train/ddp/optimizer_tensors.h"

namespace treadle {

struct DdpOptions;

// Must be the same on all ranks. In brackets: torch's names.
struct LocalSgdOptions {
  int64_t period = 4;        // steps from one mean to the next [period]; at least 1
  int64_t startAfter = 100;  // steps at the begin in which ranks stay equal [start_localSGD_iter, warmup_steps]
  // For means over more ranks than gradients are averaged over, as over all machines while each machine is the group of
  // a DistributedDataParallel. It has all members of that group. Then gradients are always averaged in that group, and
  // the first `startAfter` steps have a mean each. None: the means are over the group of the DistributedDataParallel.
  ProcessGroup group = {};
};

namespace ddp {

class Reducer;
class ReplicaMean;

// What DistributedDataParallel::localSgd returns. The same thread uses it and the module, one at a time for a module.
// It shares ownership of what averages the gradients.
class [[nodiscard]] LocalSgd {
 public:
  // Every rank calls it, between passes, and each later function too. ArgumentError: options out of range, and, unless
  // there is a larger group: a hook that holds gradients back, as it would do so until training ends; an
  // optimizerInBackward; the divisors kSum and kWeights, as a rank alone would make steps of another length; a
  // SyncBatchNorm, whose forward waits for all ranks. StateError: another LocalSgd lives. These on this rank;
  // ArgumentError on all ranks: other options or replicas on some.
  LocalSgd(std::shared_ptr<Reducer> reducer, const torch::nn::Module& module, const ProcessGroup& group,
           const DdpOptions& ddp, LocalSgdOptions options);
  // Without a finish() that has ended well, the group of the means fails with StateError on all ranks, also for other
  // users of it: the replicas are not equal, and other ranks may wait in finish(). Throws nothing.
  ~LocalSgd();
  LocalSgd(LocalSgd&&) noexcept;
  LocalSgd& operator=(LocalSgd&&) = delete;

  // The means are also of what this optimizer keeps of the module's trained parameters: an optimizer of libtorch,
  // except LBFGS, or one whose fields have names (state_fields.h). It outlives this. A tensor that some ranks do not
  // have counts as zeros there; numbers of steps become the largest. By default each rank's own state stays. Call it
  // before the first step, for each optimizer. ArgumentError on all ranks: other optimizers on some.
  template <class Optimizer>
  void averageState(Optimizer& optimizer) {
    static_assert(optim::KeepsNamedState<Optimizer>,
                  "the optimizer is given by its own class, torch::optim::SGD, whose fields have names in "
                  "treadle/tensor/optim/state_fields.h");
    addState(std::make_unique<OptimizerTensorsOf<Optimizer>>(optimizer, parameters()));
  }

  // A step is made, or skipped, as GradScaler does: call it after each one. It counts, and makes the mean where it is
  // due: after `startAfter` steps, after each `period` of them. Then all trained parameters have the same bits on all
  // ranks, whether they had a gradient or not, and so have buffers as DdpOptions::buffers says.
  //
  // StateError on all ranks: they have made other numbers of steps. StateError on a rank where a parameter or a buffer
  // has become another one, and CancelledError with its name on the others. StateError: a pass is under way; a guard of
  // join() lives; finish() was called. Throws what operations of the group throw: then the group fails, as in the
  // destructor.
  void step();
  // The mean now, as before an evaluation or a checkpoint. It changes nothing about when the next one is due.
  void average();
  // This rank has no batch left. Takes part in the means of the other ranks until all have called it; then all have the
  // same parameters and gradients are averaged again. Means are over the ranks that have made a step since the last
  // one. Each waits for the others as long as the group allows (GroupOptions::timeout), which has to be longer than
  // `period` steps. Ranks may have different numbers of batches, but not of the first `startAfter`; with a larger
  // group, those of one DistributedDataParallel have as many. Throws what step() throws. CancelledError: a mean has
  // failed on another rank; call finish() again if that rank goes on.
  void finish();

  // Those that were counted.
  int64_t steps() const { return steps_; }

 private:
  const std::vector<at::Tensor>& parameters() const;
  void addState(std::unique_ptr<OptimizerTensors> optimizer);
  void checkMayAverage(const char* function) const;
  void goLocal();
  void leave();
  bool isDue() const;
  bool makeMean(bool isDone);

  std::shared_ptr<Reducer> reducer_;  // null after finish(), and when moved from
  std::shared_ptr<void> claim_;
  LocalSgdOptions options_;
  ProcessGroup group_;
  bool isWide_;           // gradients are averaged in another group
  bool isLocal_ = false;  // gradients are not averaged
  std::unique_ptr<ReplicaMean> mean_;
  int64_t steps_ = 0;
  bool hasTrained_ = false;  // by its own gradients, since the last mean
};

}  // namespace ddp

}  // namespace treadle
