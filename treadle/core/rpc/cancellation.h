#pragma once
// Whether the caller of a request has given up, and the hooks to run when it does. Any thread may call any function.
// Budget: nothing for a call without hooks.

#include <atomic>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/base/unique_function.h"

namespace treadle::rpc {

class Cancellation {
 public:
  bool requested() const { return requested_.load(std::memory_order_acquire); }

  // Runs the hooks, once. Hooks must not wait.
  void request();
  // Runs `then` when `request` is called, or at once if it already was.
  void whenRequested(UniqueFunction<void()> then);

 private:
  std::atomic<bool> requested_ = false;
  Mutex mutex_;
  std::vector<UniqueFunction<void()>> hooks_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::rpc
