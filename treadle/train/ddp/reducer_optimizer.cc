// What an optimizer within the pass asks of the reducer: the waits for one bucket after the other, and the steps that
// follow the pass while the next forward pass runs (DdpOptions::overlapForward).

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/train/ddp/reducer.h"

namespace treadle::ddp {

// The exact channel is the last of them. Buckets that an optimizer waits for one by one may still be on their way: then
// only the channel is left in the list.
Status Reducer::waitForChannel(Operations& operations) {
  if (operations.empty()) return {};
  const Operations channel = {operations.back()};
  TREADLE_RETURN_IF_ERROR(waitForEnd(channel));
  if (!mayLeaveBuckets(channel)) return waitForEnd(operations);
  operations = channel;
  return {};
}

bool Reducer::mayLeaveBuckets(const Operations& channel) {
  MutexLock lock(mutex_);
  return optimizer_.exists() && firstFailure(channel).ok() && exchange_.isAllSent();
}

// All ranks know from the exact channel that the pass goes well, and no node of it is left to run: parameters may
// change. Returns whether the steps follow when forward asks for them.
bool Reducer::openSteps() {
  MutexLock lock(mutex_);
  if (!optimizer_.exists() || !failure_.ok()) return false;
  std::vector<bool> isLeft(exchange_.parts());
  for (size_t i = 0; i < list_.trained().size(); ++i)
    if (const std::optional<size_t> part = exchange_.partOf(i)) isLeft[*part] = true;
  steps_.open(exchange_.operationEnds(), std::move(isLeft));
  if (overlapsForward_ || !steps_.any()) optimizer_.clearGradients();
  if (!overlapsForward_ || !steps_.any()) return false;
  optimizer_.keepOptions();
  isAwaited_.assign(list_.trained().size(), false);
  recorder_.passGoesOn();
  return true;
}

std::vector<size_t> Reducer::stepsToMake() {
  MutexLock lock(mutex_);
  return steps_.parts();
}

// Until one fails.
void Reducer::stepParts(const std::vector<size_t>& parts) {
  for (const size_t part : parts) {
    const Operations operations = operationsOfPart(part);
    Status ended = waitForEnd(operations);
    if (ended.ok()) ended = firstFailure(operations);
    if (!stepPart(putPart(part, std::move(ended)))) return;
  }
  MutexLock lock(mutex_);
  if (!failure_.ok() || steps_.any()) return;
  progress_.isTorn = 0;
  ++progress_.averages;
}

Operations Reducer::operationsOfPart(size_t part) {
  MutexLock lock(mutex_);
  const auto [first, end] = steps_.operationsOf(part);
  return {operations_.begin() + static_cast<ptrdiff_t>(first), operations_.begin() + static_cast<ptrdiff_t>(end)};
}

// Returns the parameters whose averages are in `.grad` now.
std::vector<size_t> Reducer::putPart(size_t part, Status ended) {
  MutexLock lock(mutex_);
  if (!ended.ok() && progress_.isTorn != 0)
    ended = ended.withContext("some parameters are stepped and others not, so rebind() or load the last checkpoint");
  keepFirst(failure_, std::move(ended));
  if (!failure_.ok()) return {};
  const PassRecorder::Copying copying(recorder_);
  if (steps_.areAllLeft()) optimizer_.clearGradients();
  steps_.stepped(part);
  return exchange_.put(part, shares_.factor);
}

// Counts as `outside`, as a step after the pass does. Returns whether the pass goes on well.
bool Reducer::stepPart(const std::vector<size_t>& averaged) {
  if (optimizer_.steps(averaged)) {
    {
      MutexLock lock(mutex_);
      progress_.isTorn = 1;
      recorder_.turnTo(Activity::kOutside);
    }
    const Status stepped = optimizer_.step(averaged);
    MutexLock lock(mutex_);
    recorder_.turnTo(Activity::kExposed);
    keepFirst(failure_, stepped);
  }
  MutexLock lock(mutex_);
  return failure_.ok();
}

// ---- after the pass

void Reducer::awaitAverages() {
  stepLeft();
  MutexLock lock(mutex_);
  if (tracker_.role() == Role::kNone) isAwaited_.assign(isAwaited_.size(), true);
}

void Reducer::awaitAverages(const torch::nn::Module& used) {
  if (!overlapsForward_) return;
  std::vector<size_t> places, parts;
  for (const at::Tensor& parameter : used.parameters())
    if (const std::optional<size_t> place = list_.placeOf(parameter)) places.push_back(*place);
  {
    MutexLock lock(mutex_);
    if (tracker_.role() != Role::kNone) return;
    for (const size_t place : places) {
      isAwaited_[place] = true;
      if (isLeft(place)) parts.push_back(*exchange_.partOf(place));
    }
  }
  std::ranges::sort(parts);
  const auto again = std::ranges::unique(parts);
  parts.erase(again.begin(), again.end());
  stepLeft(parts);
}

// Whether the step of the parameter is.
bool Reducer::isLeft(size_t parameter) {
  return steps_.any() && exchange_.partOf(parameter) && steps_.has(*exchange_.partOf(parameter));
}

void Reducer::stepLeft() {
  std::vector<size_t> parts;
  {
    MutexLock lock(mutex_);
    if (tracker_.role() == Role::kNone) parts = steps_.parts();
  }
  stepLeft(parts);
}

// The other ranks step them too, so a rank on which it fails ends the group. On a thread that must not wait everything
// stays as it is.
void Reducer::stepLeft(const std::vector<size_t>& parts) {
  if (parts.empty()) return;
  const io::Executor::Permit permit;
  throwIfError(permit.status());
  at::NoGradGuard noGrad;
  try {
    {
      MutexLock lock(mutex_);
      recorder_.turnTo(Activity::kExposed);
    }
    stepParts(parts);
    if (!areStepsLeft()) endAverages();
  } catch (...) {
    over(/*hasFailed=*/true);
    throw;
  }
  over(/*hasFailed=*/false);
}

// False where the pass has failed.
bool Reducer::areStepsLeft() {
  MutexLock lock(mutex_);
  return failure_.ok() && steps_.any();
}

// Before a pass adds its first gradient, which a step would take. What forward has not waited for is stepped, as on the
// other ranks, and the pass fails.
void Reducer::stepForgotten() {
  {
    MutexLock lock(mutex_);
    if (tracker_.role() != Role::kNone) return;
    forgotten_ = {};  // of a pass that was refused
    if (!steps_.any()) return;
    size_t forgotten = 0;
    while (!isLeft(forgotten)) ++forgotten;
    forgotten_ = wasForgotten(forgotten);
  }
  stepLeft();
}

Status Reducer::checkAwaited(size_t parameter) { return isAwaited_[parameter] ? Status() : wasForgotten(parameter); }

Status Reducer::wasForgotten(size_t parameter) const {
  return failedPrecondition(
      "with DdpOptions::overlapForward, the average of parameter " + list_.nameOf(parameter) +
      " was not waited for before this backward pass, so its loss may come from the value of the step before: call "
      "awaitAverages(module) in forward before each module that computes, and awaitAverages() after it where a pass "
      "does not use all modules. All parameters are stepped now");
}

}  // namespace treadle::ddp
