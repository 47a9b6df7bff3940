#include "treadle/train/ddp/reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>

#include <cmath>
#include <limits>

#include "treadle/core/base/error.h"
#include "treadle/tensor/collective/collectives.h"

namespace treadle::ddp {
namespace {

// Of the backward pass on this thread: distributed ones have positive ids, local ones are given negative
// ones.
int64_t currentPassId() {
  if (autograd::Pass* pass = autograd::Pass::current()) return pass->passId();
  return -1 - static_cast<int64_t>(torch::autograd::get_current_graph_task_id());
}

}  // namespace

Reducer::Reducer(ParameterList parameters, ProcessGroup group, const BucketLimits& limits)
    : list_(std::move(parameters)),
      group_(std::move(group)),
      placeOf_(list_.trained().size()),
      arrived_(list_.trained().size()) {
  for (std::vector<size_t>& indexes : planBuckets(list_.trained(), limits)) {
    Bucket bucket;
    int64_t elements = 0;
    for (size_t index : indexes) elements += parameter(index).numel();
    int64_t marks = static_cast<int64_t>(indexes.size());
    // Uninitialised: everything is written before it is sent.
    bucket.flat = at::empty({elements + marks}, parameter(indexes.front()).options().requires_grad(false));
    bucket.marks = bucket.flat.narrow(0, elements, marks);
    int64_t offset = 0;
    for (size_t position = 0; position < indexes.size(); ++position) {
      const at::Tensor& one = parameter(indexes[position]);
      bucket.views.push_back(bucket.flat.narrow(0, offset, one.numel()).view(one.sizes()));
      placeOf_[indexes[position]] = {buckets_.size(), position};
      offset += one.numel();
    }
    bucket.parameters = std::move(indexes);
    buckets_.push_back(std::move(bucket));
  }
  hooks_ = std::make_unique<GradientHooks>(list_.trained(), [this](size_t index) { onGradient(index); });
}

void Reducer::suspend() {
  MutexLock lock(mutex_);
  ++suspended_;
}

void Reducer::resume() {
  MutexLock lock(mutex_);
  --suspended_;
}

void Reducer::onGradient(size_t index) {
  MutexLock lock(mutex_);
  if (!takesPart()) return;
  auto [bucketIndex, position] = placeOf_[index];
  Bucket& bucket = buckets_[bucketIndex];
  if (arrived_[index]) return;  // a parameter used twice is accumulated once, after the last use
  at::NoGradGuard noGrad;
  // A copy, not a gradient that lies in the bucket from the start: `.grad` belongs to the user or to the
  // context.
  const at::Tensor& gradient = parameter(index).grad();
  if (gradient.defined() && gradient.requires_grad())
    refuse(invalidArgument("the gradient of parameter " + list_.nameOf(index) +
                           " has a history (backward with create_graph), which its average would lose: make the inner "
                           "derivative by torch::autograd::grad, and call backward without create_graph"));
  // Undefined, when nothing behind a node made one: there is nothing to wait for, and nothing to add.
  gradient.defined() ? bucket.views[position].copy_(gradient) : bucket.views[position].zero_();
  if (at::Tensor earlier = earlierInContext(index); earlier.defined()) bucket.views[position].add_(earlier);
  arrived_[index] = true;
  ++bucket.arrived;
  launchReady(false);
}

// Decided by the first gradient of a pass, for all of it.
bool Reducer::takesPart() {
  const int64_t passId = currentPassId();
  if (inPass_ && passId_ == passId) return true;
  if (leftAlone_ == passId) return false;
  if (inPass_) settle();
  if (suspended_ > 0) {
    leftAlone_ = passId;
    return false;
  }
  beginPass();
  if (const Status unchanged = list_.checkUnchanged(); !unchanged.ok()) refuse(unchanged);
  return true;
}

// Its end is told by the distributed pass, or by the local engine.
void Reducer::beginPass() {
  // `dropPass` does not wait on a thread that must not: the group may still use the buckets.
  for (Bucket& bucket : buckets_)
    if (bucket.reduced.valid()) valueOrThrow(sharedStateOf(bucket.reduced)->waitUntil(kNever));
  inPass_ = true;
  passId_ = currentPassId();
  pass_ = autograd::Pass::current();
  launched_ = 0;
  arrived_.assign(arrived_.size(), false);
  for (Bucket& bucket : buckets_) {
    bucket.arrived = 0;
    bucket.reduced = {};
  }
  // A distributed pass ends when all workers are done, a local one when the engine is: each tells in its own
  // way. A pass may live on where its context is ended late: on a worker whose program has let go of its modules.
  const auto weak = weak_from_this();
  if (pass_ != nullptr) {
    pass_->onFinish([weak](const Status& status) {
      if (auto reducer = weak.lock()) status.ok() ? reducer->endPass() : reducer->dropPass();
    });
  } else {
    torch::autograd::Engine::get_default_engine().queue_callback([weak] {
      if (auto reducer = weak.lock()) reducer->endPass();
    });
  }
}

// A local pass that failed told nobody of its end. The ranks on which it went well wait for this one's part.
void Reducer::settle() {
  for (Future<void>& reduction : giveUp()) reduction.cancel();
  inPass_ = false;
}

// Fails the pass, on all ranks. A distributed one reports its end by itself.
void Reducer::refuse(const Status& why) {
  if (pass_ == nullptr) settle();
  raise(why);
}

// What is to be cancelled of a pass that failed here. The buckets that it did not come to are begun too: operations are
// matched by their number, and those of the next pass must meet those of the next pass on the other ranks. Marks that
// are no numbers tell them that there is no average (a cancelled operation may have ended well for them by then).
std::vector<Future<void>> Reducer::giveUp() {
  std::vector<Future<void>> begun;
  for (Bucket& bucket : buckets_) {
    if (!bucket.reduced.valid()) {
      bucket.flat.fill_(std::numeric_limits<double>::quiet_NaN());
      bucket.reduced = allReduce(group_, bucket.flat, ReduceOp::kAverage);
    }
    begun.push_back(bucket.reduced);
  }
  launched_ = buckets_.size();
  return begun;
}

// One order for all ranks: a full bucket waits for those before it.
void Reducer::launchReady(bool all) {
  while (launched_ < buckets_.size()) {
    Bucket& bucket = buckets_[launched_];
    if (!all && bucket.arrived < bucket.parameters.size()) return;
    launch(bucket);
    ++launched_;
  }
}

void Reducer::launch(Bucket& bucket) {
  bucket.marks.fill_(1);
  if (bucket.arrived < bucket.parameters.size()) fillAbsent(bucket);
  // The same number of all-reduces of the same sizes on every rank, whatever got a gradient where: a rank
  // without one adds zeros.
  bucket.reduced = allReduce(group_, bucket.flat, ReduceOp::kAverage);
  if (autograd::Pass* pass = autograd::Pass::current()) {
    auto pending = std::make_shared<autograd::Pass::Pending>(pass->addPending());
    // Pending work keeps this worker from counting as idle, so that the distributed pass is not over before
    // the averages are there, and a failed all-reduce fails the pass everywhere.
    auto state = sharedStateOf(bucket.reduced);
    state->onReady(
        [state, pending] { state->result().ok() ? pending->complete() : pending->fail(state->result().status()); });
  }
}

// What this rank adds for parameters that its loss does not depend on: the gradient of earlier passes, which the ranks
// that go on with theirs have in it too, and which need not have been averaged.
void Reducer::fillAbsent(Bucket& bucket) {
  for (size_t position = 0; position < bucket.parameters.size(); ++position) {
    const size_t index = bucket.parameters[position];
    if (arrived_[index]) continue;
    const at::Tensor earlier = pass_ ? earlierInContext(index) : parameter(index).grad();
    bucket.marks[static_cast<int64_t>(position)].fill_(earlier.defined() ? 1 : 0);
    earlier.defined() ? bucket.views[position].copy_(earlier) : bucket.views[position].zero_();
  }
}

// Of a distributed pass, whose `.grad` holds its own gradient alone; that of a local one holds the sum.
at::Tensor Reducer::earlierInContext(size_t index) {
  return pass_ ? pass_->gradients().gradient(parameter(index)) : at::Tensor();
}

// All gradients that will come have come.
void Reducer::endPass() {
  std::vector<Future<void>> reductions;
  {
    MutexLock lock(mutex_);
    at::NoGradGuard noGrad;
    // Parameters that the loss does not depend on here: their buckets go out now, with zeros.
    launchReady(true);
    for (Bucket& bucket : buckets_) reductions.push_back(bucket.reduced);
    inPass_ = false;
  }
  // Without the lock. In a distributed pass they are ready by now, as pending work; in a local one this is
  // the wait.
  for (Future<void>& reduction : reductions) reduction.wait();
  MutexLock lock(mutex_);
  at::NoGradGuard noGrad;
  for (const Bucket& bucket : buckets_)
    if (std::isnan(bucket.marks[0].item<double>()))
      raise(cancelled("the backward pass failed on another rank, so there are no averages of its gradients"));
  for (Bucket& bucket : buckets_) putAverages(bucket);
}

void Reducer::putAverages(Bucket& bucket) {
  for (size_t position = 0; position < bucket.parameters.size(); ++position) {
    const size_t index = bucket.parameters[position];
    // What no rank used keeps what it has, like in one process: a gradient of zero is not the same as none to an
    // optimizer with momentum or weight decay.
    bool used = arrived_[index] || bucket.marks[static_cast<int64_t>(position)].item<double>() > 0;
    if (used) putAverage(index, bucket.views[position]);
  }
}

// A distributed pass adds `.grad` to its context for the parameters that took part in it here, but the average stands
// for what is in the context too.
void Reducer::putAverage(size_t index, const at::Tensor& average) {
  if (pass_ != nullptr && !arrived_[index]) return pass_->replaceGradient(parameter(index), average.clone());
  at::Tensor& grad = const_cast<at::Tensor&>(parameter(index)).mutable_grad();
  // In place, where others may hold the same tensor; a clone where there is none, because the bucket is used
  // again.
  if (grad.defined()) {
    grad.copy_(average);
  } else {
    grad = average.clone();
  }
  if (pass_ != nullptr) pass_->replaceGradient(parameter(index), std::move(grad));
}

// Ends a pass that failed on this rank. `cancel` notifies the other ranks and waits until the group has released the
// buckets. On a thread that must not wait, the next pass waits instead.
void Reducer::dropPass() {
  std::vector<Future<void>> reductions;
  {
    MutexLock lock(mutex_);
    reductions = giveUp();
    inPass_ = false;
  }
  for (Future<void>& reduction : reductions) reduction.cancel();
}

}  // namespace treadle::ddp
