#pragma once
// Averages the gradients of a module's parameters over a group while the backward pass still runs: each
// bucket is all-reduced as soon as its last gradient is there, in the same order on every rank, and when the
// pass ends the averages take the place of the gradients. The operations of a pass are its buckets in order, then the
// exact channel, also where it fails: so it goes well on all ranks or fails on all. What is averaged is the sum of this
// pass and of those before it, which are in `.grad` or in the context: passes that were not averaged are so with the
// next one that is. A parameter that has no gradient on this rank counts as zero; one that has none on any rank is left
// alone. Works in a plain `loss.backward()`, which then returns when the averages are there, and in a distributed pass,
// which then is not over before they are.
//
// Owned by a DistributedDataParallel; one backward pass over its parameters at a time. Hooks run on the
// thread that runs the backward pass, and so does everything here but the answers of the group.
//
// Memory: one copy of the gradients, in the buckets, for as long as the reducer lives. Per pass one copy in
// and one out.

#include "treadle/core/base/mutex.h"
#include "treadle/core/group/group.h"
#include "treadle/tensor/autograd/pass.h"
#include "treadle/train/ddp/buckets.h"
#include "treadle/train/ddp/exact_channel.h"
#include "treadle/train/ddp/gradient_hooks.h"
#include "treadle/train/ddp/parameter_list.h"

namespace treadle::ddp {

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // Averages the trained ones, which are dense and the same on all ranks. The all-reduces are the group's next
  // operations, so the group must be used for nothing else while a pass runs.
  Reducer(ParameterList parameters, ProcessGroup group, const BucketLimits& limits);

  // Passes whose first gradient comes between a suspend() and its resume() are left alone. They nest.
  void suspend();
  void resume();

 private:
  // What is sent as one. The views say where each parameter's gradient lies in `flat`, in the parameter's
  // shape.
  struct Bucket {
    std::vector<size_t> parameters;
    at::Tensor flat;                // their gradients, one after the other
    std::vector<at::Tensor> views;  // of each within `flat`
    size_t arrived = 0;
  };

  // In the order of a pass: gradients come, the first of them begins the pass, full buckets are launched in
  // order, and the pass ends well (endPass, which waits for the network) or not (dropPass).
  void onGradient(size_t index);
  bool takesPart() TREADLE_REQUIRES(mutex_);
  void beginPass() TREADLE_REQUIRES(mutex_);
  void refuse(const Status& why) TREADLE_REQUIRES(mutex_);
  void giveUp() TREADLE_REQUIRES(mutex_);
  void launchReady(bool all) TREADLE_REQUIRES(mutex_);
  void launch(Bucket& bucket) TREADLE_REQUIRES(mutex_);
  void fillAbsent(Bucket& bucket) TREADLE_REQUIRES(mutex_);
  at::Tensor earlierInContext(size_t index) TREADLE_REQUIRES(mutex_);
  void endPass();
  void putAverages(const Bucket& bucket) TREADLE_REQUIRES(mutex_);
  void putAverage(size_t index, const at::Tensor& average) TREADLE_REQUIRES(mutex_);
  void dropPass();

  const at::Tensor& parameter(size_t index) const { return list_.trained()[index]; }

  const ParameterList list_;
  const ProcessGroup group_;

  Mutex mutex_;
  std::vector<Bucket> buckets_ TREADLE_GUARDED_BY(mutex_);
  ExactChannel channel_ TREADLE_GUARDED_BY(mutex_);
  std::vector<Future<void>> operations_ TREADLE_GUARDED_BY(mutex_);  // of the pass, or of the last one, as begun
  std::vector<std::pair<size_t, size_t>> placeOf_;                   // bucket and position, by parameter
  std::vector<bool> arrived_ TREADLE_GUARDED_BY(mutex_);
  size_t launched_ TREADLE_GUARDED_BY(mutex_) = 0;
  bool inPass_ TREADLE_GUARDED_BY(mutex_) = false;
  int64_t passId_ TREADLE_GUARDED_BY(mutex_) = 0;
  autograd::Pass* pass_ TREADLE_GUARDED_BY(mutex_) = nullptr;  // none when it is a local one
  int suspended_ TREADLE_GUARDED_BY(mutex_) = 0;
  std::optional<int64_t> leftAlone_ TREADLE_GUARDED_BY(mutex_);  // the last pass that was not averaged
  std::unique_ptr<GradientHooks> hooks_;                         // last: no hook comes once it is gone
};

}  // namespace treadle::ddp
