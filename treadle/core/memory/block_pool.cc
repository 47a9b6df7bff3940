#include "treadle/core/memory/block_pool.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <fstream>
#include <mutex>
#include <system_error>

#include "treadle/core/base/log.h"

namespace treadle::memory {
namespace {

// Address space beyond the limit, so that blocks of many sizes find a place beside each other's gaps.
constexpr size_t kSpacePerByte = 2;
// Faulted in at a time, with a pause after each, see Note [Pace]; and how much of the limit may be without anybody
// having asked for a block.
constexpr size_t kPrefaultStep = 256U << 10, kPrefaultShare = 16;
constexpr Duration kPrefaultPause = std::chrono::milliseconds(1);

size_t pageBytes() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

// Of the machine, or of the container (cgroup v2) when that has less.
size_t halfOfMemory() {
  size_t bytes = static_cast<size_t>(std::max(1L, ::sysconf(_SC_PHYS_PAGES))) * pageBytes();
  size_t allowed = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> allowed && allowed > 0) bytes = std::min(bytes, allowed);
  return bytes / 2;
}

struct PoolOfProcess {
  unsigned generation;
  Result<std::shared_ptr<BlockPool>> pool;
};

// What a child of fork(2) finds as it was at that moment: no other thread may be about to change it then. So there is
// nothing here that would be made when it is first needed.
constinit std::mutex poolsMutex;
constinit std::deque<PoolOfProcess>* pools = nullptr;  // NOLINT: tensors may outlive everything else
constinit std::atomic<unsigned> forks = 0;             // that led to this process
const int kForkHandlers = ::pthread_atfork([] { poolsMutex.lock(); }, [] { poolsMutex.unlock(); },
                                           [] {
                                             forks.fetch_add(1);
                                             poolsMutex.unlock();
                                           });

unsigned generation() {
  TREADLE_CHECK(kForkHandlers == 0, "the C library has memory for another fork handler");
  return forks.load(std::memory_order_relaxed);
}

// `why`: it cannot be shared.
Result<io::SharedMemory> makeArena(size_t sizeBytes, Status& why) {
  auto shared = io::SharedMemory::create(sizeBytes);
  if (shared.ok()) return shared;
  why = shared.status();
  logInfo("", "tensors go through sockets on this host: " + why.message());
  return io::SharedMemory::createPrivate(sizeBytes);
}

}  // namespace

Block::Block(std::shared_ptr<BlockPool> pool, size_t offset, uint32_t sizeClass, bool fresh)
    : pool_(std::move(pool)), offset_(offset), sizeClass_(sizeClass), fresh_(fresh) {}

Block::~Block() {
  if (pool_->ofThisProcess()) pool_->giveBack(offset_, sizeClass_, fresh_, retired_.load());
}

std::byte* Block::data() {
  fresh_ = false;
  return pool_->arena().bytes().data() + offset_;
}

void Block::fill(Bytes bytes) {
  TREADLE_CHECK(bytes.size() <= capacity(), "a block is filled with what it was allocated for");
  bool fresh = fresh_;
  std::byte* to = data();
  pool_->copier().copy(bytes.size(), [&](size_t begin, size_t size) {
    if (fresh) return pool_->arena().writeFresh(offset_ + begin, bytes.subspan(begin, size));
    std::memcpy(to + begin, bytes.data() + begin, size);
  });
}

Result<std::shared_ptr<BlockPool>> BlockPool::make(size_t limitBytes) {
  size_t space = (limitBytes * kSpacePerByte + pageBytes() - 1) / pageBytes() * pageBytes();
  Status why;
  Result<io::SharedMemory> arena = makeArena(space, why);
  if (!arena.ok()) return std::move(arena).status();
  return std::shared_ptr<BlockPool>(new BlockPool(limitBytes, std::move(*arena), std::move(why)));  // NOLINT: private
}

BlockPool::BlockPool(size_t limitBytes, io::SharedMemory arena, Status sharing)
    : generation_(generation()),
      budget_(std::make_shared<MemoryBudget>(limitBytes)),
      arena_(std::move(arena)),
      sharing_(std::move(sharing)),
      unused_(arena_.bytes().size()) {}

namespace {

// A child of fork(2) has its parent's pool before its eyes, whose pages are the parent's: it gets one of its own.
const Result<std::shared_ptr<BlockPool>>& poolOfProcess() {
  const std::scoped_lock lock(poolsMutex);
  if (pools == nullptr) pools = new std::deque<PoolOfProcess>();  // NOLINT: likewise
  if (pools->empty() || pools->back().generation != generation()) {
    auto pool = BlockPool::make(halfOfMemory());
    if (!pool.ok()) logInfo("", "memory of tensors is not kept for reuse: " + pool.status().message());
    pools->push_back({generation(), std::move(pool)});
  }
  return pools->back().pool;
}

}  // namespace

BlockPool* BlockPool::ofProcess() {
  const auto& pool = poolOfProcess();
  return pool.ok() ? (*pool).get() : nullptr;
}

Status BlockPool::statusOfProcess() { return poolOfProcess().status(); }

std::shared_ptr<Block> BlockPool::allocate(size_t sizeBytes) {
  if (sizeBytes > limitBytes()) return nullptr;
  uint32_t wanted = sizeClass(sizeBytes);
  MutexLock lock(mutex_);
  if (!lost_.empty()) takeRecovered();
  std::optional<Place> place = takeWarm(wanted);
  bool fresh = !place;
  if (fresh) {
    std::optional<size_t> offset = takeFresh(classBytes(wanted));
    if (offset) place = Place{*offset, wanted};
    fresh = offset && *offset + classBytes(wanted) > warmTo_;
  }
  if (!place) {
    ++counters_.refused;
    settle();
    lock.unlock();
    return nullptr;
  }
  ++counters_.allocations;
  counters_.usedBytes += classBytes(place->sizeClass);
  auto block = std::make_shared<Block>(shared_from_this(), place->offset, place->sizeClass, fresh);
  used_[place->offset] = block;
  settle();
  lock.unlock();
  return block;
}

// The block of that size, or of up to twice as much, that was freed last: a program whose tensors have many sizes would
// otherwise come to hold as many blocks of each as it ever had at once.
std::optional<BlockPool::Place> BlockPool::takeWarm(uint32_t wanted) {
  for (auto blocks = warm_.lower_bound(wanted); blocks != warm_.end(); ++blocks) {
    auto& [sizeClass, offsets] = *blocks;
    if (classBytes(sizeClass) > 2 * classBytes(wanted)) break;
    if (offsets.empty()) continue;
    Place place{offsets.back(), sizeClass};
    offsets.pop_back();
    counters_.freeBytes -= classBytes(sizeClass);
    ++counters_.reused;
    return place;
  }
  return std::nullopt;
}

std::shared_ptr<Block> BlockPool::find(size_t offset) const {
  MutexLock lock(mutex_);
  auto found = used_.find(offset);
  return found == used_.end() ? nullptr : found->second.lock();
}

// Blocks of other sizes that lie idle give way, the largest first, and of those the one that was not used for longest.
// Idle memory of others that take from the budget gives way where these are not enough. Nothing does so in vain.
std::optional<size_t> BlockPool::takeFresh(size_t bytes) {
  settle();
  if (bytes > counters_.freeBytes && !budget_->makeRoom(bytes - counters_.freeBytes)) return std::nullopt;
  for (auto blocks = warm_.rbegin();; ++blocks) {
    if (std::optional<size_t> offset = takeUnused(bytes)) return offset;
    while (blocks != warm_.rend() && blocks->second.empty()) ++blocks;
    if (blocks == warm_.rend()) return std::nullopt;
    for (size_t offset : std::exchange(blocks->second, {})) discard(blocks->first, offset);
  }
}

// The caller counts the block, or settles the budget again.
std::optional<size_t> BlockPool::takeUnused(size_t bytes) {
  settle();
  if (!budget_->take(bytes)) return std::nullopt;
  takenBytes_ += bytes;
  return unused_.take(bytes);
}

void BlockPool::discard(uint32_t sizeClass, size_t offset) {
  warmTo_ = std::min(warmTo_, offset);
  prefaultTo_ = std::min(prefaultTo_, offset);
  arena_.discard(offset, classBytes(sizeClass));
  counters_.freeBytes -= classBytes(sizeClass);
  unused_.give(offset, classBytes(sizeClass));
}

bool BlockPool::ofThisProcess() const { return generation_ == generation(); }

void BlockPool::giveBack(size_t offset, uint32_t sizeClass, bool fresh, bool retired) {
  MutexLock lock(mutex_);
  counters_.usedBytes -= classBytes(sizeClass);
  used_.erase(offset);
  if (!retired) keepOrDiscard(offset, sizeClass, fresh);
  settle();
}

void BlockPool::keepOrDiscard(size_t offset, uint32_t sizeClass, bool fresh) {
  if (fresh) return unused_.give(offset, classBytes(sizeClass));
  counters_.freeBytes += classBytes(sizeClass);
  if (budget_->exceeded()) return discard(sizeClass, offset);
  warm_[sizeClass].push_back(offset);
}

void BlockPool::recover(const std::vector<std::shared_ptr<Block>>& blocks, io::ProcessHandle holder) {
  if (blocks.empty() || (holder.valid() && holder.ended())) return;
  Lost lost{std::move(holder), {}};
  for (const auto& block : blocks) {
    block->retire();
    lost.places.push_back({block->offset(), block->sizeClass()});
  }
  MutexLock lock(mutex_);
  for (const Place& place : lost.places) counters_.lostBytes += classBytes(place.sizeClass);
  lost_.push_back(std::move(lost));
  settle();
}

// Not what this process still uses itself.
void BlockPool::takeRecovered() {
  for (Lost& lost : lost_) {
    if (!lost.holder.valid() || !lost.holder.ended()) continue;
    std::erase_if(lost.places, [this](const Place& place) TREADLE_REQUIRES(mutex_) {
      if (used_.contains(place.offset)) return false;
      counters_.lostBytes -= classBytes(place.sizeClass);
      counters_.freeBytes += classBytes(place.sizeClass);
      warm_[place.sizeClass].push_back(place.offset);
      return true;
    });
  }
  std::erase_if(lost_, [](const Lost& lost) { return lost.places.empty(); });
}

// Makes the budget agree with the counters. What is lost may go over the limit.
void BlockPool::settle() {
  const size_t held = counters_.usedBytes + counters_.freeBytes + counters_.lostBytes;
  if (held > takenBytes_) budget_->takeAnyway(held - takenBytes_);
  if (held < takenBytes_) budget_->give(takenBytes_ - held);
  takenBytes_ = held;
}

void BlockPool::limitTo(size_t bytes) {
  budget_->limitTo(bytes);
  if (!budget_->exceeded()) return;
  trim();
  budget_->makeRoom(0);
}

void BlockPool::trim() {
  MutexLock lock(mutex_);
  for (auto& [sizeClass, offsets] : warm_)
    for (size_t offset : std::exchange(offsets, {})) discard(sizeClass, offset);
  discardUnused(0, warmTo_);
  warmTo_ = prefaultTo_ = 0;
  prefaultEnds_.notifyAll();
  settle();
}

void BlockPool::discardUnused(size_t begin, size_t end) {
  unused_.forEach([&](size_t at, size_t size) {
    size_t from = std::max(at, begin), to = std::min(at + size, end);
    if (from < to) arena_.discard(from, to - from);
  });
}

void BlockPool::prefault(size_t sizeBytes) {
  sizeBytes = std::min(sizeBytes, limitBytes() / kPrefaultShare) / kPrefaultStep * kPrefaultStep;
  MutexLock lock(mutex_);
  if (sizeBytes == 0 || prefaulter_.joinable()) return;
  prefaultTo_ = sizeBytes;
  try {
    prefaulter_ = std::thread([this] { prefaultLoop(); });
  } catch (const std::system_error&) {  // no thread is to be had: the first blocks are cold then
  }
}

// Note [Pace]
// The kernel holds a lock of the whole address space while it faults pages in, which brk, munmap and mprotect of every
// other thread need. A thread of low priority that holds it on a busy machine, and gets no processor, stops the
// process: jobs of five on two busy processors took 14 s in place of 5. So it has the usual priority, and leaves the
// lock alone nine tenths of the time.
void BlockPool::prefaultLoop() {
  MutexLock lock(mutex_);
  for (size_t at = 0; at < prefaultTo_; at += kPrefaultStep) {
    lock.unlock();
    bool populated = arena_.populate(at, kPrefaultStep);
    lock.lock();
    if (at >= prefaultTo_) discardUnused(at, at + kPrefaultStep);  // trimmed or ended meanwhile
    if (!populated || at >= prefaultTo_) return;
    warmTo_ = at + kPrefaultStep;
    const TimePoint next = deadlineAfter(kPrefaultPause);
    while (at < prefaultTo_ && prefaultEnds_.waitUntil(lock, next)) continue;
  }
}

BlockPool::~BlockPool() {
  std::thread prefaulter;
  {
    MutexLock lock(mutex_);
    prefaultTo_ = 0;
    prefaultEnds_.notifyAll();
    prefaulter = std::move(prefaulter_);
  }
  if (prefaulter.joinable()) prefaulter.join();
  MutexLock lock(mutex_);
  budget_->give(takenBytes_);
}

Buffer bufferOver(std::shared_ptr<Block> block, size_t sizeBytes) {
  std::byte* data = block->data();
  return {data, sizeBytes, std::move(block)};
}

namespace {

std::shared_ptr<Block> blockFor(BlockPool* pool, size_t sizeBytes) {
  return pool != nullptr && sizeBytes >= kSmallestBlock ? pool->allocate(sizeBytes) : nullptr;
}

}  // namespace

Buffer allocateFrom(BlockPool* pool, size_t sizeBytes) {
  auto block = blockFor(pool, sizeBytes);
  return block ? bufferOver(std::move(block), sizeBytes) : allocateBuffer(sizeBytes);
}

Buffer copyTo(BlockPool* pool, Bytes bytes) {
  if (auto block = blockFor(pool, bytes.size())) {
    block->fill(bytes);
    return bufferOver(std::move(block), bytes.size());
  }
  Buffer copy = allocateBuffer(bytes.size());
  if (!bytes.empty()) std::memcpy(copy.data, bytes.data(), bytes.size());
  return copy;
}

PoolCounters BlockPool::counters() const {
  MutexLock lock(mutex_);
  PoolCounters counters = counters_;
  counters.orphanedBytes = reclaimer_.keptBytes();
  return counters;
}

}  // namespace treadle::memory
