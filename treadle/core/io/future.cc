#include "treadle/core/io/future.h"

namespace treadle::io {

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
  continuation();
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
  for (Continuation& continuation : continuations) continuation.run();
}

}  // namespace treadle::io
