#include "treadle/train/ddp/reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>

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
      channel_(group_, list_.trained().size()),
      placeOf_(list_.trained().size()),
      arrived_(list_.trained().size()) {
  for (std::vector<size_t>& indexes : planBuckets(list_.trained(), limits)) {
    Bucket bucket;
    int64_t elements = 0;
    for (size_t index : indexes) elements += parameter(index).numel();
    // Written, as a pass that fails sends what there is.
    bucket.flat = at::zeros({elements}, parameter(indexes.front()).options().requires_grad(false));
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
  const at::Tensor earlier = earlierInContext(index);
  if (earlier.defined()) bucket.views[position].add_(earlier);
  if (gradient.defined() || earlier.defined()) channel_.markUsed(index);
  arrived_[index] = true;
  ++bucket.arrived;
  launchReady(false);
}

// Decided by the first gradient of a pass, for all of it.
bool Reducer::takesPart() {
  const int64_t passId = currentPassId();
  if (inPass_ && passId_ == passId) return true;
  if (leftAlone_ == passId) return false;
  if (inPass_) giveUp();  // a local pass that failed reported its end to nobody
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
  // A pass that was given up left its operations to the group, which may still use the memory. Each has its time limit.
  for (const Future<void>& operation : operations_) valueOrThrow(sharedStateOf(operation)->waitUntil(kNever));
  operations_.clear();
  channel_.clear();
  inPass_ = true;
  passId_ = currentPassId();
  pass_ = autograd::Pass::current();
  launched_ = 0;
  arrived_.assign(arrived_.size(), false);
  for (Bucket& bucket : buckets_) bucket.arrived = 0;
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

// Fails the pass, on all ranks. A distributed one reports its end by itself.
void Reducer::refuse(const Status& why) {
  if (pass_ == nullptr) giveUp();
  raise(why);
}

// Ends a pass that failed here. Waits for nothing, so that it may be called on any thread. All operations of the pass
// are begun, not cancelled: members match operations by their number, those of the next pass must meet those of the
// next pass on the other ranks, and the last one reports the failure. Until then the others go on with theirs.
void Reducer::giveUp() {
  for (; launched_ < buckets_.size(); ++launched_)
    operations_.push_back(allReduce(group_, buckets_[launched_].flat, ReduceOp::kAverage));
  operations_.push_back(channel_.send(/*failed=*/true));
  inPass_ = false;
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

// The same all-reduces on every rank, whatever got a gradient where: a rank without one adds zeros.
void Reducer::launch(Bucket& bucket) {
  if (bucket.arrived < bucket.parameters.size()) fillAbsent(bucket);
  operations_.push_back(allReduce(group_, bucket.flat, ReduceOp::kAverage));
}

// What this rank adds for parameters that its loss does not depend on: the gradient of earlier passes, which the ranks
// that go on with theirs have in it too, and which need not have been averaged.
void Reducer::fillAbsent(Bucket& bucket) {
  for (size_t position = 0; position < bucket.parameters.size(); ++position) {
    const size_t index = bucket.parameters[position];
    if (arrived_[index]) continue;
    const at::Tensor earlier = pass_ ? earlierInContext(index) : parameter(index).grad();
    if (earlier.defined()) channel_.markUsed(index);
    earlier.defined() ? bucket.views[position].copy_(earlier) : bucket.views[position].zero_();
  }
}

// Of a distributed pass, whose `.grad` holds its own gradient alone; that of a local one holds the sum.
at::Tensor Reducer::earlierInContext(size_t index) {
  return pass_ ? pass_->gradients().gradient(parameter(index)) : at::Tensor();
}

// All gradients that will come have come.
void Reducer::endPass() {
  std::vector<Future<void>> operations;
  {
    MutexLock lock(mutex_);
    at::NoGradGuard noGrad;
    // Parameters that the loss does not depend on here: their buckets go out now, with zeros.
    launchReady(true);
    operations_.push_back(channel_.send(/*failed=*/false));
    operations = operations_;
    inPass_ = false;
  }
  // Without the lock.
  for (Future<void>& operation : operations) operation.wait();
  MutexLock lock(mutex_);
  at::NoGradGuard noGrad;
  throwIfError(channel_.outcome());
  for (const Bucket& bucket : buckets_) putAverages(bucket);
}

void Reducer::putAverages(const Bucket& bucket) {
  // A parameter that no rank used keeps what it has, like in one process: a gradient of zero is not the same as none to
  // an optimizer with momentum or weight decay.
  for (size_t position = 0; position < bucket.parameters.size(); ++position)
    if (const size_t index = bucket.parameters[position]; channel_.used(index))
      putAverage(index, bucket.views[position]);
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

void Reducer::dropPass() {
  MutexLock lock(mutex_);
  giveUp();
}

}  // namespace treadle::ddp
