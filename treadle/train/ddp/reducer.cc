#include "treadle/train/ddp/reducer.h"

#include <ATen/core/grad_mode.h>

#include "treadle/core/base/error.h"
#include "treadle/tensor/autograd/plain_backward.h"
#include "treadle/tensor/collective/collectives.h"

namespace treadle::ddp {
namespace {

using Role = PassTracker::Role;

void waitForAll(std::vector<Future<void>> operations) {
  for (Future<void>& operation : operations) operation.wait();
}

}  // namespace

Reducer::Reducer(ParameterList parameters, ProcessGroup group, const BucketLimits& limits)
    : list_(std::move(parameters)),
      group_(std::move(group)),
      buckets_(makeBuckets(list_.trained(), limits)),
      placeOf_(list_.trained().size()),
      channel_(group_, list_.trained().size(), buckets_.size()),
      arrived_(list_.trained().size()) {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    for (size_t position = 0; position < buckets_[bucket].parameters.size(); ++position)
      placeOf_[buckets_[bucket].parameters[position]] = {bucket, position};
  autograd::refusePlainBackwardInNodes();  // from here on the depth of passes is counted
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
  at::NoGradGuard noGrad;
  const at::Tensor& gradient = parameter(index).grad();
  if (gradient.defined() && gradient.requires_grad())
    refuse(invalidArgument("the gradient of parameter " + list_.nameOf(index) +
                           " has a history (backward with create_graph), which its average would lose: make the inner "
                           "derivative by torch::autograd::grad, and call backward without create_graph"));
  const auto [number, position] = placeOf_[index];
  Bucket& bucket = buckets_[number];
  // Within one pass a parameter is accumulated once, after its last use; but anew in each local pass that a node
  // starts.
  const bool isFirst = !arrived_[index];
  arrived_[index] = true;
  if (number < launched_) {
    channel_.markAgain(number);
    if (gradient.defined()) channel_.markUsed(index);
    return;
  }
  // A copy, not a gradient that lies in the bucket from the start: `.grad` belongs to the user or to the
  // context.
  fill(bucket, position);
  if (isFirst) ++bucket.arrived;
  launchReady(false);
}

bool Reducer::takesPart() {
  const bool begins = tracker_.role() == Role::kNone;
  if (begins && suspended_ == 0) {
    // A pass that was given up left its operations to the group, which may still use the memory. Each has its time
    // limit, and the failure of an operation is that of its own pass.
    for (const Future<void>& operation : operations_) valueOrThrow(sharedStateOf(operation)->waitUntil(kNever));
    operations_.clear();
  }
  const Role role = tracker_.join(suspended_ > 0 ? Role::kLeftAlone : Role::kAveraged, weak_from_this());
  if (role == Role::kAveraged && begins) beginPass();
  return role == Role::kAveraged;
}

void Reducer::beginPass() {
  if (autograd::Pass* distributed = tracker_.distributed()) {
    store_ = std::make_unique<ContextGradients>(*distributed);
  } else {
    store_ = std::make_unique<LocalGradients>();
  }
  channel_.clear();
  launched_ = 0;
  arrived_.assign(arrived_.size(), false);
  for (Bucket& bucket : buckets_) bucket.arrived = 0;
  refused_ = {};
  if (Status unchanged = list_.checkUnchanged(); !unchanged.ok()) refuse(std::move(unchanged));
}

// Fails the pass, also if the node that started a local pass catches this.
void Reducer::refuse(Status why) {
  refused_ = why;
  raise(std::move(why));
}

// With what this rank has for a parameter. One that the pass has not come to may have a gradient of earlier passes,
// which the ranks that go on with theirs have in it too, and which need not have been averaged.
void Reducer::fill(Bucket& bucket, size_t position) {
  const size_t index = bucket.parameters[position];
  if (store_->copyTo(bucket.views[position], parameter(index), arrived_[index])) channel_.markUsed(index);
}

// One order for all ranks: a full bucket waits for those before it.
void Reducer::launchReady(bool all) {
  for (; launched_ < buckets_.size(); ++launched_) {
    Bucket& bucket = buckets_[launched_];
    if (!all && bucket.arrived < bucket.parameters.size()) return;
    for (size_t position = 0; position < bucket.parameters.size(); ++position)
      if (!arrived_[bucket.parameters[position]]) fill(bucket, position);
    reduce(bucket);
  }
}

// The same all-reduces on every rank, whatever got a gradient where: a rank without one adds zeros.
void Reducer::reduce(Bucket& bucket) { operations_.push_back(allReduce(group_, bucket.flat, ReduceOp::kAverage)); }

// Waits without the lock.
void Reducer::passEnded() {
  std::vector<Future<void>> operations;
  {
    MutexLock lock(mutex_);
    if (tracker_.role() != Role::kAveraged) return void(tracker_.end());
    at::NoGradGuard noGrad;
    operations = launchLast();
  }
  waitForAll(std::move(operations));
  {
    MutexLock lock(mutex_);
    throwIfError(channel_.outcome());
    at::NoGradGuard noGrad;
    operations = launchAgain();
  }
  waitForAll(std::move(operations));
  MutexLock lock(mutex_);
  at::NoGradGuard noGrad;
  putAverages();
}

// All gradients that will come have come. Buckets with parameters that the loss does not depend on here go now.
std::vector<Future<void>> Reducer::launchLast() {
  if (!refused_.ok()) {
    giveUp();
    raise(refused_);
  }
  launchReady(true);
  operations_.push_back(channel_.send(/*failed=*/false));
  tracker_.end();
  return operations_;
}

// The averages of buckets to which a gradient was added on some rank after they had gone are replaced.
std::vector<Future<void>> Reducer::launchAgain() {
  const size_t before = operations_.size();
  for (size_t number = 0; number < buckets_.size(); ++number) {
    if (!channel_.again(number)) continue;
    Bucket& bucket = buckets_[number];
    for (size_t position = 0; position < bucket.parameters.size(); ++position) fill(bucket, position);
    reduce(bucket);
  }
  return {operations_.begin() + static_cast<std::ptrdiff_t>(before), operations_.end()};
}

// A parameter that no rank used keeps what it has, like in one process: a gradient of zero is not the same as none to
// an optimizer with momentum or weight decay.
void Reducer::putAverages() {
  for (const Bucket& bucket : buckets_)
    for (size_t position = 0; position < bucket.parameters.size(); ++position)
      if (const size_t index = bucket.parameters[position]; channel_.used(index))
        store_->put(bucket.views[position], parameter(index), arrived_[index]);
}

void Reducer::passFailed() noexcept {
  MutexLock lock(mutex_);
  if (tracker_.role() != Role::kAveraged) return void(tracker_.end());
  try {
    giveUp();
  } catch (...) {}  // nothing can be sent any more: the other ranks' operations end by their time limit
}

// Ends a pass that failed here, without waiting. All operations of the pass are begun, not cancelled: members match
// operations by their number, those of the next pass must meet those of the next pass on the other ranks, and the last
// one reports the failure. Until then the others go on with theirs.
void Reducer::giveUp() {
  tracker_.end();
  for (; launched_ < buckets_.size(); ++launched_) reduce(buckets_[launched_]);
  operations_.push_back(channel_.send(/*failed=*/true));
}

}  // namespace treadle::ddp
