#include "treadle/core/memory/memory_budget.h"

namespace treadle::memory {

bool MemoryBudget::take(size_t bytes) {
  size_t taken = takenBytes_.load();
  do {
    const size_t limit = limitBytes_.load();
    if (taken > limit || bytes > limit - taken) return false;
  } while (!takenBytes_.compare_exchange_weak(taken, taken + bytes));
  return true;
}

size_t MemoryBudget::roomBytes() const {
  const size_t taken = takenBytes_.load(), limit = limitBytes_.load();
  return taken < limit ? limit - taken : 0;
}

void MemoryBudget::limitTo(size_t bytes) {
  size_t limit = limitBytes_.load();
  while (bytes < limit && !limitBytes_.compare_exchange_weak(limit, bytes)) {}
}

void MemoryBudget::setGiveWay(std::function<void(size_t)> giveWay) {
  MutexLock lock(mutex_);
  giveWay_ = std::move(giveWay);
}

bool MemoryBudget::makeRoom(size_t bytes) {
  if (exceeded() || roomBytes() < bytes) {
    MutexLock lock(mutex_);
    if (giveWay_) giveWay_(bytes);
  }
  return roomBytes() >= bytes;
}

}  // namespace treadle::memory
