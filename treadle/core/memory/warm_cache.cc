#include "treadle/core/memory/warm_cache.h"

#include <pthread.h>

#include <algorithm>

#include "treadle/core/base/check.h"
#include "treadle/core/io/private_pages.h"
#include "treadle/core/memory/block_pool.h"

namespace treadle::memory {

WarmCache::~WarmCache() {
  trim();
  for (auto [block, sizeClass] : used_) io::unmapPrivate(block, classBytes(sizeClass));
}

WarmCache& WarmCache::ofProcess() {
  static WarmCache* const cache = [] {
    const BlockPool* const pool = BlockPool::ofProcess();
    return new WarmCache([pool] { return pool != nullptr ? pool->roomBytes() : 0; });  // NOLINT: never destroyed
  }();
  // No other thread is inside while the process is copied, so the child's cache is whole.
  static const int handlers =
      ::pthread_atfork([] { cache->mutex_.lock(); }, [] { cache->mutex_.unlock(); }, [] { cache->mutex_.unlock(); });
  TREADLE_CHECK(handlers == 0, "the C library has memory for another fork handler");
  return *cache;
}

std::byte* WarmCache::take(size_t sizeBytes) {
  const uint32_t wanted = sizeClass(sizeBytes);
  Dropped dropped;
  MutexLock lock(mutex_);
  ++counters_.taken;
  if (std::byte* kept = takeKept(wanted)) return kept;
  const size_t bytes = classBytes(wanted);
  dropOldest(mayKeep(bytes), dropped);
  lock.unlock();
  unmap(dropped);
  std::byte* fresh = io::mapPrivate(bytes);
  if (fresh == nullptr) return nullptr;
  lock.lock();
  used_.emplace(fresh, wanted);
  counters_.usedBytes += bytes;
  peakBytes_ = std::max(peakBytes_, counters_.usedBytes);
  return fresh;
}

std::byte* WarmCache::takeKept(uint32_t wanted) {
  for (uint32_t sizeClass : {wanted, wanted + 1}) {
    auto blocks = kept_.find(sizeClass);
    if (blocks == kept_.end()) continue;
    std::byte* block = blocks->second.back().block;
    blocks->second.pop_back();
    if (blocks->second.empty()) kept_.erase(blocks);
    used_.emplace(block, sizeClass);
    counters_.keptBytes -= classBytes(sizeClass);
    counters_.usedBytes += classBytes(sizeClass);
    peakBytes_ = std::max(peakBytes_, counters_.usedBytes);
    ++counters_.reused;
    return block;
  }
  return nullptr;
}

bool WarmCache::give(std::byte* block) {
  Dropped dropped;
  {
    MutexLock lock(mutex_);
    auto found = used_.find(block);
    if (found == used_.end()) return false;
    const uint32_t sizeClass = found->second;
    used_.erase(found);
    counters_.usedBytes -= classBytes(sizeClass);
    counters_.keptBytes += classBytes(sizeClass);
    kept_[sizeClass].push_back({block, Clock::now()});
    dropOldest(mayKeep(0), dropped);
  }
  unmap(dropped);
  return true;
}

// With `wantedBytes` more in use.
size_t WarmCache::mayKeep(size_t wantedBytes) const {
  const size_t used = counters_.usedBytes + wantedBytes, peak = std::max(peakBytes_, used);
  const size_t most = std::min(limit_(), peak + static_cast<size_t>(kMostBeyondPeak * static_cast<double>(peak)));
  return most > used ? most - used : 0;
}

void WarmCache::dropOldest(size_t mostKeptBytes, Dropped& dropped) {
  while (counters_.keptBytes > mostKeptBytes)
    dropFirst(
        std::min_element(kept_.begin(), kept_.end(),
                         [](const auto& a, const auto& b) { return a.second.front().since < b.second.front().since; }),
        dropped);
}

void WarmCache::dropFirst(std::map<uint32_t, std::deque<Kept>>::iterator blocks, Dropped& dropped) {
  const size_t bytes = classBytes(blocks->first);
  dropped.push_back({blocks->second.front().block, bytes});
  counters_.keptBytes -= bytes;
  blocks->second.pop_front();
  if (blocks->second.empty()) kept_.erase(blocks);
}

// Without the lock: the system takes its time for large blocks.
void WarmCache::unmap(const Dropped& dropped) {
  for (const Pages& pages : dropped) io::unmapPrivate(pages.block, pages.sizeBytes);
}

void WarmCache::trim() {
  Dropped dropped;
  {
    MutexLock lock(mutex_);
    dropOldest(0, dropped);
    peakBytes_ = counters_.usedBytes;
  }
  unmap(dropped);
}

void WarmCache::trimIdle(Duration idle) {
  const TimePoint before = Clock::now() - idle;
  Dropped dropped;
  {
    MutexLock lock(mutex_);
    for (auto blocks = kept_.begin(); blocks != kept_.end();) {
      auto next = std::next(blocks);
      for (size_t left = blocks->second.size(); left > 0 && blocks->second.front().since <= before; --left)
        dropFirst(blocks, dropped);
      blocks = next;
    }
    peakBytes_ = counters_.usedBytes + counters_.keptBytes;
  }
  unmap(dropped);
}

WarmCounters WarmCache::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

}  // namespace treadle::memory
