#include "treadle/train/ddp/reducer.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/core/io/executor.h"
#include "treadle/tensor/autograd/plain_backward.h"
#include "treadle/tensor/collective/collectives.h"

namespace treadle::ddp {
namespace {

using Role = PassTracker::Role;

// Not OK: this thread must not wait.
Status waitForEnd(const std::vector<Future<void>>& operations) {
  for (const Future<void>& operation : operations)
    TREADLE_RETURN_IF_ERROR(sharedStateOf(operation)->waitUntil(kNever).status());
  return {};
}

// The operations have ended.
Status firstFailure(const std::vector<Future<void>>& operations) {
  for (const Future<void>& operation : operations) TREADLE_RETURN_IF_ERROR(sharedStateOf(operation)->result().status());
  return {};
}

void keepFirst(Status& failure, Status another) {
  if (failure.ok()) failure = std::move(another);
}

}  // namespace

Reducer::Reducer(ParameterList parameters, ProcessGroup group, const BucketLimits& limits)
    : list_(std::move(parameters)),
      group_(std::move(group)),
      limits_(limits),
      buckets_(makeBuckets(list_.trained(), limits_)),
      placeOf_(list_.trained().size()),
      channel_(group_, list_.trained().size(), buckets_.size()),
      arrived_(list_.trained().size()) {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    for (size_t position = 0; position < buckets_[bucket].parameters.size(); ++position)
      placeOf_[buckets_[bucket].parameters[position]] = {bucket, position};
  autograd::refusePlainBackwardInNodes();  // from here on the depth of passes is counted
  hooks_ = std::make_unique<GradientHooks>(list_.trained(), [this](size_t index) { onGradient(index); });
}

Reducer::~Reducer() {
  hooks_.reset();
  passFailed();
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
  at::NoGradGuard noGrad;
  bool begins;
  std::vector<Future<void>> earlier;
  {
    MutexLock lock(mutex_);
    begins = tracker_.role() == Role::kNone;
    if (!takesPart()) return;
    if (begins) earlier = beginPass();
  }
  if (begins) takeMemory(earlier);
  MutexLock lock(mutex_);
  if (begins)
    if (Status unchanged = list_.checkUnchanged(); !unchanged.ok()) refuse(std::move(unchanged));
  addGradient(index);
}

bool Reducer::takesPart() {
  const bool begins = tracker_.role() == Role::kNone;
  const Role role = tracker_.join(suspended_ > 0 ? Role::kLeftAlone : Role::kAveraged, weak_from_this());
  if (role != Role::kAveraged) return false;
  if (begins || phase_ == Phase::kGradients) return true;
  raise(
      failedPrecondition("a callback at the end of a backward pass reached the parameters of a DistributedDataParallel "
                         "while their gradients are being averaged: call backward after the pass"));
}

// From here on the pass begins all of its operations, well or badly. Returns those of a pass before it.
std::vector<Future<void>> Reducer::beginPass() {
  phase_ = Phase::kGradients;
  launched_ = 0;
  failure_ = {};
  arrived_.assign(arrived_.size(), false);
  for (Bucket& bucket : buckets_) bucket.arrived = 0;
  channel_.renew();
  if (autograd::Pass* distributed = tracker_.distributed()) {
    store_ = std::make_unique<ContextGradients>(*distributed);
  } else {
    store_ = std::make_unique<LocalGradients>();
  }
  return std::exchange(operations_, {});
}

// A pass that failed left its operations to the group, which may still use the buckets. Each has its time limit, and
// its failure is that of its own pass. Waiting also limits how many of them are under way. Where this thread must not
// wait, the pass fails, and its operations get memory of their own.
void Reducer::takeMemory(const std::vector<Future<void>>& earlier) {
  Status mayWait = waitForEnd(earlier);
  if (mayWait.ok()) return;
  MutexLock lock(mutex_);
  buckets_ = makeBuckets(list_.trained(), limits_);
  refuse(std::move(mayWait));
}

void Reducer::addGradient(size_t index) {
  checkNoHistory(index);
  const auto [number, position] = placeOf_[index];
  Bucket& bucket = buckets_[number];
  // Within one pass a parameter is accumulated once, after its last use; but anew in each local pass that a node
  // starts.
  const bool isFirst = !arrived_[index];
  arrived_[index] = true;
  if (number < launched_) {
    channel_.markAgain(number);
    if (parameter(index).grad().defined()) channel_.markUsed(index);
    return;
  }
  // A copy, not a gradient that lies in the bucket from the start: `.grad` belongs to the user or to the
  // context.
  fill(bucket, position);
  if (isFirst) ++bucket.arrived;
  launchReady(false);
}

// In a local pass `.grad` may also have one from a pass under noSync.
void Reducer::checkNoHistory(size_t index) {
  const at::Tensor& gradient = parameter(index).grad();
  if (!gradient.defined() || !gradient.requires_grad()) return;
  refuse(invalidArgument("the gradient of parameter " + list_.nameOf(index) +
                         " has a history, from backward with create_graph in this pass or in an earlier one under "
                         "noSync, which its average would lose: clear .grad, make the inner derivative by "
                         "torch::autograd::grad, and call backward without create_graph"));
}

// Fails the pass, also if the node that started a local pass catches this.
void Reducer::refuse(Status why) {
  keepFirst(failure_, why);
  raise(std::move(why));
}

// With what this rank has for a parameter. One that the pass has not come to may have a gradient of earlier passes,
// which the ranks that go on with theirs have in it too, and which need not have been averaged.
void Reducer::fill(Bucket& bucket, size_t position) {
  const size_t index = bucket.parameters[position];
  if (store_->copyTo(bucket.views[position], parameter(index), arrived_[index])) channel_.markUsed(index);
}

// In a distributed pass the `.grad` of parameters that it has not come to is no part of it.
void Reducer::fillAbsent(Bucket& bucket) {
  for (size_t position = 0; position < bucket.parameters.size(); ++position) {
    const size_t index = bucket.parameters[position];
    if (arrived_[index]) continue;
    if (tracker_.distributed() == nullptr) checkNoHistory(index);
    fill(bucket, position);
  }
}

// One order for all ranks: a full bucket waits for those before it. In a pass that has failed here they go as they are:
// nobody uses them.
void Reducer::launchReady(bool all) {
  for (; launched_ < buckets_.size(); ++launched_) {
    Bucket& bucket = buckets_[launched_];
    if (!all && bucket.arrived < bucket.parameters.size()) return;
    if (failure_.ok()) fillAbsent(bucket);
    reduce(bucket);
  }
}

// The same all-reduces on every rank, whatever got a gradient where: a rank without one adds zeros.
void Reducer::reduce(Bucket& bucket) { operations_.push_back(allReduce(group_, bucket.flat, ReduceOp::kAverage)); }

bool Reducer::passEnds() {
  try {
    const bool isAnotherLeft = makeStep();
    if (!isAnotherLeft) over();
    return isAnotherLeft;
  } catch (...) {
    over();
    throw;
  }
}

bool Reducer::makeStep() {
  {
    MutexLock lock(mutex_);
    if (tracker_.role() != Role::kAveraged) return false;
  }
  at::NoGradGuard noGrad;
  switch (phase()) {
    case Phase::kGradients: beginLast({}); return true;
    case Phase::kLast: beginAgain(); return true;
    case Phase::kAgain: putAverages(); break;
  }
  return false;
}

Reducer::Phase Reducer::phase() {
  MutexLock lock(mutex_);
  return phase_;
}

void Reducer::over() {
  MutexLock lock(mutex_);
  tracker_.end();
}

// No gradient comes any more. Buckets with parameters that the loss does not depend on here go now. A pass that failed
// here begins all operations too and cancels none: members match operations by their number, those of the next pass
// must meet those of the next pass on the other ranks, and the last one reports the failure.
void Reducer::beginLast(const Status& failure) {
  MutexLock lock(mutex_);
  phase_ = Phase::kLast;
  keepFirst(failure_, failure);
  // Asked before the channel goes, which reports it: a rank that must not wait gets no averages.
  if (group_.size() > 1) keepFirst(failure_, io::Executor::Permit().status());
  try {
    launchReady(true);
  } catch (...) {
    keepFirst(failure_, statusOfCurrentException("the averaging of gradients"));
    launchReady(true);
  }
  operations_.push_back(channel_.send(!failure_.ok()));
}

// The averages of buckets to which a gradient was added on some rank after they had gone are replaced. Each rank does
// that which has heard from all, also if the pass has failed here since: the numbers of operations must match.
void Reducer::beginAgain() {
  const std::vector<Future<void>> operations = operationsOfPass();
  const Status mayWait = waitForEnd(operations);
  MutexLock lock(mutex_);
  phase_ = Phase::kAgain;
  keepFirst(failure_, mayWait);
  if (!mayWait.ok() || operations.empty()) return;
  keepFirst(failure_, firstFailure(operations));
  if (!firstFailure({operations.back()}).ok()) return;
  const Status outcome = channel_.outcome();
  keepFirst(failure_, outcome);
  if (outcome.ok()) launchAgain();
}

void Reducer::launchAgain() {
  for (size_t number = 0; number < buckets_.size(); ++number) {
    if (!channel_.again(number)) continue;
    Bucket& bucket = buckets_[number];
    for (size_t position = 0; position < bucket.parameters.size(); ++position) fill(bucket, position);
    reduce(bucket);
  }
}

// A parameter that no rank used keeps what it has, like in one process: a gradient of zero is not the same as none to
// an optimizer with momentum or weight decay.
void Reducer::putAverages() {
  const std::vector<Future<void>> operations = operationsOfPass();
  Status ended = waitForEnd(operations);
  if (ended.ok()) ended = firstFailure(operations);
  MutexLock lock(mutex_);
  keepFirst(failure_, std::move(ended));
  throwIfError(failure_);
  for (const Bucket& bucket : buckets_)
    for (size_t position = 0; position < bucket.parameters.size(); ++position)
      if (const size_t index = bucket.parameters[position]; channel_.used(index))
        store_->put(bucket.views[position], parameter(index), arrived_[index]);
}

// Those to be waited for: none where the pass has failed, as its averages are of no use.
std::vector<Future<void>> Reducer::operationsOfPass() {
  MutexLock lock(mutex_);
  return failure_.ok() ? operations_ : std::vector<Future<void>>();
}

// Waits for nothing before the first step of the end. Between two it makes the one that others wait for.
void Reducer::passFailed() noexcept {
  try {
    {
      MutexLock lock(mutex_);
      if (tracker_.role() != Role::kAveraged) return void(tracker_.end());
    }
    at::NoGradGuard noGrad;
    if (phase() == Phase::kGradients) {
      beginLast(cancelled("the backward pass failed"));
    } else if (phase() == Phase::kLast) {
      beginAgain();
    }
  } catch (...) {}  // nothing can be sent any more: the other ranks' operations end by their time limit
  over();
}

}  // namespace treadle::ddp
