#include "treadle/core/io/future.h"

#include <exception>
#include <unordered_set>

namespace treadle::io {
namespace {

// Futures that wait for one another, such as those of `then`, end one within the other. So deep on one stack; what
// comes below is run from the top.
constexpr int kDeepest = 64;
thread_local int depth = 0;
thread_local std::vector<UniqueFunction<void()>>* putOff = nullptr;  // of the one at the top

// Runs all, whatever one of them throws, and then throws the first of that: the others' futures have nobody else who
// ends them.
class All {
 public:
  template <class F>
  void run(F&& one) try {
    one();
  } catch (...) {
    if (!first_) first_ = std::current_exception();
  }
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
};

class Level {
 public:
  Level() {
    if (++depth == 1) putOff = &later_;
  }
  ~Level() {
    if (--depth == 0) putOff = nullptr;
  }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

  void runWhatWasPutOff(All* all) {
    for (size_t i = 0; i < later_.size(); ++i) {
      UniqueFunction<void()> one = std::move(later_[i]);
      all->run(one);
    }
  }

 private:
  std::vector<UniqueFunction<void()>> later_;
};

void runNested(UniqueFunction<void()> continuation) {
  if (depth == kDeepest) return putOff->push_back(std::move(continuation));
  Level level;
  All all;
  all.run(continuation);
  continuation = {};  // what it holds may end futures too
  level.runWhatWasPutOff(&all);
  all.rethrow();
}

// What is being cancelled on this thread: a future, and those that the hooks called so far have cancelled.
class Cancelling {
 public:
  Cancelling() { current = this; }
  ~Cancelling() { current = nullptr; }
  Cancelling(const Cancelling&) = delete;
  Cancelling& operator=(const Cancelling&) = delete;

  static thread_local Cancelling* current;

  void add(const std::shared_ptr<FutureCore>& future) {
    if (seen_.insert(future.get()).second) all_.push_back(future);
  }
  std::vector<std::shared_ptr<FutureCore>> callHooks() {
    for (size_t i = 0; i < all_.size(); ++i)
      if (const auto one = all_[i]; !one->ready() && one->cancelHook) one->cancelHook();
    return std::move(all_);
  }

 private:
  std::vector<std::shared_ptr<FutureCore>> all_;
  std::unordered_set<FutureCore*> seen_;  // one may be reached by many ways
};
thread_local Cancelling* Cancelling::current = nullptr;

constexpr const char* kCancelled = "the call was cancelled";

std::vector<std::shared_ptr<FutureCore>> callHooks(const std::shared_ptr<FutureCore>& future) {
  Cancelling cancelling;
  cancelling.add(future);
  return cancelling.callHooks();
}

}  // namespace

// A future that is ready says that the memory behind it is free: so none fails before those that end by themselves are
// ready.
void FutureCore::failWhenFree(std::vector<std::shared_ptr<FutureCore>> all) {
  for (const auto& one : all) {
    if (!one->endsByItself || one->ready()) continue;
    FutureCore& awaited = *one;
    awaited.onReady([all = std::move(all)]() mutable { failWhenFree(std::move(all)); });
    return;
  }
  for (auto one = all.rbegin(); one != all.rend(); ++one) (*one)->fail(cancelled(kCancelled));
}

// The hooks of all first, for the same reason.
void FutureCore::cancel(const std::shared_ptr<FutureCore>& future) {
  if (future->ready()) return;
  if (Cancelling::current != nullptr) return Cancelling::current->add(future);
  failWhenFree(callHooks(future));
}

Status FutureCore::whenDropped() {
  return cancelled(Cancelling::current != nullptr ? kCancelled : "the promise of this future was dropped");
}

// First the socket, then the condition variable: `assist` returns at once when another thread reads already,
// and when it is done reading without this future being ready, the deadline has passed or the connection is
// closed; whoever completes it then notifies.
Result<bool> FutureCore::waitUntil(TimePoint deadline) {
  if (ready()) return true;
  Executor::Blocking blocking;
  if (!blocking.status().ok()) {
    // Nobody else reads the answer until its reader has been, as this thread was to be.
    if (assist) assist(Clock::now());
    return blocking.status();
  }
  if (assist) assist(deadline);
  MutexLock lock(mutex_);
  while (!ready())
    if (!condition_.waitUntil(lock, deadline) && !ready()) return false;
  return true;
}

uint64_t FutureCore::onReady(UniqueFunction<void()> continuation) {
  {
    MutexLock lock(mutex_);
    if (!ready()) {
      continuations_.push_back({++lastNumber_, std::move(continuation)});
      return lastNumber_;
    }
  }
  runNested(std::move(continuation));
  return 0;
}

void FutureCore::forget(uint64_t continuation) {
  UniqueFunction<void()> dropped;
  MutexLock lock(mutex_);
  for (Continuation& one : continuations_)
    if (one.number == continuation) {
      dropped = std::move(one.run);
      std::swap(one, continuations_.back());
      continuations_.pop_back();
      break;
    }
  lock.unlock();  // what it holds goes without it
}

// Continuations run with the lock let go: they may complete other futures and ask this one.
void FutureCore::markReady() {
  std::vector<Continuation> continuations;
  {
    MutexLock lock(mutex_);
    ready_.store(true, std::memory_order_release);
    continuations.swap(continuations_);
    condition_.notifyAll();
  }
  All all;
  for (Continuation& continuation : continuations) all.run([&] { runNested(std::move(continuation.run)); });
  all.rethrow();
}

}  // namespace treadle::io
