#pragma once
// The memory limit of a process, and how much of it is taken. Blocks of tensors that travel (BlockPool) and warm memory
// of all other tensors (WarmCache) take from one budget: together they stay within the limit, whichever takes first.
//
// Any thread may call anything. Budget of `take` and `give`: one atomic operation, no lock.

#include <atomic>
#include <functional>

#include "treadle/core/base/mutex.h"

namespace treadle::memory {

class MemoryBudget {
 public:
  explicit MemoryBudget(size_t limitBytes) : limitBytes_(limitBytes) {}

  // Takes `bytes` where the limit leaves as much, otherwise nothing.
  bool take(size_t bytes);
  // Takes `bytes` also beyond the limit: for memory that is in use in any case.
  void takeAnyway(size_t bytes) { takenBytes_.fetch_add(bytes); }
  void give(size_t bytes) { takenBytes_.fetch_sub(bytes); }

  size_t limitBytes() const { return limitBytes_.load(); }
  size_t roomBytes() const;
  bool exceeded() const { return takenBytes_.load() > limitBytes_.load(); }
  // Lowers the limit, for good; a higher one changes nothing. What is taken stays taken.
  void limitTo(size_t bytes);

  // `giveWay(bytes)` gives idle memory back until there is room for `bytes`, or none where all of it would not be
  // enough. Null ends that: no call is under way afterwards.
  void setGiveWay(std::function<void(size_t)> giveWay);
  // Returns whether there is room for `bytes` now.
  bool makeRoom(size_t bytes);

 private:
  std::atomic<size_t> limitBytes_, takenBytes_ = 0;
  Mutex mutex_;
  std::function<void(size_t)> giveWay_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::memory
