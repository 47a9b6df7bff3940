#include "treadle/core/memory/warm_cache.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "treadle/core/base/check.h"
#include "treadle/core/io/private_pages.h"
#include "treadle/core/memory/block_pool.h"

namespace treadle::memory {
namespace {

// A child of fork(2) finds both as they were at that moment, so nothing here is made when it is first needed.
constinit std::mutex makingMutex;
constinit std::atomic<WarmCache*> cacheOfProcess = nullptr;

}  // namespace

const int WarmCache::forkHandlers_ =
    ::pthread_atfork(&WarmCache::beforeFork, &WarmCache::afterFork, &WarmCache::afterFork);

// No other thread is inside while the process is copied, so the child's cache is whole.
void WarmCache::beforeFork() {
  makingMutex.lock();
  if (WarmCache* cache = cacheOfProcess.load()) cache->mutex_.lock();
}

void WarmCache::afterFork() {
  if (WarmCache* cache = cacheOfProcess.load()) cache->mutex_.unlock();
  makingMutex.unlock();
}

WarmCache& WarmCache::ofProcess() {
  if (WarmCache* cache = cacheOfProcess.load(std::memory_order_acquire)) return *cache;
  TREADLE_CHECK(forkHandlers_ == 0, "the C library has memory for another fork handler");
  const BlockPool* const pool = BlockPool::ofProcess();
  const std::scoped_lock lock(makingMutex);
  if (cacheOfProcess.load() == nullptr)
    cacheOfProcess = new WarmCache(pool != nullptr ? pool->budget() : std::make_shared<MemoryBudget>(0));  // NOLINT
  return *cacheOfProcess.load();
}

WarmCache::WarmCache(std::shared_ptr<MemoryBudget> budget) : budget_(std::move(budget)) {
  budget_->setGiveWay([this](size_t bytes) { giveWay(bytes); });
}

WarmCache::~WarmCache() {
  budget_->setGiveWay(nullptr);
  trim();
  unmap(used_);
  MutexLock lock(mutex_);
  budget_->give(counters_.usedBytes);
}

std::byte* WarmCache::take(size_t sizeBytes) {
  if (sizeBytes > kLargest) return nullptr;
  const uint32_t wanted = sizeClass(sizeBytes);
  const size_t bytes = classBytes(wanted);
  Blocks dropped;
  MutexLock lock(mutex_);
  ++counters_.taken;
  if (std::byte* kept = takeKept(wanted)) return kept;
  const bool room = takeRoom(bytes, dropped);
  if (room) {
    countUsed(bytes);
    dropOldest(mayKeep(), dropped);
  }
  lock.unlock();
  unmap(dropped);
  if (!room) return nullptr;
  std::byte* fresh = io::mapPrivate(bytes);
  lock.lock();
  if (fresh != nullptr && enter(fresh, wanted)) return fresh;
  counters_.usedBytes -= bytes;
  budget_->give(bytes);
  return nullptr;
}

// Kept blocks give way, unless that would be in vain.
bool WarmCache::takeRoom(size_t bytes, Blocks& dropped) {
  if (bytes > budget_->roomBytes() + counters_.keptBytes) return false;
  while (!budget_->take(bytes)) {
    if (counters_.keptBytes == 0) return false;
    dropOne(dropped);
  }
  return true;
}

void WarmCache::giveWay(size_t bytes) {
  Blocks dropped;
  {
    MutexLock lock(mutex_);
    if (bytes > budget_->roomBytes() + counters_.keptBytes) return;
    while (counters_.keptBytes > 0 && (budget_->exceeded() || budget_->roomBytes() < bytes)) dropOne(dropped);
  }
  unmap(dropped);
}

std::byte* WarmCache::takeKept(uint32_t wanted) {
  for (uint32_t sizeClass : {wanted, wanted + 1}) {
    Blocks& kept = kept_[sizeClass];
    if (kept.empty()) continue;
    const auto block = std::prev(kept.end());
    block->used = true;
    used_.splice(used_.end(), kept, block);
    counters_.keptBytes -= classBytes(sizeClass);
    countUsed(classBytes(sizeClass));
    ++counters_.reused;
    return block->data;
  }
  return nullptr;
}

bool WarmCache::enter(std::byte* fresh, uint32_t sizeClass) try {
  Blocks one(1, Block{fresh, sizeClass, true, {}});
  blocks_.emplace(fresh, one.begin());
  used_.splice(used_.end(), one);
  return true;
} catch (const std::bad_alloc&) {
  io::unmapPrivate(fresh, classBytes(sizeClass));
  return false;
}

void WarmCache::countUsed(size_t bytes) {
  counters_.usedBytes += bytes;
  peakBytes_ = std::max(peakBytes_, counters_.usedBytes);
}

bool WarmCache::give(std::byte* data) {
  Blocks dropped;
  {
    MutexLock lock(mutex_);
    const auto found = blocks_.find(data);
    if (found == blocks_.end() || !found->second->used) return false;
    const auto block = found->second;
    const TimePoint now = Clock::now();
    block->used = false;
    block->since = now;
    kept_[block->sizeClass].splice(kept_[block->sizeClass].end(), used_, block);
    counters_.usedBytes -= classBytes(block->sizeClass);
    counters_.keptBytes += classBytes(block->sizeClass);
    dropOldest(mayKeep(), dropped);
    while (counters_.keptBytes > 0 && budget_->exceeded()) dropOne(dropped);
    if (now >= nextTrim_) dropIdle(now - kIdle, dropped);
  }
  unmap(dropped);
  return true;
}

size_t WarmCache::mayKeep() const {
  const auto beyond = static_cast<size_t>(kMostBeyondPeak * static_cast<double>(peakBytes_));
  const size_t most = peakBytes_ + beyond;
  return most > counters_.usedBytes ? most - counters_.usedBytes : 0;
}

void WarmCache::dropOldest(size_t mostKeptBytes, Blocks& dropped) {
  while (counters_.keptBytes > mostKeptBytes) dropOne(dropped);
}

// The oldest of the kept blocks, of which there is one.
void WarmCache::dropOne(Blocks& dropped) {
  Blocks* oldest = nullptr;
  for (Blocks& kept : kept_)
    if (!kept.empty() && (oldest == nullptr || kept.front().since < oldest->front().since)) oldest = &kept;
  dropFirst(*oldest, dropped);
}

void WarmCache::dropIdle(TimePoint before, Blocks& dropped) {
  for (Blocks& kept : kept_)
    while (!kept.empty() && kept.front().since <= before) dropFirst(kept, dropped);
  peakBytes_ = std::min(peakBytes_, counters_.usedBytes + counters_.keptBytes);
  nextTrim_ = Clock::now() + kIdle;
}

void WarmCache::dropFirst(Blocks& kept, Blocks& dropped) {
  budget_->give(classBytes(kept.front().sizeClass));
  counters_.keptBytes -= classBytes(kept.front().sizeClass);
  blocks_.erase(kept.front().data);
  dropped.splice(dropped.end(), kept, kept.begin());
}

// To be called without the lock: unmapping large blocks is slow.
void WarmCache::unmap(const Blocks& dropped) {
  for (const Block& block : dropped) io::unmapPrivate(block.data, classBytes(block.sizeClass));
}

void WarmCache::trim() { trimIdle(Duration::zero()); }

void WarmCache::trimIdle(Duration idle) {
  Blocks dropped;
  {
    MutexLock lock(mutex_);
    dropIdle(Clock::now() - idle, dropped);
  }
  unmap(dropped);
}

WarmCounters WarmCache::counters() const {
  MutexLock lock(mutex_);
  return counters_;
}

}  // namespace treadle::memory
