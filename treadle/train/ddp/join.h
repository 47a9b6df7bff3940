#pragma once
// Training where ranks have different numbers of batches. A rank that has no batch left makes passes of zeros while the
// others train, and the same steps as they, so that all ranks end with the same parameters and the same optimizers.
//
//   auto join = ddp.join([&] { optimizer.step(); });
//   for (const Batch& batch : batchesOfThisRank) {
//     optimizer.zero_grad();
//     lossOf(ddp.forward(batch.input), batch.target).backward();
//     optimizer.step();
//   }
//   join.finish();
//
// Nothing is sent beside what averaged passes send in any case; the end costs one more pass.

#include <torch/nn/module.h>

#include <functional>
#include <memory>

#include "treadle/train/ddp/uneven_inputs.h"

namespace treadle::ddp {

class Reducer;

// What DistributedDataParallel::join returns. From its construction to finish(), the group is used for averaged passes
// of this one module and for nothing else: of two modules with equal parameters each would get the averages of the
// other, and nobody would notice. The same thread uses the guard and the module. It shares ownership of what averages
// the gradients.
class [[nodiscard]] Join {
 public:
  // ArgumentError: `step` is empty, or the module has a SyncBatchNorm. StateError: a guard lives, or a pass is under
  // way.
  Join(std::shared_ptr<Reducer> reducer, const torch::nn::Module& module, std::function<void()> step,
       UnevenInputs mode);
  // Fails the group with StateError on all ranks, also for other users of it, unless finish() has returned or the guard
  // is over: the other ranks would wait for this one. Throws nothing.
  ~Join();
  Join(Join&&) noexcept = default;
  Join& operator=(Join&&) = delete;

  // Whether no pass follows. With kStopAtFirst it becomes true in the first pass for which a rank has no batch: leave
  // the loop then, and call finish(). An optimizer's step after that pass changes nothing, because `.grad` is
  // undefined; a schedule or GradScaler::update would differ between the ranks. A further averaged pass throws
  // StateError.
  bool isOver() const;

  // This rank has no batch left. Returns when no rank has one, or at once where the guard is over. Until then it takes
  // part in the passes of the other ranks: with zeros and the weight 0 or, in its first one, with the gradients of
  // passes that are not averaged yet, which then counts as a pass with a batch. It calls `step` after each of these
  // passes. Error memories of hooks (PowerSgdHook, TopKHook) stay as they are. Each pass waits for the others as long
  // as the group allows (GroupOptions::timeout). If no pass is pending, `.grad` is cleared before each pass and at the
  // end.
  //
  // Throws what an averaged pass throws, such as TimeoutError and PeerLostError. CancelledError: a pass has failed on
  // another rank; call finish() again if that rank goes on. From here on an averaged pass with a batch throws
  // StateError. Throws
  // StateError on all ranks for kThrow, and what `step` throws. StateError: a guard of noSync lives, or a pass is under
  // way.
  void finish();

 private:
  std::shared_ptr<Reducer> reducer_;  // null after finish(), and when moved from
  std::function<void()> step_;
};

}  // namespace treadle::ddp
