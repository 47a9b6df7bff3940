// How offers end: with the result of their sums, or before by a deadline, by cancelling, or with the group.

#include <algorithm>
#include <atomic>

#include "treadle/core/base/log.h"
#include "treadle/core/group/fusion.h"
#include "treadle/core/group/group_core.h"
#include "treadle/core/io/serving.h"

namespace treadle::group {
namespace {

// A sum that has just begun lasts a second at least, then asks for another one, and reports the members that it waits
// for. That error is better than the one of a tensor that gives up before.
constexpr Duration kReportTime = 3 * kAnswerTime;

// Wakes up the thread that waits for an event, however the event ends.
class Waker {
 public:
  explicit Waker(std::atomic<bool>& done) : done_(done) {}
  ~Waker() {
    done_.store(true);
    done_.notify_all();
  }
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

 private:
  std::atomic<bool>& done_;
};

}  // namespace

// One timer, at the earliest deadline or report of all when it was set. It is left running when that tensor ends.
void Fusion::watch(TimePoint due) {
  if (due >= timerDue_) return;
  if (timerDue_ != kNever) reactor_.cancel(timer_);
  timerDue_ = due;
  timer_ = reactor_.at(due, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (self) self->use(self->inbox_.pushFirst([fusion = self.get()] { fusion->onTimer(); }));
  });
}

void Fusion::onTimer() {
  if (!failure_.ok()) return;
  timerDue_ = kNever;
  const TimePoint now = Clock::now();
  TimePoint next = kNever;
  std::vector<Offered> late;
  for (const auto& [number, offered] : offered_) {
    const bool sumsHaveLimits = !book_.isOpen(number) && offered->inUse();
    if (offered->ended || sumsHaveLimits) continue;
    if (offered->due <= now) {
      late.push_back(offered);
    } else {
      next = std::min(next, offered->due);
    }
  }
  for (const Offered& offered : late) onLate(offered);
  if (root_) {
    for (const std::string& line : root_->stalls(now, stallReport_)) logWarn(link_.member(0).name, line);
    next = std::min(next, root_->nextStall(stallReport_));
  }
  watch(next);
}

// Rank 0 knows which members have not offered it, and notifies all; a batch knows which have not begun it. If no answer
// comes in time, this member gives up alone.
void Fusion::onLate(const Offered& offered) {
  const std::string limit = toText(offered->limit.timeout),
                    late = textOf(offered->name, group_) + " was not done in " + limit + ": ";
  const bool isOpen = book_.isOpen(offered->number);
  if (isOpen && offered->withdrawn)
    return failOffer(
        offered, deadlineExceeded(late + "no answer has come from " + link_.nameOf(0) + ", which matches the names"));
  if (!isOpen && offered->awaitsBatch)
    return failOffer(offered,
                     deadlineExceeded(late + "it is summed together with tensors that have longer limits, and that "
                                             "sum has not ended"));
  if (isOpen) {
    offered->withdrawn = true;
    book_.withdraw(offered->number, deadlineExceeded(link_.nameOf(link_.self()) + " gave up " +
                                                     textOf(offered->name, group_) + " after " + limit));
  } else {
    offered->awaitsBatch = true;
  }
  offered->due = Clock::now() + (isOpen ? kAnswerTime : kReportTime);
  watch(offered->due);
}

// Returns when the memory is free, but not on a thread that polls or reads. Waits also where Blocking refuses, as
// GroupCore::cancel does: the thread that has the turn handles this event next.
void Fusion::cancel(const Offered& offered) {
  auto done = std::make_shared<std::atomic<bool>>(false);
  use(inbox_.pushFirst([this, offered, done] {
    const Waker waker(*done);
    onCancel(offered);
  }));
  if (!io::Serving::here()) {
    io::Executor::Blocking blocking;
    done->wait(false);
  }
  offered->cancelSums();  // each returns when its memory is free
}

void Fusion::onCancel(const Offered& offered) {
  const Status why = cancelled(link_.nameOf(link_.self()) + " cancelled " + textOf(offered->name, group_));
  if (offered->ended) return;
  if (offered->number == OfferedTensor::kNoNumber) {  // `onOffer` comes next
    offered->failure = why;
    offered->release(why);
    return end(*offered, why);
  }
  giveUp(offered, why);
  offered->cancelSums();
}

void Fusion::onFail(const Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  if (timerDue_ != kNever) reactor_.cancel(timer_);
  book_ = {};
  for (auto next = offered_.begin(); next != offered_.end();) {
    const Offered offered = (next++)->second;
    failOffer(offered, why);
  }
}

// From here on nothing that has come is used, also not within this event.
void Fusion::breakOff(const Status& why) {
  onFail(why);
  abandon_(why);
}

// This member alone knows of the failure so far.
void Fusion::giveUp(const Offered& offered, const Status& why) {
  if (book_.isOpen(offered->number) && !std::exchange(offered->withdrawn, true)) book_.withdraw(offered->number, why);
  failOffer(offered, why);
}

void Fusion::failOffer(const Offered& offered, const Status& why) {
  if (offered->failure.ok()) {
    offered->failure = why;
    offered->release(why);
  }
  settle(offered);
}

// Ends what has ended, and drops what nobody will speak of any more. A tensor that has failed may still be ordered, as
// long as rank 0 does not know of it: then this member refuses that operation.
void Fusion::settle(const Offered& offered) {
  const bool isDone = !book_.isOpen(offered->number) && offered->parts == 0;
  const bool isOver = offered->failure.ok() ? isDone : !offered->inUse();
  // The count before the future, like the name: a thread that waits for the future may offer another tensor.
  if (isDone && (isOver || offered->ended) && offered_.erase(offered->number) > 0) release(nullptr, 1);
  if (isOver) end(*offered, offered->failure);
}

// The name before the future: a thread that waits for the future may offer the name again.
void Fusion::end(OfferedTensor& offered, const Status& why) {
  if (std::exchange(offered.ended, true)) return;
  release(&offered.name, 0);
  offered.state->complete(why.ok() ? Result<io::Unit>(io::Unit{}) : Result<io::Unit>(why));
}

}  // namespace treadle::group
