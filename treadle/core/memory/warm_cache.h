#pragma once
// Memory for ordinary tensors that is kept when they are freed, because writing to fresh pages costs several times what
// most operations on them cost. It is private: no peer can map it, and a child of fork(2) copies it on write and goes
// on with a cache of its own. (Tensors that travel without a copy lie in a BlockPool.)
//
// Within a size class, the block freed last is taken first, and a block of the next class serves before fresh memory is
// mapped. Used and kept blocks take from a budget and stay within kMostBeyondPeak of the peak use; the blocks that were
// idle for longest go first, also where the budget's other holder needs room, and those that were idle for kIdle go
// when they are noticed.
//
// Any thread may call anything. Budget of `take` and `give`: one uncontended lock and one look into a hash table; no
// allocation and no system call where a block is kept.

#include <array>
#include <list>
#include <memory>
#include <unordered_map>

#include "treadle/core/base/clock.h"
#include "treadle/core/base/mutex.h"
#include "treadle/core/memory/memory_budget.h"
#include "treadle/core/memory/size_class.h"

namespace treadle::memory {

struct WarmCounters {
  size_t usedBytes = 0;  // blocks in use; a block is up to a quarter larger than the request
  size_t keptBytes = 0;  // blocks kept for later use
  uint64_t taken = 0;    // blocks handed out
  uint64_t reused = 0;   // those of them that had been used before
};

class WarmCache {
 public:
  // Smaller sizes are left to the C library, which keeps them itself.
  static constexpr size_t kSmallest = 64U << 10;
  // More than any machine has.
  static constexpr size_t kLargest = size_t{1} << 48;
  // The part of the peak use that kept blocks may add to it.
  static constexpr double kMostBeyondPeak = 0.125;
  static constexpr Duration kIdle = std::chrono::seconds(10);

  // Its kept blocks are what gives way for others that take from `budget`.
  explicit WarmCache(std::shared_ptr<MemoryBudget> budget);
  // Returns all memory to the system, used blocks too.
  ~WarmCache();
  WarmCache(const WarmCache&) = delete;
  WarmCache& operator=(const WarmCache&) = delete;
  // The cache of this process, never destroyed: tensors may live as long as they like. It takes from the budget of the
  // process's BlockPool; in a child of fork(2) from the budget that it inherited.
  static WarmCache& ofProcess();

  // At least `sizeBytes` from the start of a page, contents undefined. Null beyond the limit, and when the system has
  // no memory: use other memory then.
  std::byte* take(size_t sizeBytes);
  // Gives back what `take` gave. False, without effect, for any other address. Does not throw.
  bool give(std::byte* block);

  // Returns all kept memory to the system.
  void trim();
  // Returns the blocks that have been kept for `idle` or longer. The peak falls to what is left, used and kept.
  void trimIdle(Duration idle = kIdle);
  WarmCounters counters() const;

 private:
  struct Block {
    std::byte* data;
    uint32_t sizeClass;
    bool used;
    TimePoint since;  // when it was given back
  };
  using Blocks = std::list<Block>;

  static void beforeFork() TREADLE_UNCHECKED_LOCKS;
  static void afterFork() TREADLE_UNCHECKED_LOCKS;
  static const int forkHandlers_;

  std::byte* takeKept(uint32_t wanted) TREADLE_REQUIRES(mutex_);
  bool enter(std::byte* fresh, uint32_t sizeClass) TREADLE_REQUIRES(mutex_);
  void countUsed(size_t bytes) TREADLE_REQUIRES(mutex_);
  size_t mayKeep() const TREADLE_REQUIRES(mutex_);
  void giveWay(size_t bytes);
  bool takeRoom(size_t bytes, Blocks& dropped) TREADLE_REQUIRES(mutex_);
  void dropOne(Blocks& dropped) TREADLE_REQUIRES(mutex_);
  void dropOldest(size_t mostKeptBytes, Blocks& dropped) TREADLE_REQUIRES(mutex_);
  void dropIdle(TimePoint before, Blocks& dropped) TREADLE_REQUIRES(mutex_);
  void dropFirst(Blocks& kept, Blocks& dropped) TREADLE_REQUIRES(mutex_);
  static void unmap(const Blocks& dropped);

  const std::shared_ptr<MemoryBudget> budget_;
  mutable Mutex mutex_;
  std::unordered_map<std::byte*, Blocks::iterator> blocks_ TREADLE_GUARDED_BY(mutex_);
  Blocks used_ TREADLE_GUARDED_BY(mutex_);
  std::array<Blocks, sizeClass(kLargest) + 2> kept_ TREADLE_GUARDED_BY(mutex_);  // by size class, oldest first
  size_t peakBytes_ TREADLE_GUARDED_BY(mutex_) = 0;                              // of usedBytes
  TimePoint nextTrim_ TREADLE_GUARDED_BY(mutex_) = {};
  WarmCounters counters_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::memory
