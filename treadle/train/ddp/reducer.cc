#include "treadle/train/ddp/reducer.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/tensor/autograd/plain_backward.h"
#include "treadle/train/ddp/bucket_limits.h"
#include "treadle/train/ddp/distributed_data_parallel.h"

namespace treadle::ddp {
namespace {

using Role = PassTracker::Role;

std::vector<size_t> orderOf(const ParameterList& list, const std::vector<std::string>& names) {
  if (names.empty()) return {};
  Result<std::vector<size_t>> order = list.placesOf(names);
  if (!order.ok()) raise(order.status().withContext("DdpOptions::bucketOrder"));
  return *std::move(order);
}

void checkOverlap(const DdpOptions& options, const OptimizerInBackward& optimizer) {
  if (!optimizer.exists() || !optimizer.stepsAll())
    raise(
        invalidArgument("DdpOptions::overlapForward needs DdpOptions::optimizerInBackward with all trained parameters, "
                        "to step each when its average is there"));
  if (options.buffers != Buffers::kOnce)
    raise(invalidArgument(std::string("DdpOptions::overlapForward is given with buffers ") + nameOf(options.buffers) +
                          ", which the next forward would change on their way: use Buffers::kOnce"));
}

}  // namespace

Reducer::Reducer(const torch::nn::Module& module, ProcessGroup group, const DdpOptions& options,
                 const std::shared_ptr<CommHook>& hook, HookClaim claim)
    : list_(module),
      group_(std::move(group)),
      divisor_(options.divisor),
      claim_(std::move(claim)),
      averagedBy_(hook->description()),
      optimizer_(options.optimizerInBackward, list_),
      overlapsForward_(options.overlapForward),
      recorder_(group_.rank(), group_.size()),
      exchange_(list_, group_, limitsFor(*hook, group_, options.buckets), options.unusedParameters,
                orderOf(list_, options.bucketOrder), hook, recorder_),
      buffers_(module, options.buffers),
      tracker_(group_, /*overlapEndsGroup=*/!hook->isByGroup()),
      pending_(list_.trained(), divisor_),
      isAwaited_(list_.trained().size(), true) {
  if (overlapsForward_) checkOverlap(options, optimizer_);
  autograd::refusePlainBackwardInNodes();  // from here on the depth of passes is counted
  hooks_ = std::make_unique<GradientHooks>(
      list_.trained(), [this](size_t index, const at::Tensor& gradient) { beforeGradient(index, gradient); },
      [this](size_t index) { onGradient(index); });
  emptyLoss_ = std::make_unique<EmptyLoss>([this] { onGradient(std::nullopt); });
}

Reducer::~Reducer() {
  hooks_.reset();
  emptyLoss_.reset();
  passFailed();
}

void Reducer::suspend() {
  awaitAverages();  // a step would take gradients that stay local
  MutexLock lock(mutex_);
  ++suspended_;
}

void Reducer::resume() {
  MutexLock lock(mutex_);
  --suspended_;
}

void Reducer::setWeight(double weight) {
  MutexLock lock(mutex_);
  throwIfError(pending_.setWeight(weight));
}

void Reducer::dropWeight() {
  MutexLock lock(mutex_);
  pending_.dropWeight();
}

void Reducer::checkAverages(const char* function) {
  MutexLock lock(mutex_);
  checkNoPass(function);
  if (suspended_ > 0)
    raise(failedPrecondition(std::string(function) +
                             " averages nothing while a guard of noSync() or a LocalSgd lives: end it before"));
}

void Reducer::checkNoPass(const char* function) {
  if (tracker_.role() != Role::kNone)
    raise(failedPrecondition(std::string(function) + " is called between passes, and a backward pass is under way"));
}

void Reducer::checkBetweenPasses(const char* function) {
  awaitAverages();
  MutexLock lock(mutex_);
  checkNoPass(function);
  if (join_.isOpen() && !join_.isOver())
    raise(failedPrecondition(std::string(function) +
                             " cannot be called while a guard of join() lives, as ranks without a batch would not "
                             "take part: call it before join() or after finish()"));
}

std::shared_ptr<void> Reducer::claimForLocalSgd() {
  MutexLock lock(mutex_);
  if (std::exchange(hasLocalSgd_, true))
    raise(failedPrecondition("localSgd() is called while another LocalSgd lives: end that one before"));
  return {nullptr, [self = shared_from_this()](void*) {
            MutexLock lock(self->mutex_);
            self->hasLocalSgd_ = false;
          }};
}

void Reducer::trainsAlone() {
  MutexLock lock(mutex_);
  progress_.hasTrainedAlone = 1;
}

Status Reducer::lastFailure() {
  MutexLock lock(mutex_);
  return failure_;
}

void Reducer::checkForward() const {
  throwIfError(list_.checkDtypes());
  if (at::GradMode::is_enabled()) throwIfError(list_.checkPassIsNoticed());
}

size_t Reducer::pendingPasses() {
  throwIfError(list_.checkDtypes());
  throwIfError(list_.checkNoOtherIsTrained());
  awaitAverages();
  MutexLock lock(mutex_);
  if (tracker_.role() == Role::kNone) pending_.forgetCleared();
  return pending_.count();
}

std::vector<std::string> Reducer::bucketOrder() {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const size_t index : exchange_.order()) names.push_back(list_.trainedNames()[index]);
  return names;
}

DdpStats Reducer::stats() {
  MutexLock lock(mutex_);
  DdpStats stats = recorder_.stats();
  stats.members = group_.members();
  stats.averagedBy = averagedBy_;
  for (size_t index = 0; index < recorder_.isUsed().size(); ++index)
    if (!recorder_.isUsed()[index]) stats.unusedParameters.push_back(list_.trainedNames()[index]);
  return stats;
}

void Reducer::beforeGradient(size_t index, const at::Tensor& gradient) {
  if (overlapsForward_) stepForgotten();
  MutexLock lock(mutex_);
  tracker_.checkMayJoin();  // before the gradient is added to those of the other pass
  if (autograd::Pass::current() == nullptr) exchange_.made().before(index);
  if (tracker_.role() == Role::kNone) pending_.beforeGradient(index, gradient);
}

// No index: the pass has come to the empty loss.
void Reducer::onGradient(std::optional<size_t> index) {
  at::NoGradGuard noGrad;
  if (!index) stepLeft();
  Operations earlier;
  {
    MutexLock lock(mutex_);
    if (index && autograd::Pass::current() == nullptr) exchange_.made().after(*index);
    const bool begins = tracker_.role() == Role::kNone;
    const Role role = join(index);
    if (role == Role::kLeftAlone && index) throwIfError(pending_.addBatch());
    if (role != Role::kAveraged) return;
    if (!begins) return refuseUnless(take(index, /*begins=*/false));
    earlier = beginPass();
  }
  takeMemory(earlier);
  MutexLock lock(mutex_);
  recorder_.turnTo(Activity::kCompute);
  refuseUnless(take(index, /*begins=*/true));
}

PassTracker::Role Reducer::join(std::optional<size_t> index) {
  const bool begins = tracker_.role() == Role::kNone;
  if (begins && suspended_ == 0) throwIfError(join_.checkMayBegin());
  const Role role = tracker_.join(suspended_ > 0 ? Role::kLeftAlone : Role::kAveraged, weak_from_this());
  if (begins && role != Role::kNone) pending_.begin(tracker_.distributed(), index);
  if (role != Role::kAveraged) return role;
  if (begins || phase_ == Phase::kGradients) return role;
  raise(
      failedPrecondition("a callback at the end of a backward pass reached the parameters of a DistributedDataParallel "
                         "while their gradients are being averaged: call backward after the pass"));
}

// From here on the pass begins all of its operations, well or badly. Returns those of a pass before it.
Operations Reducer::beginPass() {
  isBehind_ = true;
  failure_ = exchange_.begin(tracker_.distributed(), join_.report(pending_.count()).isDone);
  keepFirst(failure_, std::exchange(forgotten_, {}));
  isBehind_ = false;
  recorder_.turnTo(Activity::kExposed);
  phase_ = Phase::kGradients;
  return std::exchange(operations_, {});
}

// A pass that failed left its operations to the group, which may still use the buckets. Each has its time limit, and
// its failure is that of its own pass. Waiting also limits how many of them are under way. Where this thread must not
// wait, the pass fails, and its operations get memory of their own.
void Reducer::takeMemory(const Operations& earlier) {
  const Status mayWait = waitForEnd(earlier);
  if (mayWait.ok()) return;
  MutexLock lock(mutex_);
  exchange_.renewMemory();
  buffers_.renewMemory();
  refuseUnless(mayWait);
}

Status Reducer::take(std::optional<size_t> index, bool begins) {
  if (index) {
    TREADLE_RETURN_IF_ERROR(join_.checkMayHaveBatch());
    TREADLE_RETURN_IF_ERROR(pending_.addBatch());
  }
  if (begins) {
    TREADLE_RETURN_IF_ERROR(failure_);
    TREADLE_RETURN_IF_ERROR(list_.checkUnchanged());
    TREADLE_RETURN_IF_ERROR(buffers_.checkUnchanged());
    TREADLE_RETURN_IF_ERROR(join_.checkMayAverage(tracker_.distributed() != nullptr));
    TREADLE_RETURN_IF_ERROR(optimizer_.checkMayStep(tracker_.distributed() != nullptr));
    TREADLE_RETURN_IF_ERROR(pending_.checkMayAverage(join_.isOpen()));
  }
  if (!index) return {};
  TREADLE_RETURN_IF_ERROR(checkAwaited(*index));
  return exchange_.add(*index, operations_);
}

// Fails the pass if it is not OK, also if the node that started a local pass catches this.
void Reducer::refuseUnless(const Status& ok) {
  keepFirst(failure_, ok);
  throwIfError(ok);
}

PassEvents::Step Reducer::passEnds() {
  try {
    const Step step = makeStep();
    if (step != Step::kOneOfSeveral) over(/*hasFailed=*/false);
    return step;
  } catch (...) {
    over(/*hasFailed=*/true);
    throw;
  }
}

PassEvents::Step Reducer::makeStep() {
  at::NoGradGuard noGrad;
  switch (phase()) {
    case Phase::kNone: break;
    case Phase::kGradients: beginLast({}); return Step::kOneOfSeveral;
    case Phase::kLast: beginAgain(); return Step::kOneOfSeveral;
    case Phase::kAgain: return beginNextRound() ? Step::kOneOfSeveral : putOrDrop();
  }
  return Step::kLast;
}

Reducer::Phase Reducer::phase() {
  MutexLock lock(mutex_);
  return phase_;
}

void Reducer::over(bool hasFailed) {
  MutexLock lock(mutex_);
  phase_ = Phase::kNone;
  permit_.reset();
  const Role role = tracker_.end();
  if (role != Role::kNone) pending_.end(hasFailed);
  if (role == Role::kLeftAlone) recorder_.localPassOver();
  if (hasFailed) steps_.clear();
  if (!steps_.any()) optimizer_.forgetOptions();
  if (!steps_.any() && role != Role::kNone) isAwaited_.assign(isAwaited_.size(), true);
  if (steps_.any()) {  // the pass goes on when forward waits for averages
    recorder_.turnTo(Activity::kOutside);
    return;
  }
  recorder_.passOver();
  // The next operation of this rank might meet one of this pass on the others, with as many elements. So there is none,
  // and no rank waits for it.
  if (std::exchange(isBehind_, false)) abandonGroup(group_, whyBehind(), failure_);
}

std::string Reducer::whyBehind() {
  return "could not end an averaged backward pass" +
         (failure_.ok() ? std::string() : " (" + std::string(failure_.message()) + ")");
}

// No gradient comes any more. Buckets with parameters that the loss does not depend on here go now. A pass that failed
// here begins all operations too and cancels none: members match operations by their number, those of the next pass
// must meet those of the next pass on the other ranks, and the last one reports the failure. Then the pass fails on all
// ranks, and they begin nothing more.
void Reducer::beginLast(const Status& failure) {
  MutexLock lock(mutex_);
  phase_ = Phase::kLast;
  isBehind_ = true;
  recorder_.turnTo(Activity::kExposed);
  keepFirst(failure_, failure);
  // Asked before the channel goes, which reports it: a rank that must not wait gets no averages. Held until the pass is
  // over, as the other ranks count on its waits from here on.
  if (group_.size() > 1 && failure_.ok()) keepFirst(failure_, permit_.emplace().status());
  keepFirst(failure_, exchange_.sendRest(!failure_.ok(), operations_));
  if (exchange_.isOutOfStep()) return;
  const size_t batches = pending_.count();
  exchange_.sendChannel({.failed = !failure_.ok(),
                         .active = batches > 0,
                         .weight = pending_.weight(),
                         .join = join_.report(batches),
                         .elapsed = recorder_.elapsed(),
                         .averages = progress_.averages},
                        operations_);
  isBehind_ = failure_.ok();
}

// The averages of buckets to which a gradient was added on some rank after they had gone are replaced, and buffers are
// exchanged. Each rank that has the exact channel does so, also if the pass has failed here since: the numbers of
// operations must match.
void Reducer::beginAgain() {
  Operations operations = operationsOfPass();
  const Status mayWait = waitForChannel(operations);
  MutexLock lock(mutex_);
  phase_ = Phase::kAgain;
  keepFirst(failure_, mayWait);
  if (!mayWait.ok() || operations.empty()) return;
  keepFirst(failure_, firstFailure(operations));
  if (!firstFailure({operations.back()}).ok()) return;
  const Status outcome = conclude();
  keepFirst(failure_, outcome);
  if (outcome.ok()) {
    // A hook makes nothing of operations that have failed: what it would send then would count on the other ranks.
    if (!failure_.ok() && exchange_.areRoundsLeft()) return;
    const Status sent = exchange_.sendAgain(operations_);
    keepFirst(failure_, sent);
    if (!sent.ok()) return;
    const PassRecorder::Copying copying(recorder_);
    buffers_.begin(group_, shares_, operations_);
  }
  // An optimizer within the pass steps on the other ranks from here on.
  isBehind_ = outcome.ok() && (exchange_.areRoundsLeft() || optimizer_.exists());
}

// Returns whether there may be another one. As many on all ranks: the hook and the channel decide.
bool Reducer::beginNextRound() {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok() || !exchange_.areRoundsLeft()) return false;
  }
  const Operations operations = operationsOfPass();
  Status ended = waitForEnd(operations);
  if (ended.ok()) ended = firstFailure(operations);
  MutexLock lock(mutex_);
  keepFirst(failure_, std::move(ended));
  if (failure_.ok()) keepFirst(failure_, exchange_.sendNextRound(operations_));
  isBehind_ = !failure_.ok() || exchange_.areRoundsLeft() || optimizer_.exists();
  return failure_.ok() && exchange_.areRoundsLeft();
}

// All ranks conclude the same from the channel.
Status Reducer::conclude() {
  TREADLE_RETURN_IF_ERROR(exchange_.outcome());
  const ExactChannel& channel = exchange_.channel();
  apart_ = channel.checkSameAverages();
  TREADLE_RETURN_IF_ERROR(apart_);
  const std::vector<RankReport> reports = channel.reports();
  TREADLE_RETURN_IF_ERROR(join_.learn(reports, group_));
  Result<Shares> shares = sharesOf(divisor_, reports);
  TREADLE_RETURN_IF_ERROR(shares.status());
  shares_ = *std::move(shares);
  if (shares_.isEmpty && channel.anyUsed())
    return failedPrecondition(
        "there are gradients, but no rank counts for their average: all weights are 0, or no rank has had a batch "
        "since the last average");
  TREADLE_RETURN_IF_ERROR(exchange_.learn());
  return optimizer_.checkMayStep(channel);
}

// A pass that join() drops is no failure. Its gradients go on all ranks, so that no optimizer makes a step by those of
// this rank alone.
PassEvents::Step Reducer::putOrDrop() {
  {
    MutexLock lock(mutex_);
    if (join_.isDropped()) return clearGradients(), Step::kLast;
  }
  if (!openSteps()) putAverages();
  // An optimizer within the pass has made its step, and counted it.
  return optimizer_.exists() ? Step::kLast : Step::kLastOfAverage;
}

void Reducer::putAverages() {
  if (optimizer_.exists()) stepParts(stepsToMake());
  endAverages();
}

void Reducer::endAverages() {
  const Operations operations = operationsOfPass();
  Status ended = waitForEnd(operations);
  if (ended.ok()) ended = firstFailure(operations);
  MutexLock lock(mutex_);
  keepFirst(failure_, std::move(ended));
  throwIfError(failure_);
  isBehind_ = false;
  const PassRecorder::Copying copying(recorder_);
  recorder_.allEnded();
  if (!optimizer_.exists()) exchange_.put(shares_.factor);
  if (exchange_.channel().anyUsed()) pending_.averaged();  // also if what follows fails
  buffers_.put();
  exchange_.passAveraged();
}

// Not before: the program makes a step if backward() does not throw.
void Reducer::passWentWell() {
  MutexLock lock(mutex_);
  ++progress_.averages;
}

// Those to be waited for: none where the pass has failed, as its averages are of no use.
Operations Reducer::operationsOfPass() {
  MutexLock lock(mutex_);
  return failure_.ok() ? operations_ : Operations();
}

// Waits for nothing before the first step of the end. Between two it makes those that the other ranks wait for.
void Reducer::passFailed() noexcept {
  try {
    at::NoGradGuard noGrad;
    const Phase reached = phase();
    if (reached == Phase::kGradients) beginLast(cancelled("the backward pass failed"));
    if (reached == Phase::kLast) beginAgain();
    if (reached == Phase::kLast || reached == Phase::kAgain)
      while (beginNextRound()) {}
  } catch (...) {}  // the end abandons the group where something has not gone
  over(/*hasFailed=*/true);
}

}  // namespace treadle::ddp
