#pragma once
// Whether the caller of a request has given up, and what is to be done when it does. Any thread may call anything.
// Budget: nothing for a call in which nobody asks to be told.

#include <atomic>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/base/unique_function.h"

namespace treadle::rpc {

class Cancellation {
 public:
  bool requested() const { return requested_.load(std::memory_order_acquire); }

  // Runs what was asked for, once. It must not wait.
  void request();
  // Runs `then` when it is requested: at once if it has been.
  void whenRequested(UniqueFunction<void()> then);

 private:
  std::atomic<bool> requested_ = false;
  Mutex mutex_;
  std::vector<UniqueFunction<void()>> hooks_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::rpc
