#pragma once
// A mutex, its scoped lock and a condition variable that clang's thread-safety analysis understands: data says which
// lock guards it (TREADLE_GUARDED_BY) and a function which lock its caller must hold (TREADLE_REQUIRES). Other
// compilers see plain std::mutex behaviour.

#include <condition_variable>
#include <mutex>

#include "treadle/core/base/clock.h"

#if defined(__clang__)
#define TREADLE_ANNOTATE(x) __attribute__((x))
#else
#define TREADLE_ANNOTATE(x)
#endif
#define TREADLE_GUARDED_BY(x) TREADLE_ANNOTATE(guarded_by(x))
#define TREADLE_REQUIRES(x) TREADLE_ANNOTATE(requires_capability(x))
// Of a function that the analysis cannot follow: it lets go of a lock that its caller holds, takes one that another
// function lets go of, or is a predicate of a template that knows nothing of the lock.
#define TREADLE_UNCHECKED_LOCKS TREADLE_ANNOTATE(no_thread_safety_analysis)

namespace treadle {

class TREADLE_ANNOTATE(capability("mutex")) Mutex {
 public:
  void lock() TREADLE_ANNOTATE(acquire_capability()) { mutex_.lock(); }
  void unlock() TREADLE_ANNOTATE(release_capability()) { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

class TREADLE_ANNOTATE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TREADLE_ANNOTATE(acquire_capability(mutex)) : lock_(mutex.mutex_) {}
  ~MutexLock() TREADLE_ANNOTATE(release_capability()) = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() TREADLE_ANNOTATE(release_capability()) { lock_.unlock(); }
  void lock() TREADLE_ANNOTATE(acquire_capability()) { lock_.lock(); }

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

// Waits are woken without cause too: callers loop over their condition.
class CondVar {
 public:
  void wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  // False when the deadline has passed. kNever waits for a notification alone.
  bool waitUntil(MutexLock& lock, TimePoint deadline) {
    if (deadline == kNever) return condition_.wait(lock.lock_), true;
    return condition_.wait_until(lock.lock_, deadline) == std::cv_status::no_timeout;
  }
  void notifyOne() { condition_.notify_one(); }
  void notifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace treadle
