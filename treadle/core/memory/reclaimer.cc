#include "treadle/core/memory/reclaimer.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace treadle::memory {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(10), kLongestPause = std::chrono::seconds(10);

}  // namespace

Reclaimer::~Reclaimer() {
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.notifyAll();
}

void Reclaimer::add(std::shared_ptr<const io::SharedMemory> arena, Kept kept) {
  std::vector<Job> dropped;  // unmapped after the lock is let go
  MutexLock lock(mutex_);
  added_.push_back({std::move(arena), std::move(kept)});
  hurry_ = true;
  changed_.notifyAll();
  if (running_) return;
  UniqueFunction<void()> task = [this] { loop(); };
  running_ = thread_.run(task);
  if (!running_) dropped.swap(added_);
  lock.unlock();
}

void Reclaimer::hurry() {
  MutexLock lock(mutex_);
  hurry_ = true;
  changed_.notifyAll();
}

void Reclaimer::loop() {
  std::vector<Job> jobs;
  while (waitForNext(jobs)) {
    size_t keptBytes = 0;
    std::erase_if(jobs, [&](Job& job) {
      const std::vector<io::SharedMemory::Range> kept = job.kept();
      for (const io::SharedMemory::Range& range : kept) keptBytes += range.size;
      job.arena->reclaim(kept);
      return kept.empty();
    });
    keptBytes_.store(keptBytes);
  }
}

// False when the thread shall end.
bool Reclaimer::waitForNext(std::vector<Job>& jobs) {
  MutexLock lock(mutex_);
  const TimePoint next = deadlineAfter(pause_);
  if (!jobs.empty())
    while (!hurry_ && !stopping_ && changed_.waitUntil(lock, next)) continue;
  std::move(added_.begin(), added_.end(), std::back_inserter(jobs));
  added_.clear();
  pause_ = std::exchange(hurry_, false) ? kFirstPause : std::min(2 * pause_, kLongestPause);
  running_ = !jobs.empty() && !stopping_;
  return running_;
}

}  // namespace treadle::memory
