#pragma once
// Memory for ordinary tensors that is kept when they are freed, because writing to fresh pages costs several times what
// most operations on them cost. It is private: no peer can map it, and a child of fork(2) copies it on write and goes
// on with a cache of its own. (Tensors that travel without a copy lie in a BlockPool.)
//
// Of one size class the block that was freed last is taken first, and one of the next class serves before fresh memory
// is mapped. What is in use and what is kept together stay within the limit and within kMostBeyondPeak of the most that
// was ever in use at once; blocks that were idle for longest go first. `trimIdle` returns blocks that nobody needs.
//
// Any thread may call anything. Budget of `take` and `give`: one uncontended lock, one entry of a hash table, no system
// call where a block is kept.

#include <deque>
#include <functional>
#include <map>
#include <unordered_map>
#include <vector>

#include "treadle/core/base/clock.h"
#include "treadle/core/base/mutex.h"
#include "treadle/core/memory/size_class.h"

namespace treadle::memory {

struct WarmCounters {
  size_t usedBytes = 0;  // of blocks in use
  size_t keptBytes = 0;  // of blocks kept for later use
  uint64_t taken = 0, reused = 0;
};

class WarmCache {
 public:
  // Smaller sizes are left to the C library, which keeps them itself.
  static constexpr size_t kSmallest = 64U << 10;
  // The part of the peak use that kept blocks may add to it.
  static constexpr double kMostBeyondPeak = 0.125;

  // `limit` returns how many bytes the blocks in use and the kept ones may have together. Blocks in use may exceed it:
  // none are kept then.
  explicit WarmCache(std::function<size_t()> limit) : limit_(std::move(limit)) {}
  // Returns all memory, also what is in use.
  ~WarmCache();
  WarmCache(const WarmCache&) = delete;
  WarmCache& operator=(const WarmCache&) = delete;
  // The cache of this process, never destroyed: tensors may live as long as they like. Its limit is what the process's
  // BlockPool leaves of the memory limit.
  static WarmCache& ofProcess();

  // At least `sizeBytes` from the start of a page, contents undefined. Null when the system has no memory.
  std::byte* take(size_t sizeBytes);
  // Gives back what `take` gave. False, without effect, for any other address.
  bool give(std::byte* block);

  // Returns all kept memory to the system.
  void trim();
  // Returns the blocks that have been kept for `idle` or longer. The peak falls to what is left, in use and kept.
  void trimIdle(Duration idle);
  WarmCounters counters() const;

 private:
  struct Kept {
    std::byte* block;
    TimePoint since;
  };
  struct Pages {
    std::byte* block;
    size_t sizeBytes;
  };
  using Dropped = std::vector<Pages>;

  std::byte* takeKept(uint32_t wanted) TREADLE_REQUIRES(mutex_);
  size_t mayKeep(size_t wantedBytes) const TREADLE_REQUIRES(mutex_);
  void dropOldest(size_t mostKeptBytes, Dropped& dropped) TREADLE_REQUIRES(mutex_);
  void dropFirst(std::map<uint32_t, std::deque<Kept>>::iterator blocks, Dropped& dropped) TREADLE_REQUIRES(mutex_);
  static void unmap(const Dropped& dropped);

  const std::function<size_t()> limit_;
  mutable Mutex mutex_;
  std::unordered_map<std::byte*, uint32_t> used_ TREADLE_GUARDED_BY(mutex_);  // -> size class
  std::map<uint32_t, std::deque<Kept>> kept_ TREADLE_GUARDED_BY(mutex_);      // by size class, none empty; oldest first
  size_t peakBytes_ TREADLE_GUARDED_BY(mutex_) = 0;                           // of usedBytes
  WarmCounters counters_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::memory
