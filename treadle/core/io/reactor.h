#pragma once
// Waits for sockets and timers (epoll(7)) and calls who asked. Whoever calls `poll` does the calling back; one thread
// polls at a time (the executor sees to that), while any thread may add, change and remove. Callbacks are short: they
// read what is there and leave work to the executor. They cannot wait (serving.h).

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "treadle/core/base/clock.h"
#include "treadle/core/base/mutex.h"
#include "treadle/core/base/status.h"
#include "treadle/core/base/unique_function.h"
#include "treadle/core/io/fd.h"

namespace treadle::io {

class EventHandler {
 public:
  virtual ~EventHandler() = default;
  // `events` are EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR. Level-triggered: what is left comes again.
  virtual void onEvents(uint32_t events) = 0;
};

class Reactor {
 public:
  // `spinTimeout`: how long `poll` looks for more before it sleeps, from the last event on. For servers that should
  // answer at once and may keep a core busy for it; zero: it sleeps.
  static Result<std::unique_ptr<Reactor>> make(Duration spinTimeout = Duration::zero());

  // Calls `handler` for `interest` on `fd` until `remove`; the reactor holds the handler. A callback that has begun
  // may still run when `remove` returns. Remove before the descriptor is closed: its number may be another's by then.
  // Each of the three is one lock and one system call. EPOLLHUP and EPOLLERR are told even for an interest of 0.
  Status add(int fd, uint32_t interest, std::shared_ptr<EventHandler> handler);
  void change(int fd, uint32_t interest);
  void remove(int fd);

  using TimerId = uint64_t;
  // Calls `callback` once, not before `due`; at most a millisecond after it when the thread is free. Wakes the poller
  // only when it sleeps and this is the first to come due.
  TimerId at(TimePoint due, UniqueFunction<void()> callback);
  // False when it has fired, is firing or never was. A callback that has begun may still run.
  bool cancel(TimerId timer);

  // Calls handler->onEvents(EPOLLOUT) the next time that `poll` is called, or now that it waits. Wakes the poller only
  // when it sleeps: handlers that are busy with each other's output pay nothing.
  void soon(std::shared_ptr<EventHandler> handler);
  // For a thread that is about to be busy with something else: does now what `soon` was asked for over `age` ago.
  void runSoon(Duration age = {});

  // From a callback: `poll` looks for more until then, or until something comes, before it sleeps.
  void stayAwake(TimePoint until) { busyUntil_ = std::max(busyUntil_, until); }

  // Waits for the next events or timer, calls back, returns. Returns early after `wake`. Takes up to 64 events at a
  // time; three uncontended locks for one event. False when something was there at once.
  bool poll();
  void wake();

 private:
  Reactor(Fd epoll, Fd wakeup, Duration spinTimeout)
      : epoll_(std::move(epoll)), wakeup_(std::move(wakeup)), spinTimeout_(spinTimeout) {}

  using Events = std::array<epoll_event, 64>;
  int waitFor(Events& events);
  TimePoint beforeWait();
  void runTimers();
  void dispatch(const epoll_event& event);

  const Fd epoll_, wakeup_;
  const Duration spinTimeout_;
  TimePoint busyUntil_{};  // of the thread that polls
  Mutex mutex_;
  std::unordered_map<int, std::shared_ptr<EventHandler>> handlers_ TREADLE_GUARDED_BY(mutex_);
  std::map<std::pair<TimePoint, TimerId>, UniqueFunction<void()>> timers_ TREADLE_GUARDED_BY(mutex_);
  std::unordered_map<TimerId, TimePoint> due_ TREADLE_GUARDED_BY(mutex_);
  TimerId lastTimer_ TREADLE_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<EventHandler>> soon_ TREADLE_GUARDED_BY(mutex_);
  std::atomic<bool> waiting_ = false;         // in epoll_wait; set with the lock held
  std::atomic<Duration::rep> soonSince_ = 0;  // 0: nothing is asked for
};

}  // namespace treadle::io
