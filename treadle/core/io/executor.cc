#include "treadle/core/io/executor.h"

#include <algorithm>
#include <system_error>

#include "treadle/core/base/check.h"
#include "treadle/core/base/log.h"
#include "treadle/core/io/serving.h"

// Leader and followers (D. C. Schmidt et al., "Leader/Followers", PLoP 2000): the thread that polls is the
// leader, and it runs what it read instead of handing it over. Handing over would cost a futex wake-up and
// the other thread's start on each message, more than most handlers take. What the pattern leaves open is a
// leader that does not come back: that is what `Blocking` and the watchdog are for.
namespace treadle::io {
namespace {

// After so many ticks without anything to do the watchdog parks, so that it costs nothing while a worker is idle and
// no wake-up per task while one is busy.
constexpr int kQuietTicks = 100;

// How long small messages wait for each other while tasks are run one after the other.
constexpr Duration kSoonEnough = std::chrono::microseconds(20);

// A few times what it costs to wake a thread; and how long a message may stay unread when none came of late before the
// one before it was done with.
constexpr Duration kWorthAThread = std::chrono::microseconds(50), kMayStayUnread = std::chrono::microseconds(250);
constexpr Duration kOfLate = std::chrono::milliseconds(1);

constexpr Duration kToldAgainAfter = std::chrono::seconds(1);

thread_local Executor* poolOfThread = nullptr;
thread_local bool inPoll = false;
thread_local bool blocking = false;  // the thread's task is in a Blocking
// Permits that the thread has made and that live. Written under the executor's mutex. Shared with them, as they may
// outlive the thread.
thread_local const auto permits = std::make_shared<std::atomic<int>>(0);

}  // namespace

Status ExecutorOptions::validate() const {
  if (maxConcurrentHandlers < 0 || maxBlockedHandlers < 1 || longRun <= Duration::zero())
    return invalidArgument("the executor needs maxConcurrentHandlers >= 0, maxBlockedHandlers >= 1 and longRun > 0");
  return {};
}

Executor::Executor(Reactor& reactor, ExecutorOptions options)
    : reactor_(reactor),
      options_([&] {
        TREADLE_CHECK(options.validate().ok(), "executor options are validated before they get here");
        int cores = static_cast<int>(std::max(2U, std::thread::hardware_concurrency()));
        if (options.maxConcurrentHandlers == 0) options.maxConcurrentHandlers = cores;
        return options;
      }()),
      door_(std::make_shared<Door>(*this)) {
  MutexLock lock(mutex_);
  bringInThread();
  watchdog_ = std::thread([this] { watch(); });
}

Executor::~Executor() {
  door_->shut();
  stop();
}

// What is dropped goes with the lock let go: it may hold promises, whose continuations post here.
void Executor::Door::post(Task task) {
  MutexLock lock(mutex_);
  if (executor_ != nullptr) executor_->take(task);
}

void Executor::Door::shut() {
  MutexLock lock(mutex_);
  executor_ = nullptr;
}

// The queue of ready tasks has no bound: answers and notices must be read however many requests came before
// them, and on one socket they cannot be told apart before they are read.
void Executor::post(Task task) { take(task); }

void Executor::take(Task& task) {
  MutexLock lock(mutex_);
  if (stopping_) return;
  ready_.push_back(std::move(task));
  readyCount_.store(ready_.size(), std::memory_order_relaxed);
  // The polling thread takes what it read itself as soon as it has done reading.
  if (!(inPoll && poolOfThread == this) && mayRun()) bringInThread();
}

void Executor::setAfterTask(std::function<void()> hook) {
  MutexLock lock(mutex_);
  TREADLE_CHECK(!afterTask_, "a pool has one hook after its tasks");
  afterTask_ = std::move(hook);
}

void Executor::stop() {
  TREADLE_CHECK(poolOfThread != this, "an executor cannot be stopped by one of its own threads");
  std::vector<std::thread> threads;
  std::deque<Task> dropped;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
    dropped.swap(ready_);
    wakeIdle_.notifyAll();
    wakeWatchdog_.notifyAll();
  }
  // Before the joins: a thread may wait for what one of these holds, a promise as a rule.
  dropped.clear();
  reactor_.wake();
  if (watchdog_.joinable()) watchdog_.join();
  for (std::thread& thread : threads) thread.join();
}

int Executor::active() const {
  MutexLock lock(mutex_);
  return running_ + blocked_ + static_cast<int>(ready_.size());
}

// One task at a time with pauses in between is the poller's alone: waking another thread for each would double its
// time.
void Executor::expectRunTime(Duration expected) {
  if (poolOfThread == nullptr || inPoll || expected <= kWorthAThread) return;
  Executor& pool = *poolOfThread;
  MutexLock lock(pool.mutex_);
  bool alone = pool.running_ == 1 && pool.ready_.empty() && Clock::now() - pool.moreCame_ > kOfLate;
  if (alone && expected <= kMayStayUnread) {
    lock.unlock();
    return pool.reactor_.runSoon();  // it would wait for this task
  }
  if (!pool.polling_ || pool.mayRun()) pool.bringInThread();
}

bool Executor::moreToRun() {
  return poolOfThread != nullptr && poolOfThread->readyCount_.load(std::memory_order_relaxed) > 0;
}

bool Executor::onPoolThread() { return poolOfThread != nullptr; }

// Threads are made when one is missing and kept until `stop`: as many as ever ran and waited at once, and one
// to poll.
void Executor::bringInThread() {
  if (stopping_ || starting_ >= wantedThreads()) return;
  if (idle_ > 0) {
    wakeIdle_.notifyOne();
    return;
  }
  try {
    threads_.emplace_back([this] { threadLoop(); });
    ++starting_;
  } catch (const std::system_error& error) {
    // With other threads there the work only takes longer; without any, nothing would ever run.
    TREADLE_CHECK(!threads_.empty(), "the system gives no thread at all");
    if (const TimePoint now = Clock::now(); now >= toldOfNone_ + kToldAgainAfter) {
      toldOfNone_ = now;
      logWarn("", std::string("no further pool thread can be started: ") + error.what());
    }
  }
}

// For the tasks that may begin, and for polling. Many tasks may be posted before a new thread has begun.
int Executor::wantedThreads() const {
  const auto queued = static_cast<int>(std::min(ready_.size(), static_cast<size_t>(options_.maxConcurrentHandlers)));
  return std::clamp(options_.maxConcurrentHandlers - running_, 0, queued) + (polling_ ? 0 : 1);
}

void Executor::threadLoop() {
  poolOfThread = this;
  MutexLock lock(mutex_);
  --starting_;
  while (!stopping_) {
    // Run before polling: what was read is begun before more is read.
    if (mayRun()) {
      runOne(lock);
    } else if (!polling_) {
      pollOnce(lock);
    } else {
      ++idle_;
      wakeIdle_.wait(lock);
      --idle_;
    }
  }
}

void Executor::runOne(MutexLock& lock) {
  Task task = std::move(ready_.front());
  ready_.pop_front();
  readyCount_.store(ready_.size(), std::memory_order_relaxed);
  ++running_;
  ++progress_;
  if (watchdogParked_) wakeWatchdog_.notifyOne();
  const std::function<void()>* after = afterTask_ ? &afterTask_ : nullptr;  // it stays
  lock.unlock();
  reactor_.runSoon(kSoonEnough);  // before something that may take long
  task();
  task = Task();  // what the task holds goes before it counts as done
  if (after != nullptr) (*after)();
  lock.lock();
  --running_;
}

// `inPoll` tells `post`, called by what the poll reads, that this thread will come for the task by itself.
void Executor::pollOnce(MutexLock& lock) {
  polling_ = true;
  ++progress_;
  lock.unlock();
  inPoll = true;
  bool waited = reactor_.poll();
  inPoll = false;
  lock.lock();
  polling_ = false;
  if (!waited) moreCame_ = Clock::now();
}

Status Executor::takePlace() {
  if (places_ >= options_.maxBlockedHandlers)
    return resourceExhausted("more than " + std::to_string(options_.maxBlockedHandlers) +
                             " handlers wait at once; raise maxBlockedHandlers or use asynchronous calls");
  ++places_;
  return {};
}

Status Executor::enterBlocking(bool takesPlace) {
  MutexLock lock(mutex_);
  if (takesPlace) TREADLE_RETURN_IF_ERROR(takePlace());
  --running_;
  ++blocked_;
  // The thread that is about to sleep was the one that would have polled, or run what is queued.
  if (!polling_ || mayRun()) bringInThread();
  return {};
}

void Executor::leaveBlocking(bool givesPlace) {
  MutexLock lock(mutex_);
  ++running_;  // may exceed maxConcurrentHandlers for a while: a resumed task is not made to wait again
  --blocked_;
  if (givesPlace) --places_;
}

// Looks once per `longRun` while the pool works. Costs a wake-up a millisecond then, and none when it is
// parked; `runOne` starts it again.
void Executor::watch() {
  MutexLock lock(mutex_);
  int quiet = 0;
  while (!stopping_) {
    if (quiet >= kQuietTicks) {
      watchdogParked_ = true;
      wakeWatchdog_.wait(lock);
      watchdogParked_ = false;
      quiet = 0;
      continue;
    }
    uint64_t before = progress_;
    wakeWatchdog_.waitUntil(lock, Clock::now() + options_.longRun);
    // Nobody began to poll or took a task for one `longRun`: all threads are busy with what they have.
    bool stalled = progress_ == before && (!polling_ || mayRun());
    if (stalled) bringInThread();
    quiet = polling_ && ready_.empty() && progress_ == before ? quiet + 1 : 0;
  }
}

namespace {

Status mayWaitHere() {
  if (!Serving::here()) return {};
  return resourceExhausted(
      "this thread polls or reads what others wait for, so it must not wait itself; "
      "use `async` here, or wait on another thread");
}

}  // namespace

Executor::Permit::Permit() : status_(mayWaitHere()) {
  if (!status_.ok() || poolOfThread == nullptr || blocking) return;
  MutexLock lock(poolOfThread->mutex_);
  if (*permits == 0) status_ = poolOfThread->takePlace();
  if (!status_.ok()) return;
  executor_ = poolOfThread;
  ofThread_ = permits;
  ++*ofThread_;
}

Executor::Permit::~Permit() {
  if (executor_ == nullptr) return;
  MutexLock lock(executor_->mutex_);
  if (--*ofThread_ == 0) --executor_->places_;
}

Executor::Blocking::Blocking() : status_(mayWaitHere()) {
  if (!status_.ok() || poolOfThread == nullptr || blocking) return;
  takesPlace_ = *permits == 0;
  status_ = poolOfThread->enterBlocking(takesPlace_);
  if (!status_.ok()) return;
  executor_ = poolOfThread;
  blocking = true;
}

Executor::Blocking::~Blocking() {
  if (executor_ == nullptr) return;
  blocking = false;
  executor_->leaveBlocking(takesPlace_);
}

}  // namespace treadle::io
