#pragma once
// Divides the time of a rank among what it does: a moment belongs to one activity, so the parts of a step add up to its
// length by construction. It does not read the clock: the caller gives the time. One thread at a time.

#include <utility>

#include "treadle/train/ddp/ddp_stats.h"

namespace treadle::ddp {

// The members of DdpTimes.
enum class Activity { kOutside, kCompute, kCopies, kExposed };

class StepClock {
 public:
  explicit StepClock(TimePoint now) : since_(now) {}

  // What happens from `now` on, which is not before earlier ones. Returns what has happened before.
  Activity turnTo(Activity next, TimePoint now) {
    partOf(activity_) += now - since_;
    since_ = now;
    return std::exchange(activity_, next);
  }

  // Of the step that is under way, until the last turnTo().
  const DdpTimes& times() const { return times_; }
  // It ends there, and the next one begins.
  DdpTimes endStep() { return std::exchange(times_, DdpTimes()); }

 private:
  Duration& partOf(Activity activity) {
    switch (activity) {
      case Activity::kOutside: return times_.outside;
      case Activity::kCompute: return times_.compute;
      case Activity::kCopies: return times_.copies;
      case Activity::kExposed: break;
    }
    return times_.exposed;
  }

  Activity activity_ = Activity::kOutside;
  TimePoint since_;
  DdpTimes times_;
};

}  // namespace treadle::ddp
