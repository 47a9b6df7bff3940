#pragma once
// The thread pool of one worker. One of its threads polls the reactor and runs the task (a handler, as a rule) that
// what it read gave rise to itself, so that no other thread is woken for a message. Another thread takes over the
// polling when the task is about to wait (`Blocking`) or when the watchdog sees that nobody has polled for `longRun`:
// so replies, heartbeats and acknowledgements always move, however long tasks run.
//
// Limits: at most `maxConcurrentHandlers` tasks run at a time and the rest queue; a waiting task does not count as
// running, and at most `maxBlockedHandlers` wait at a time. Idle threads sleep and the watchdog is parked while nothing
// runs.
//
// Budget per task run by the polling thread: three uncontended lock operations, no wake-up, no system call.
//
// `post` may be called from any thread; `stop` and the destructor from any but the pool's own.

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/base/unique_function.h"
#include "treadle/core/io/reactor.h"

namespace treadle::io {

struct ExecutorOptions {
  int maxConcurrentHandlers = 0;  // 0: as many as there are cores, at least 2
  int maxBlockedHandlers = 1024;  // tasks that wait at a time: each costs a thread, so this bounds the threads
  Duration longRun = std::chrono::milliseconds(1);  // how long nobody may poll before the watchdog brings in a thread

  Status validate() const;
};

class Executor {
 public:
  using Task = UniqueFunction<void()>;

  // The reactor must outlive the executor. `options` must be valid.
  Executor(Reactor& reactor, ExecutorOptions options);
  ~Executor();

  // Tasks begin in the order in which they were posted. One must not throw: an exception ends the process. After `stop`
  // it is dropped.
  void post(Task task);

  // Called on the pool's thread after each task, to put away what it left there. Set once, before the first task is
  // posted; must not throw.
  void setAfterTask(std::function<void()> hook);

  // Lets running tasks end, drops the queued ones and joins the threads. Idempotent.
  void stop();

  // Tasks that run, wait or are queued.
  int active() const;

  // Holds one of the `maxBlockedHandlers` places before the task starts the work that it will wait for: while it lives,
  // no `Blocking` of this thread fails. Permits of one thread share a place, which the last of them gives back. It may
  // be destroyed on any thread, while the executor lives. No effect outside a pool thread, or within a `Blocking`.
  class Permit {
   public:
    Permit();
    ~Permit();
    Permit(const Permit&) = delete;
    Permit& operator=(const Permit&) = delete;
    // ResourceExhausted when too many tasks wait already, or this thread polls or reads (serving.h): then do not wait.
    const Status& status() const { return status_; }

   private:
    Executor* executor_ = nullptr;
    std::shared_ptr<std::atomic<int>> ofThread_;  // the permits of the thread that made it
    Status status_;
  };

  // While it lives, the pool treats this thread's task as blocked. No effect on threads of no pool, or when nested.
  class Blocking {
   public:
    Blocking();
    ~Blocking();
    Blocking(const Blocking&) = delete;
    Blocking& operator=(const Blocking&) = delete;
    // The same. Takes a place itself unless the thread holds a Permit.
    const Status& status() const { return status_; }

   private:
    Executor* executor_ = nullptr;
    bool takesPlace_ = false;
    Status status_;
  };

  // Whether the calling thread belongs to a pool, of this worker or of another one.
  static bool onPoolThread();

  // For a task that will run for about this long without waiting: lets another thread poll now rather than when the
  // watchdog sees it, if that is worth a wake-up. Free of effect on other threads.
  static void expectRunTime(Duration expected);

  // Whether the calling thread belongs to a pool that has more tasks to begin at once: then what this one has to say
  // may wait a moment for the others'.
  static bool moreToRun();

  // Posts for those who may outlive the executor: once it is gone their tasks are dropped.
  class Door {
   public:
    explicit Door(Executor& executor) : executor_(&executor) {}
    void post(Task task);
    void shut();

   private:
    Mutex mutex_;
    Executor* executor_ TREADLE_GUARDED_BY(mutex_);
  };
  const std::shared_ptr<Door>& door() const { return door_; }

 private:
  void take(Task& task);  // leaves it where it is after `stop`
  void threadLoop();
  void runOne(MutexLock& lock) TREADLE_REQUIRES(mutex_) TREADLE_UNCHECKED_LOCKS;
  void pollOnce(MutexLock& lock) TREADLE_REQUIRES(mutex_) TREADLE_UNCHECKED_LOCKS;
  void bringInThread() TREADLE_REQUIRES(mutex_);
  int wantedThreads() const TREADLE_REQUIRES(mutex_);
  bool mayRun() const TREADLE_REQUIRES(mutex_) { return !ready_.empty() && running_ < options_.maxConcurrentHandlers; }
  Status takePlace() TREADLE_REQUIRES(mutex_);
  Status enterBlocking(bool takesPlace);
  void leaveBlocking(bool givesPlace);
  void watch();

  Reactor& reactor_;
  const ExecutorOptions options_;
  const std::shared_ptr<Door> door_;

  mutable Mutex mutex_;
  CondVar wakeIdle_, wakeWatchdog_;
  std::deque<Task> ready_ TREADLE_GUARDED_BY(mutex_);
  std::atomic<size_t> readyCount_ = 0;  // the size of ready_
  std::function<void()> afterTask_ TREADLE_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ TREADLE_GUARDED_BY(mutex_);
  int running_ TREADLE_GUARDED_BY(mutex_) = 0;
  int blocked_ TREADLE_GUARDED_BY(mutex_) = 0;
  int places_ TREADLE_GUARDED_BY(mutex_) = 0;  // tasks that hold one of the `maxBlockedHandlers` places
  int idle_ TREADLE_GUARDED_BY(mutex_) = 0;
  int starting_ TREADLE_GUARDED_BY(mutex_) = 0;  // threads that were made and have done nothing yet
  bool polling_ TREADLE_GUARDED_BY(mutex_) = false;
  TimePoint toldOfNone_ TREADLE_GUARDED_BY(mutex_);  // when the log had it that there is no thread
  TimePoint moreCame_ TREADLE_GUARDED_BY(mutex_);    // when a poll found something at once
  bool stopping_ TREADLE_GUARDED_BY(mutex_) = false;
  bool watchdogParked_ TREADLE_GUARDED_BY(mutex_) = false;
  uint64_t progress_ TREADLE_GUARDED_BY(mutex_) = 0;  // polls begun and tasks taken
  std::thread watchdog_;
};

// Where a future's continuations run: on an executor, dead or alive, or on none.
class ContinueOn {
 public:
  ContinueOn() = default;
  ContinueOn(Executor* executor) : door_(executor != nullptr ? executor->door() : nullptr) {}  // NOLINT: implicit

  explicit operator bool() const { return door_ != nullptr; }
  void post(Executor::Task task) const { door_->post(std::move(task)); }

 private:
  std::shared_ptr<Executor::Door> door_;
};

}  // namespace treadle::io
