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

void FutureCore::onReady(UniqueFunction<void()> continuation) {
  {
    MutexLock lock(mutex_);
    if (!ready()) {
      continuations_.push_back(std::move(continuation));
      return;
    }
  }
  continuation();
}

// Continuations run with the lock let go: they may complete other futures and ask this one.
void FutureCore::markReady() {
  std::vector<UniqueFunction<void()>> continuations;
  {
    MutexLock lock(mutex_);
    ready_.store(true, std::memory_order_release);
    continuations.swap(continuations_);
    condition_.notifyAll();
  }
  for (auto& continuation : continuations) continuation();
}

}  // namespace treadle::io
