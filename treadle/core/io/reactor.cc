#include "treadle/core/io/reactor.h"

#include <sys/eventfd.h>

#include <cerrno>

#include "treadle/core/base/check.h"
#include "treadle/core/io/serving.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/io/spin.h"

namespace treadle::io {
namespace {

constexpr Duration kAtOnce = std::chrono::microseconds(10);  // a system call takes less, going to sleep more

}  // namespace

Result<std::unique_ptr<Reactor>> Reactor::make(Duration spinTimeout) {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC)), wakeup(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wakeup.valid())
    return errnoStatus(Code::kResourceExhausted, "no file descriptor is left for the event loop", errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = wakeup.get();
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wakeup.get(), &event) != 0)
    return errnoStatus(Code::kInternal, "the event loop cannot be set up", errno);
  return std::unique_ptr<Reactor>(
      new Reactor(std::move(epoll), std::move(wakeup), spinTimeout));  // NOLINT: private constructor
}

Status Reactor::add(int fd, uint32_t interest, std::shared_ptr<EventHandler> handler) {
  MutexLock lock(mutex_);
  epoll_event event{};
  event.events = interest;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return errnoStatus(Code::kResourceExhausted, "the event loop takes no more sockets", errno);
  handlers_[fd] = std::move(handler);
  return {};
}

void Reactor::change(int fd, uint32_t interest) {
  MutexLock lock(mutex_);
  if (!handlers_.contains(fd)) return;
  epoll_event event{};
  event.events = interest;
  event.data.fd = fd;
  TREADLE_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0, "a known socket left the epoll set");
}

void Reactor::remove(int fd) {
  std::shared_ptr<EventHandler> last;  // destroyed after the lock is let go: its destructor may come back here
  MutexLock lock(mutex_);
  auto found = handlers_.find(fd);
  if (found == handlers_.end()) return;
  last = std::move(found->second);
  handlers_.erase(found);
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  lock.unlock();
}

Reactor::TimerId Reactor::at(TimePoint due, UniqueFunction<void()> callback) {
  MutexLock lock(mutex_);
  TimerId id = ++lastTimer_;
  bool first = timers_.empty() || due < timers_.begin()->first.first;
  timers_.emplace(std::pair(due, id), std::move(callback));
  due_.emplace(id, due);
  // Who polls and does not sleep looks at the timers by itself before it does.
  bool asleep = first && waiting_.exchange(false);
  lock.unlock();
  if (asleep) wake();
  return id;
}

bool Reactor::cancel(TimerId timer) {
  UniqueFunction<void()> dropped;  // destroyed after the lock is let go
  MutexLock lock(mutex_);
  auto found = due_.find(timer);
  if (found == due_.end()) return false;
  auto entry = timers_.find({found->second, timer});
  dropped = std::move(entry->second);
  timers_.erase(entry);
  due_.erase(found);
  lock.unlock();
  return true;
}

void Reactor::soon(std::shared_ptr<EventHandler> handler) {
  MutexLock lock(mutex_);
  if (soon_.empty()) soonSince_.store(Clock::now().time_since_epoch().count());
  soon_.push_back(std::move(handler));
  bool asleep = waiting_.exchange(false);
  lock.unlock();
  if (asleep) wake();
}

void Reactor::runSoon(Duration age) {
  Duration::rep since = soonSince_.load();
  if (since == 0 || Clock::now().time_since_epoch() - Duration(since) < age) return;
  std::vector<std::shared_ptr<EventHandler>> handlers;
  {
    MutexLock lock(mutex_);
    handlers.swap(soon_);
    soonSince_.store(0);
  }
  Serving here;
  for (const auto& handler : handlers) handler->onEvents(EPOLLOUT);
}

// When to wake up: at the next timer, or at once when there is something to do.
TimePoint Reactor::beforeWait() {
  MutexLock lock(mutex_);
  if (!soon_.empty()) return TimePoint();
  waiting_.store(true);
  return timers_.empty() ? kNever : timers_.begin()->first.first;
}

// One at a time with the lock let go: a callback may set and cancel timers, and the next one due is looked up
// anew.
void Reactor::runTimers() {
  for (;;) {
    UniqueFunction<void()> callback;
    {
      MutexLock lock(mutex_);
      if (timers_.empty() || timers_.begin()->first.first > Clock::now()) return;
      auto first = timers_.begin();
      callback = std::move(first->second);
      due_.erase(first->first.second);
      timers_.erase(first);
    }
    callback();
  }
}

// The handler is held while it runs, so that `remove` on another thread does not destroy it under its feet.
void Reactor::dispatch(const epoll_event& event) {
  if (event.data.fd == wakeup_.get()) {
    uint64_t count;
    (void)!::read(wakeup_.get(), &count, sizeof count);
    return;
  }
  std::shared_ptr<EventHandler> handler;
  {
    MutexLock lock(mutex_);
    auto found = handlers_.find(event.data.fd);
    if (found != handlers_.end()) handler = found->second;
  }
  if (handler) handler->onEvents(event.events);
}

int Reactor::waitFor(Events& events) {
  const TimePoint due = beforeWait();
  auto look = [&](int milliseconds) {
    return ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), milliseconds);
  };
  int count = 0;
  if (Clock::now() < busyUntil_) {
    Spin spin(busyUntil_ - Clock::now());
    do {
      count = look(0);
    } while (count == 0 && Clock::now() < due && spin.again());
  }
  if (count == 0) count = look(millisecondsUntil(due));
  waiting_.store(false);
  if (count > 0) busyUntil_ = spinTimeout_ > Duration::zero() ? Clock::now() + spinTimeout_ : TimePoint();
  return count;
}

bool Reactor::poll() {
  runSoon();
  Events events;
  const TimePoint begin = Clock::now();
  int count = waitFor(events);
  const bool waited = Clock::now() - begin > kAtOnce;
  Serving here;
  for (int i = 0; i < count; ++i) dispatch(events[static_cast<size_t>(i)]);
  runTimers();
  return waited;
}

void Reactor::wake() {
  uint64_t one = 1;
  (void)!::write(wakeup_.get(), &one, sizeof one);
}

}  // namespace treadle::io
