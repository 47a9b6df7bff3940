#pragma once
// What tests wait with instead of sleeping: an event that happens once, and a count that is reached. Every wait is
// bounded, and one that ends without its event fails the test. A bound ends a hang; no test asserts that something is
// fast.

#include <functional>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "treadle/core/base/mutex.h"

namespace treadle::test {

// Far beyond what anything here takes on the slowest machine: reached only when something hangs.
inline constexpr Duration kHangs = std::chrono::seconds(60);
inline TimePoint patience() { return deadlineAfter(kHangs); }

// The failure of a wait whose event did not come in time. It is recorded if nothing was wrong before: no other failure
// may be flaky. tools/reruns.py looks for the record and for the text.
inline ::testing::AssertionResult waitedInVain(const std::string& why) {
  if (!::testing::Test::HasFailure()) ::testing::Test::RecordProperty("waited_in_vain", "yes");
  return ::testing::AssertionFailure() << "waited in vain: " << why;
}

// For a loop that looks for its event by itself: whether it may look again.
inline ::testing::AssertionResult isInTime(TimePoint deadline) {
  return Clock::now() < deadline ? ::testing::AssertionSuccess() : waitedInVain("the time is over");
}

// Counts up; `waitFor(n)` returns when n is reached.
class Counter {
 public:
  void add(int more = 1) {
    MutexLock lock(mutex_);
    count_ += more;
    changed_.notifyAll();
  }
  int count() const {
    MutexLock lock(mutex_);
    return count_;
  }
  void waitFor(int wanted) {
    TimePoint deadline = deadlineAfter(kHangs);
    MutexLock lock(mutex_);
    while (count_ < wanted)
      if (!changed_.waitUntil(lock, deadline) && count_ < wanted) {
        ADD_FAILURE() << waitedInVain(std::to_string(count_) + " of " + std::to_string(wanted)).message();
        return;
      }
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  int count_ = 0;
};

// Closed until somebody opens it, then open for good.
class Gate {
 public:
  void open() { opened_.add(); }
  bool isOpen() const { return opened_.count() > 0; }
  void wait() { opened_.waitFor(1); }

 private:
  Counter opened_;
};

// For memory, references and whatever else has to be released: looks again and again until it is. That it is not is a
// leak and no matter of time.
inline ::testing::AssertionResult eventuallyReleased(const std::function<bool()>& isReleased) {
  TimePoint deadline = deadlineAfter(kHangs);
  while (!isReleased()) {
    if (Clock::now() > deadline) return ::testing::AssertionFailure() << "it was not released";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ::testing::AssertionSuccess();
}

// For what tells nobody when it changes, counters as a rule: looks again and again until it is true.
inline ::testing::AssertionResult eventually(const std::function<bool()>& isTrue) {
  return eventuallyReleased(isTrue) ? ::testing::AssertionSuccess() : waitedInVain("it did not become true");
}

// For an event that must come before a time limit passes, which a busy machine may prevent. Calls `attempt(limit)` with
// twice the limit each time until it succeeds, and returns the last outcome, a bool or an AssertionResult. `attempt`
// asserts what holds on a slow machine too by EXPECT: a failure of these ends the attempts.
template <class F>
::testing::AssertionResult withLongerLimits(Duration first, F attempt) {
  auto outcome = ::testing::AssertionFailure() << "no limit was tried";
  for (Duration limit = first; !outcome && limit <= kHangs && !::testing::Test::HasFailure(); limit *= 2)
    outcome = ::testing::AssertionResult(attempt(limit));
  return outcome;
}

}  // namespace treadle::test
