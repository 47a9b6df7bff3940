#include "treadle/core/link/peer_memory.h"

#include <array>

namespace treadle::link {
namespace {

constexpr size_t kAlignment = 64;  // what Buffer promises of a block's start

}  // namespace

// Keeps the mapping of the peer's arena, whatever becomes of the peer and of the connections.
class PeerMemory::Borrowed final : public Memory {
 public:
  Borrowed(std::shared_ptr<PeerMemory> from, uint64_t offset, std::shared_ptr<memory::Block> block,
           std::shared_ptr<const io::SharedMemory> mapping)
      : from(std::move(from)), offset(offset), block(std::move(block)), mapping(std::move(mapping)) {}
  ~Borrowed() override {
    if (!returned && from->pool_->ofThisProcess()) from->giveBack(offset);
  }

  const std::shared_ptr<PeerMemory> from;
  const uint64_t offset;
  const std::shared_ptr<memory::Block> block;             // when it is this process's own
  const std::shared_ptr<const io::SharedMemory> mapping;  // otherwise
  std::atomic<bool> returned = false;                     // the peer has it again, or will
};

const io::SharedMemory* PeerMemory::arena() const {
  return pool_ != nullptr && pool_->arena().shareable() ? &pool_->arena() : nullptr;
}

wire::BufferEntry PeerMemory::place(const Buffer& buffer) {
  wire::BufferEntry entry{buffer.sizeBytes, wire::Place::kInline, 0};
  if (buffer.given) {
    wire::Place place = wire::Place::kInline;
    if (std::optional<uint64_t> at = give(buffer, place)) return {buffer.sizeBytes, place, *at};
  }
  if (!mapped_.load() || !mayLend(buffer.sizeBytes)) return entry;
  std::shared_ptr<memory::Block> block = pool_->allocate(buffer.sizeBytes);
  if (!block) return entry;
  block->fill(buffer.bytes());
  if (std::optional<uint64_t> at = lend(std::move(block))) return {buffer.sizeBytes, wire::Place::kLent, *at};
  return entry;
}

// Without a copy: what is given away is a block of this worker's pool, or one that the peer has lent.
std::optional<uint64_t> PeerMemory::give(const Buffer& buffer, wire::Place& place) {
  if (auto block = std::dynamic_pointer_cast<memory::Block>(buffer.owner)) {
    if (!mapped_.load() || &block->pool() != pool_ || buffer.data != block->data()) return std::nullopt;
    place = wire::Place::kLent;
    return lend(std::move(block));
  }
  auto* borrowed = dynamic_cast<Borrowed*>(buffer.owner.get());
  if (borrowed == nullptr || borrowed->from.get() != this) return std::nullopt;
  MutexLock lock(mutex_);
  if (closed_ || buffer.data != peerArena_.data() + borrowed->offset) return std::nullopt;
  borrowed->returned.store(true);
  borrowed_.erase(borrowed->offset);
  place = wire::Place::kReturned;
  return borrowed->offset;
}

// Asked before the bytes are copied; `lend` decides.
bool PeerMemory::mayLend(size_t bytes) {
  MutexLock lock(mutex_);
  return lentBytes_ + bytes <= lendLimitBytes_;
}

std::optional<uint64_t> PeerMemory::lend(std::shared_ptr<memory::Block> block) {
  MutexLock lock(mutex_);
  if (closed_ || lentBytes_ + block->capacity() > lendLimitBytes_) return std::nullopt;
  lentBytes_ += block->capacity();
  uint64_t offset = block->offset();
  lent_.emplace(offset, std::move(block));
  return offset;
}

void PeerMemory::setMapped(io::ProcessHandle holder) {
  MutexLock lock(mutex_);
  holder_ = std::move(holder);
  mapped_.store(!closed_);
}

void PeerMemory::setRefused(std::string reason) {
  MutexLock lock(mutex_);
  refused_ = std::move(reason);
}

Status PeerMemory::sharing() const {
  if (pool_ == nullptr) return failedPrecondition("this worker shares no memory");
  if (!pool_->sharing().ok()) return pool_->sharing();
  MutexLock lock(mutex_);
  if (closed_) return cancelled("the connection is closed");
  if (!refused_.empty()) return failedPrecondition("the peer does not take it: " + refused_);
  return mapped_.load() ? Status() : failedPrecondition("the peer has not answered the offer of memory yet");
}

void PeerMemory::takeBack(std::span<const wire::BufferEntry> entries, std::span<const uint64_t> releases) {
  for (uint64_t offset : releases) giveBack(offset);
  for (const wire::BufferEntry& entry : entries) {
    if (entry.place == wire::Place::kLent) released(std::array{entry.at}).ignore();
    // It was this worker's to hold: now it is nobody's.
    if (entry.place == wire::Place::kReturned) giveBack(entry.at);
  }
}

// The block that was lent there, of at least `sizeBytes`; null when none was.
std::shared_ptr<memory::Block> PeerMemory::endLoan(uint64_t offset, size_t sizeBytes) {
  auto found = lent_.find(offset);
  if (found == lent_.end() || found->second->capacity() < sizeBytes) return nullptr;
  std::shared_ptr<memory::Block> block = std::move(found->second);
  lent_.erase(found);
  lentBytes_ -= block->capacity();
  return block;
}

Status PeerMemory::released(std::span<const uint64_t> offsets) {
  std::vector<std::shared_ptr<memory::Block>> back;  // freed after the lock is let go
  MutexLock lock(mutex_);
  for (uint64_t offset : offsets) {
    back.push_back(endLoan(offset, 0));
    if (!back.back()) return dataLoss("it gave back memory that it does not hold");
  }
  lock.unlock();
  return {};
}

Status PeerMemory::setPeerArena(io::Fd descriptor) {
  if (pool_ == nullptr) return failedPrecondition("shared memory is not among the channels that it may use");
  Result<io::SharedMemory> arena = io::SharedMemory::adopt(std::move(descriptor));
  if (!arena.ok()) return std::move(arena).status();
  MutexLock lock(mutex_);
  if (closed_) return cancelled("the connection is closed");
  if (!peerArena_.empty()) return failedPrecondition("it shared its memory twice");
  sameProcess_ = arena->identity() == pool_->arena().identity();
  if (!sameProcess_) mapping_ = std::make_shared<const io::SharedMemory>(std::move(*arena));
  peerArena_ = (sameProcess_ ? pool_->arena() : *mapping_).bytes();
  return {};
}

Result<Buffer> PeerMemory::resolve(const wire::BufferEntry& entry) {
  MutexLock lock(mutex_);
  if (closed_) return Status(Code::kPeerLost, "its connection closed");
  if (entry.place == wire::Place::kReturned) {
    std::shared_ptr<memory::Block> block = endLoan(entry.at, entry.sizeBytes);
    if (!block) return dataLoss("it returned memory that it does not hold");
    return memory::bufferOver(std::move(block), entry.sizeBytes);
  }
  if (entry.at % kAlignment != 0) return dataLoss("it lent memory that is not aligned");
  if (entry.at >= peerArena_.size() || entry.sizeBytes > peerArena_.size() - entry.at)
    return dataLoss("it lent memory outside of what it shares");
  std::shared_ptr<memory::Block> block = sameProcess_ ? pool_->find(entry.at) : nullptr;
  if (sameProcess_ && (!block || block->capacity() < entry.sizeBytes))
    return dataLoss("it lent memory that is not in use");
  if (!borrowed_.emplace(entry.at, entry.sizeBytes).second) return dataLoss("it lent the same memory twice");
  auto owner = std::make_shared<Borrowed>(shared_from_this(), entry.at, std::move(block), mapping_);
  return Buffer{peerArena_.data() + entry.at, entry.sizeBytes, std::move(owner)};
}

Status PeerMemory::setPulse(uint64_t offset) {
  MutexLock lock(mutex_);
  if (closed_) return {};
  if (offset % kAlignment != 0 || offset >= peerArena_.size() || peerArena_.size() - offset < sizeof(uint64_t))
    return dataLoss("it has its pulse outside of what it shares");
  if (pulse_ != nullptr) return dataLoss("it has a second pulse");
  pulse_ = reinterpret_cast<uint64_t*>(peerArena_.data() + offset);
  return {};
}

std::optional<uint64_t> PeerMemory::pulse() const {
  MutexLock lock(mutex_);
  if (pulse_ == nullptr) return std::nullopt;
  return std::atomic_ref(*pulse_).load(std::memory_order_relaxed);
}

// The hook is called with the lock held, so that it never runs after `close`.
void PeerMemory::giveBack(uint64_t offset) {
  MutexLock lock(mutex_);
  borrowed_.erase(offset);
  if (closed_) {
    const bool hurry = reclaims_;
    lock.unlock();
    if (hurry) pool_->reclaimer().hurry();
    return;
  }
  releases_.push_back(offset);
  if (releasesWait_.exchange(true)) return;
  if (releaseHook_) releaseHook_();
}

void PeerMemory::setReleaseHook(std::function<void()> hook) {
  MutexLock lock(mutex_);
  releaseHook_ = std::move(hook);
}

std::vector<uint64_t> PeerMemory::takeReleases() {
  if (!releasesWait_.load()) return {};
  MutexLock lock(mutex_);
  releasesWait_.store(false);
  return std::exchange(releases_, {});
}

void PeerMemory::addConnection() {
  MutexLock lock(mutex_);
  ++connections_;
}

void PeerMemory::removeConnection() {
  {
    MutexLock lock(mutex_);
    // Of a worker of this process nothing keeps what it lent when it goes.
    if (--connections_ > 0 && !sameProcess_) return;
  }
  close();
}

void PeerMemory::close() {
  std::vector<std::shared_ptr<memory::Block>> held;
  std::shared_ptr<const io::SharedMemory> mapping;  // unmapped after the lock is let go
  MutexLock lock(mutex_);
  if (std::exchange(closed_, true)) return;
  mapping.swap(mapping_);
  pulse_ = nullptr;
  releaseHook_ = nullptr;
  releases_.clear();
  mapped_.store(false);
  for (auto& [offset, block] : lent_) held.push_back(std::move(block));
  lent_.clear();
  const bool here = sameProcess_;
  // A child of fork(2) has its parent's locks before it.
  reclaims_ = mapping && mapping->reclaimable() && pool_->ofThisProcess();
  const bool reclaims = reclaims_;
  io::ProcessHandle holder = std::move(holder_);
  lock.unlock();
  // A worker of this process holds its own share of each block that it still needs.
  if (pool_ != nullptr && !here) pool_->recover(held, std::move(holder));
  if (reclaims) reclaim(std::move(mapping));
}

// Also when nothing is borrowed: this worker may be the last one that claims the pages which others wait for.
void PeerMemory::reclaim(std::shared_ptr<const io::SharedMemory> mapping) {
  pool_->reclaimer().add(std::move(mapping), [weak = weak_from_this()] {
    auto self = weak.lock();  // each borrowed block holds it
    return self ? self->borrowed() : std::vector<io::SharedMemory::Range>();
  });
}

std::vector<io::SharedMemory::Range> PeerMemory::borrowed() const {
  std::vector<io::SharedMemory::Range> ranges;
  MutexLock lock(mutex_);
  for (auto [offset, sizeBytes] : borrowed_) ranges.push_back({offset, sizeBytes});
  return ranges;
}

}  // namespace treadle::link
