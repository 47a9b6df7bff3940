#pragma once
// Events for one receiver that handles them one at a time, in order, on whatever thread brings them: nobody waits for
// a lock while another thread computes. Who pushes into an idle inbox gets the turn, and handles events until there
// are none; a turn that would take long can be left to a task instead. Any thread may call anything.

#include <deque>
#include <optional>

#include "treadle/core/base/mutex.h"

namespace treadle::group {

enum class Turn {
  kNone,  // somebody else has it
  kRun,   // the caller has it, until `next` says that there is no more
  kPost,  // the caller must see to it that somebody calls `takePosted`
};

template <class Event>
class Inbox {
 public:
  // `mayPost`: handling it may take long.
  Turn push(Event event, bool mayPost) {
    MutexLock lock(mutex_);
    events_.push_back({std::move(event), mayPost});
    if (state_ != State::kIdle) return Turn::kNone;
    state_ = mayPost ? State::kPosted : State::kRunning;
    return mayPost ? Turn::kPost : Turn::kRun;
  }

  // In front of all others, and at once even when a task has been left the turn but does not run yet.
  Turn pushFirst(Event event) {
    MutexLock lock(mutex_);
    events_.push_front({std::move(event), false});
    if (state_ == State::kRunning) return Turn::kNone;
    state_ = State::kRunning;
    return Turn::kRun;
  }

  // For the task: false when it has nothing to do any more.
  bool takePosted() {
    MutexLock lock(mutex_);
    if (state_ != State::kPosted) return false;
    state_ = State::kRunning;
    return true;
  }

  // For who has the turn: the next event. Without one the turn has ended, for good (kNone) or because only a task may
  // go on (kPost).
  std::optional<Event> next(bool inTask, Turn& turn) {
    MutexLock lock(mutex_);
    turn = Turn::kRun;
    if (!events_.empty() && (inTask || !events_.front().mayPost)) {
      Event event = std::move(events_.front().event);
      events_.pop_front();
      return event;
    }
    state_ = events_.empty() ? State::kIdle : State::kPosted;
    turn = events_.empty() ? Turn::kNone : Turn::kPost;
    turnEnded_.notifyAll();
    return std::nullopt;
  }

  // Waits until nobody is handling events, which the one who has the turn must not.
  void waitForTurnToEnd() {
    MutexLock lock(mutex_);
    while (state_ == State::kRunning) turnEnded_.wait(lock);
  }

 private:
  enum class State { kIdle, kPosted, kRunning };
  struct Entry {
    Event event;
    bool mayPost;
  };

  Mutex mutex_;
  CondVar turnEnded_;
  std::deque<Entry> events_ TREADLE_GUARDED_BY(mutex_);
  State state_ TREADLE_GUARDED_BY(mutex_) = State::kIdle;
};

}  // namespace treadle::group
