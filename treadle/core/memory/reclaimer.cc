#include "treadle/core/memory/reclaimer.h"

#include <algorithm>
#include <iterator>
#include <new>
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
  MutexLock lock(mutex_);
  added_.push_back({std::move(arena), std::move(kept)});
  start();
}

void Reclaimer::hurry() {
  MutexLock lock(mutex_);
  start();
}

void Reclaimer::start() {
  hurry_ = true;
  changed_.notifyAll();
  if (running_ || added_.empty()) return;
  UniqueFunction<void()> task = [this] { loop(); };
  running_ = thread_.run(task);
}

void Reclaimer::loop() {
  std::vector<Job> jobs;
  while (waitForNext(jobs)) {
    size_t keptBytes = 0;
    std::erase_if(jobs, [&](Job& job) { return reclaim(job, keptBytes); });
    keptBytes_.store(keptBytes);
  }
}

// True when nothing of the arena is in use here any more. Without memory for it the next look tries again.
bool Reclaimer::reclaim(Job& job, size_t& keptBytes) try {
  const std::vector<io::SharedMemory::Range> kept = job.kept();
  for (const io::SharedMemory::Range& range : kept) keptBytes += range.size;
  job.arena->reclaim(kept);
  return kept.empty();
} catch (const std::bad_alloc&) {
  return false;
}

// False when the thread shall end.
bool Reclaimer::waitForNext(std::vector<Job>& jobs) {
  MutexLock lock(mutex_);
  const TimePoint soonest = deadlineAfter(kFirstPause), next = deadlineAfter(pause_);
  if (!jobs.empty()) {
    while (!stopping_ && !hurry_ && changed_.waitUntil(lock, next)) continue;
    while (!stopping_ && changed_.waitUntil(lock, soonest)) continue;  // many tensors that are dropped cost one look
  }
  std::move(added_.begin(), added_.end(), std::back_inserter(jobs));
  added_.clear();
  pause_ = std::exchange(hurry_, false) ? kFirstPause : std::min(2 * pause_, kLongestPause);
  running_ = !jobs.empty() && !stopping_;
  return running_;
}

}  // namespace treadle::memory
