#pragma once
// Of a message that was handed up ahead of the bytes of its large buffers: says when they are there. So the message
// keeps its order with the others of its connection, and only the reading of its buffers waits.
//
// Any thread may call anything. Budget: an allocation for a message, a lock for each of its buffers.

#include "treadle/core/base/mutex.h"
#include "treadle/core/base/status.h"
#include "treadle/core/base/unique_function.h"

namespace treadle::link {

// What a buffer that is under way counts besides its bytes: about what it costs to keep track of one.
inline constexpr uint64_t kBookkeepingBytes = 512;

class Arrival {
 public:
  // `missing`: buffers, at least one.
  explicit Arrival(size_t missing) : missing_(missing) {}

  // Runs `then` once: with OK as soon as all buffers are whole, or with why they never will be. At once when that is
  // known already, else on the thread that reads the last bytes or closes the connection; it must not wait.
  void whenWhole(UniqueFunction<void(const Status&)> then);

  // Another buffer is whole.
  void oneMore();
  // They never will be: the connection has ended, or its sender let go of them.
  void fail(const Status& why);

 private:
  Mutex mutex_;
  size_t missing_ TREADLE_GUARDED_BY(mutex_);
  Status failed_ TREADLE_GUARDED_BY(mutex_);
  UniqueFunction<void(const Status&)> then_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::link
