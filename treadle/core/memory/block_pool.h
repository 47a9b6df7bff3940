#pragma once
// Where tensors that travel lie: blocks of memory that are kept when they are free, because writing to fresh pages
// costs several times what a copy into warm ones does. All are cut out of one arena of shared memory, so that a peer on
// the same host, who maps the arena once, can be handed a block instead of its bytes (link/peer_memory.h).
//
// Of one size the block that was freed last is taken first: it is the one most likely to be in the processor's caches.
// One of up to twice the size serves before fresh memory is taken.
// Memory is kept until `trim`, or until blocks of another size need it.
//
// Budget of `allocate` and of freeing a block: one uncontended lock each, two small allocations for the former (the
// block, its entry among those in use), one more for fresh memory. Any thread may call anything.

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/mutex.h"
#include "treadle/core/io/process_handle.h"
#include "treadle/core/io/shared_memory.h"
#include "treadle/core/memory/copier.h"
#include "treadle/core/memory/free_ranges.h"
#include "treadle/core/memory/memory_budget.h"
#include "treadle/core/memory/reclaimer.h"
#include "treadle/core/memory/size_class.h"

namespace treadle::memory {

class BlockPool;

// One block in use; it goes back to its pool with its last holder.
class Block final : public Memory {
 public:
  Block(std::shared_ptr<BlockPool> pool, size_t offset, uint32_t sizeClass, bool fresh);
  ~Block() override;

  // For writing: from then on its pages count as warm.
  std::byte* data();
  size_t capacity() const { return classBytes(sizeClass_); }
  uint32_t sizeClass() const { return sizeClass_; }
  // Of its first byte in the pool's arena: what peers know it by.
  size_t offset() const { return offset_; }
  const BlockPool& pool() const { return *pool_; }

  // Copies `bytes`, of which there are at most `capacity()`, to the block's start, with the pool's copier.
  void fill(Bytes bytes);
  // Never to be used again: somebody else may still write to it.
  void retire() { retired_.store(true); }

 private:
  const std::shared_ptr<BlockPool> pool_;
  const size_t offset_;
  const uint32_t sizeClass_;
  bool fresh_;  // none of its pages has been written
  std::atomic<bool> retired_ = false;
};

// The limit holds for used, free and lost bytes together, and for what else takes from the pool's budget.
struct PoolCounters {
  size_t usedBytes = 0;      // blocks in use
  size_t freeBytes = 0;      // blocks kept for later use
  size_t lostBytes = 0;      // blocks that the process of a lost peer may still write to
  size_t orphanedBytes = 0;  // memory of lost peers that tensors of this process still use
  uint64_t allocations = 0;  // blocks handed out
  uint64_t reused = 0;       // those of them that had been used before
  uint64_t refused = 0;      // requests over the limit
};

class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  // Of at most `limitBytes` of blocks, in use and kept: the limit of a new budget. ResourceExhausted when there is no
  // address space for them.
  static Result<std::shared_ptr<BlockPool>> make(size_t limitBytes);
  ~BlockPool();
  // The one that all workers of this process use and `treadle::emptyShared` takes from: half of the machine's memory at
  // most. Never destroyed, so that tensors may live as long as they like. Null when the system has no room for it.
  static BlockPool* ofProcess();
  // Why that is null; OK when it is not.
  static Status statusOfProcess();

  // Faults in the arena's first `sizeBytes` (at most a sixteenth of the limit) on a thread of its own, so that the
  // first blocks are as warm as later ones. Once for a pool: nothing when called again.
  void prefault(size_t sizeBytes);

  // At least `sizeBytes`, contents undefined. Null when that would go over the limit: then do without.
  std::shared_ptr<Block> allocate(size_t sizeBytes);

  // The block in use that begins at `offset` of the arena; null when none does.
  std::shared_ptr<Block> find(size_t offset) const;

  // Blocks that a peer held when it was lost: used again when its process is no more (at once when that is known) and
  // nobody here has them, and never when that cannot be known, as the peer may still write to them.
  void recover(const std::vector<std::shared_ptr<Block>>& blocks, io::ProcessHandle holder);

  // Gives all memory that is not in use back to the system, and ends a prefault.
  void trim();
  PoolCounters counters() const;
  size_t limitBytes() const { return budget_->limitBytes(); }
  // Lowers the limit, for good; blocks in use over it stay until they are freed.
  void limitTo(size_t bytes);
  // What its blocks take from, in use, kept and lost.
  const std::shared_ptr<MemoryBudget>& budget() const { return budget_; }
  // What peers map; not shareable() where the system forbids it.
  const io::SharedMemory& arena() const { return arena_; }
  // OK when it is shareable(), otherwise why it is not.
  const Status& sharing() const { return sharing_; }
  Copier& copier() { return copier_; }
  Reclaimer& reclaimer() { return reclaimer_; }  // of the memory that peers have shared
  // False in a child of fork(2): there the blocks are still the parent's, and so are their pages.
  bool ofThisProcess() const;

 private:
  friend class Block;
  struct Place {
    size_t offset;
    uint32_t sizeClass;
  };
  struct Lost {
    io::ProcessHandle holder;
    std::vector<Place> places;
  };

  BlockPool(size_t limitBytes, io::SharedMemory arena, Status sharing);
  void discardUnused(size_t begin, size_t end) TREADLE_REQUIRES(mutex_);
  void prefaultLoop();
  void takeRecovered() TREADLE_REQUIRES(mutex_);
  void settle() TREADLE_REQUIRES(mutex_);
  std::optional<size_t> takeUnused(size_t bytes) TREADLE_REQUIRES(mutex_);
  std::optional<Place> takeWarm(uint32_t wanted) TREADLE_REQUIRES(mutex_);
  std::optional<size_t> takeFresh(size_t bytes) TREADLE_REQUIRES(mutex_);
  void discard(uint32_t sizeClass, size_t offset) TREADLE_REQUIRES(mutex_);
  void giveBack(size_t offset, uint32_t sizeClass, bool fresh, bool retired);
  void keepOrDiscard(size_t offset, uint32_t sizeClass, bool fresh) TREADLE_REQUIRES(mutex_);

  const unsigned generation_;  // of the process that made it
  const std::shared_ptr<MemoryBudget> budget_;
  const io::SharedMemory arena_;
  const Status sharing_;
  Copier copier_;
  Reclaimer reclaimer_;
  mutable Mutex mutex_;
  FreeRanges unused_ TREADLE_GUARDED_BY(mutex_);                             // no pages behind them
  std::map<uint32_t, std::vector<size_t>> warm_ TREADLE_GUARDED_BY(mutex_);  // by class; the last was freed last
  std::unordered_map<size_t, std::weak_ptr<Block>> used_ TREADLE_GUARDED_BY(mutex_);  // by offset
  std::vector<Lost> lost_ TREADLE_GUARDED_BY(mutex_);
  PoolCounters counters_ TREADLE_GUARDED_BY(mutex_);
  size_t takenBytes_ TREADLE_GUARDED_BY(mutex_) = 0;  // from the budget
  // Pages before `warmTo_` have been faulted in, and those up to `prefaultTo_` will be.
  size_t warmTo_ TREADLE_GUARDED_BY(mutex_) = 0, prefaultTo_ TREADLE_GUARDED_BY(mutex_) = 0;
  std::thread prefaulter_ TREADLE_GUARDED_BY(mutex_);
  CondVar prefaultEnds_;
};

// The first `sizeBytes` of a block, for writing.
Buffer bufferOver(std::shared_ptr<Block> block, size_t sizeBytes);
// `sizeBytes` of a pool's block where there is one to be had, else of ordinary memory. Throws std::bad_alloc.
Buffer allocateFrom(BlockPool* pool, size_t sizeBytes);
// A copy of `bytes` in such memory.
Buffer copyTo(BlockPool* pool, Bytes bytes);

}  // namespace treadle::memory
