#pragma once
// Threads for work that blocks in the kernel, such as moving the bytes of a large tensor: each task has one for itself,
// begun at once. Threads are kept for the next task for a while and then end, so that a process pays for them only
// while it uses them. Any thread may call anything. Budget of a task: two locks and a wake-up, of a thread that is
// kept.

#include <limits>
#include <memory>

#include "treadle/core/base/clock.h"
#include "treadle/core/base/unique_function.h"

namespace treadle::io {

class ThreadCache {
 public:
  // An idle thread waits for another task for `keep`. There are at most `most` threads.
  explicit ThreadCache(Duration keep = std::chrono::seconds(5), size_t most = std::numeric_limits<size_t>::max());
  // Waits until all tasks have ended: see to it that they do.
  ~ThreadCache();
  ThreadCache(const ThreadCache&) = delete;
  ThreadCache& operator=(const ThreadCache&) = delete;

  // False when there are `most` threads, or the system gives no more: then `task` was not taken. It must not throw.
  [[nodiscard]] bool run(UniqueFunction<void()>& task);

 private:
  struct State;
  static void threadLoop(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace treadle::io
