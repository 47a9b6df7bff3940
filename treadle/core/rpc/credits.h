#pragma once
// The bytes of requests of one worker to another that are not answered yet, and the limit on them. The caller has one
// of these for each peer and waits where the callee, which counts the same, would refuse. An answer is what gives
// credit back, so nothing travels for it.
//
// Who waits is served in the order of waiting: a large request is not starved by small ones, and these wait behind it
// until its turn or its deadline.
//
// Owned by the engine. Any thread may call anything. Budget while there is room: one compare-and-swap to take, one
// atomic subtraction to give back, no lock.

#include <atomic>
#include <deque>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/mutex.h"
#include "treadle/core/base/status.h"

namespace treadle::rpc {

class Credits {
 public:
  // What a request, and each of its buffers, counts besides its bytes: about what it costs to keep track of one.
  static constexpr size_t kRequestBytes = 256, kBufferBytes = 256, kInputBytes = 512;

  explicit Credits(size_t limitBytes) : limitBytes_(limitBytes) {}

  // What a request counts. One that is larger than seven eighths of the limit counts as that much: so it can go at all,
  // as soon as little else is unanswered, be it calls that run as long as the job does.
  size_t costOf(size_t payloadBytes, std::span<const Buffer> buffers, size_t inputs = 0) const;

  // False when it would go over the limit, or when others wait.
  bool tryTake(size_t bytes);
  // Waits for its turn. ResourceExhausted at the deadline, or when too many handlers wait already; after `close` what
  // that said. Success must be given back.
  Status take(size_t bytes, TimePoint deadline);
  void giveBack(size_t bytes);
  // Fails those who wait, and all who would.
  void close(const Status& why);

  size_t takenBytes() const { return taken_.load(std::memory_order_relaxed) & ~kSomebodyWaits; }
  size_t limitBytes() const { return limitBytes_; }

 private:
  struct Waiter {
    const size_t bytes;
    bool granted = false;
    CondVar changed = {};
  };
  // Beside the bytes, so that one operation tells both. It makes every sum too large: who comes later does not
  // overtake.
  static constexpr uint64_t kSomebodyWaits = uint64_t{1} << 63;

  void grant() TREADLE_REQUIRES(mutex_);
  Status exhausted(size_t bytes) const;

  const size_t limitBytes_;
  std::atomic<uint64_t> taken_ = 0;
  Mutex mutex_;
  std::deque<Waiter*> waiters_ TREADLE_GUARDED_BY(mutex_);
  Status closed_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::rpc
