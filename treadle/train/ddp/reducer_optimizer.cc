// What an optimizer within the pass asks of the reducer: the waits for one bucket after the other.

#include <algorithm>
#include <utility>

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
// change.
void Reducer::stepAsBucketsCome() {
  size_t ended = 0;  // operations of earlier parts
  for (size_t part = 0; const auto operations = operationsOfPart(part, ended); ++part) {
    Status result = waitForEnd(*operations);
    if (result.ok()) result = firstFailure(*operations);
    ended += operations->size();
    stepPart(putPart(part, std::move(result)));
  }
  MutexLock lock(mutex_);
  if (!failure_.ok()) return;
  progress_.isTorn = 0;
  ++progress_.averages;
}

// Counts as `outside`, as a step after the pass does.
void Reducer::stepPart(const std::vector<size_t>& averaged) {
  if (!optimizer_.steps(averaged)) return;
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

// Returns the parameters whose averages are in `.grad` now.
std::vector<size_t> Reducer::putPart(size_t part, Status ended) {
  MutexLock lock(mutex_);
  if (!ended.ok() && progress_.isTorn != 0)
    ended = ended.withContext("some parameters are stepped and others not, so rebind() or load the last checkpoint");
  keepFirst(failure_, std::move(ended));
  if (!failure_.ok()) return {};
  const PassRecorder::Copying copying(recorder_);
  if (part == 0) optimizer_.clearGradients();
  return exchange_.put(part, shares_.factor);
}

// Those up to the part's last one, in the order in which they were sent, without the first `ended`. Nothing: there is
// no such part, or the pass has failed here.
std::optional<Operations> Reducer::operationsOfPart(size_t part, size_t ended) {
  MutexLock lock(mutex_);
  if (!failure_.ok() || part == exchange_.parts()) return std::nullopt;
  const size_t end = std::max(ended, exchange_.operationsOf(part));
  return Operations(operations_.begin() + static_cast<ptrdiff_t>(ended),
                    operations_.begin() + static_cast<ptrdiff_t>(end));
}

}  // namespace treadle::ddp
