#pragma once
// References that a worker keeps for a while, with the values that they must have: so forks of forks arise, some
// older than whoever made the value. When it is full a new one takes the place of one drawn at random. Any thread.

#include <random>

#include "tests/soak/handlers.h"
#include "treadle/core/base/mutex.h"

namespace treadle::soak {

class Shelf {
 public:
  struct Kept {
    RRef<Number> number;
    Number wanted = 0;
  };

  // Handlers are free functions, and a soak's process is one worker.
  static Shelf& ofProcess() {
    static Shelf shelf;
    return shelf;
  }

  void put(Kept kept) {
    MutexLock lock(mutex_);
    if (kept_.size() < kSize) return kept_.push_back(std::move(kept));
    std::swap(kept_[random_() % kSize], kept);
    lock.unlock();  // the old one goes without the lock: its end may take others
  }
  std::optional<Kept> any() {
    MutexLock lock(mutex_);
    if (kept_.empty()) return {};
    return kept_[random_() % kept_.size()];
  }
  void clear() {
    std::vector<Kept> gone;
    MutexLock lock(mutex_);
    gone.swap(kept_);
    lock.unlock();
  }

 private:
  static constexpr size_t kSize = 128;
  Mutex mutex_;
  std::mt19937_64 random_ TREADLE_GUARDED_BY(mutex_){1};
  std::vector<Kept> kept_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::soak
