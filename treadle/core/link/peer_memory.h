#pragma once
// The memory that this worker and one peer on the same host share, for both of their connections. Each side maps the
// other's arena once; then a tensor is handed over as a place in it. Who receives a *lent* block has it until it tells
// the owner that it is done (a release) or *returns* it in a message of its own. The protocol is in
// docs/protocol/link.md.
//
// Nothing that the peer says is trusted: a place must lie in the arena that it shared, and a block that comes back must
// have been lent to it. What it holds when it is lost is used again only when its process is known to be gone.
//
// Held by the peer's connections and by every block borrowed from the peer. Any thread may call anything. When the peer
// is gone and a tensor here still lies in its arena, the pool's reclaimer gives the rest of the arena back.
//
// Budget of a buffer, of uncontended locks and small allocations: lent as a copy, two locks and an entry, beside the
// block's own and the copy; given away, one lock and an entry; received, one lock and two allocations (its entry, its
// owner); let go of, one lock, and one more for all that go back with a message. At the owner one lock for all of
// them, beside freeing the blocks. No system call in any, but for the copy's pwrite into pages that are fresh.

#include <atomic>
#include <functional>
#include <map>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/memory/block_pool.h"
#include "treadle/core/wire/frame.h"

namespace treadle::link {

class PeerMemory : public std::enable_shared_from_this<PeerMemory> {
 public:
  // `pool`: whose blocks are lent, at most `lendLimitBytes` at a time; null: none. It must outlive this object.
  PeerMemory(memory::BlockPool* pool, size_t lendLimitBytes) : pool_(pool), lendLimitBytes_(lendLimitBytes) {}

  // ---- this worker's blocks

  const io::SharedMemory* arena() const;  // null: there is none to share
  // The peer, of process `holder`, has mapped the arena.
  void setMapped(io::ProcessHandle holder);
  bool mapped() const { return mapped_.load(); }
  // The peer does not map it, and says why.
  void setRefused(std::string reason);
  // OK when blocks can be lent to the peer, otherwise why not: told in Worker::channelsTo.
  Status sharing() const;

  // Where the peer finds the bytes of `buffer`: in a block of this worker or of the peer that is given away, or else in
  // a new block that they are copied to. An entry of kInline when it cannot be shared: the bytes must be sent.
  wire::BufferEntry place(const Buffer& buffer);
  // The message of these entries, and of these releases, was not sent.
  void takeBack(std::span<const wire::BufferEntry> entries, std::span<const uint64_t> releases = {});

  // ---- the peer's blocks

  // DataLoss for memory that is none that may be shared; FailedPrecondition when there is an arena already.
  Status setPeerArena(io::Fd descriptor);
  // The bytes of an entry, lent or returned. DataLoss for a place that cannot be.
  Result<Buffer> resolve(const wire::BufferEntry& entry);
  // The peer is done with these blocks of this worker. DataLoss when it does not hold them.
  Status released(std::span<const uint64_t> offsets);

  // The peer counts up the number there for as long as it lives. DataLoss for a place that cannot be, or a second one.
  Status setPulse(uint64_t offset);
  // That number; none before the peer has told its place.
  std::optional<uint64_t> pulse() const;

  // Called whenever the first block waits to be given back: see to it that `takeReleases` is called soon.
  void setReleaseHook(std::function<void()> hook);
  // Blocks of the peer that nobody here holds any more: to be told to it.
  std::vector<uint64_t> takeReleases();

  // A connection to the peer uses it from now on; it does no more, and with the last one the peer is gone, or this
  // worker goes.
  void addConnection();
  void removeConnection();
  void close();

 private:
  class Borrowed;

  bool mayLend(size_t bytes);
  std::optional<uint64_t> lend(std::shared_ptr<memory::Block> block);
  std::optional<uint64_t> give(const Buffer& buffer, wire::Place& place);
  std::shared_ptr<memory::Block> endLoan(uint64_t offset, size_t sizeBytes) TREADLE_REQUIRES(mutex_);
  void giveBack(uint64_t offset);
  void reclaim(std::shared_ptr<const io::SharedMemory> mapping);
  std::vector<io::SharedMemory::Range> borrowed() const;

  memory::BlockPool* const pool_;
  const size_t lendLimitBytes_;
  std::atomic<bool> mapped_ = false;
  std::atomic<bool> releasesWait_ = false;

  mutable Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<memory::Block>> lent_ TREADLE_GUARDED_BY(mutex_);
  size_t lentBytes_ TREADLE_GUARDED_BY(mutex_) = 0;
  io::ProcessHandle holder_ TREADLE_GUARDED_BY(mutex_);  // of what is lent
  // Held here until `close`, then by the reclaimer and by each block borrowed.
  std::shared_ptr<const io::SharedMemory> mapping_ TREADLE_GUARDED_BY(mutex_);
  MutableBytes peerArena_ TREADLE_GUARDED_BY(mutex_);
  bool sameProcess_ TREADLE_GUARDED_BY(mutex_) = false;             // the peer is a worker here: its arena is ours
  uint64_t* pulse_ TREADLE_GUARDED_BY(mutex_) = nullptr;            // in the peer's arena
  std::map<uint64_t, size_t> borrowed_ TREADLE_GUARDED_BY(mutex_);  // of the peer, held here: offsets and sizes
  bool reclaims_ TREADLE_GUARDED_BY(mutex_) = false;  // the reclaimer has the mapping of a peer that is gone
  std::vector<uint64_t> releases_ TREADLE_GUARDED_BY(mutex_);
  std::function<void()> releaseHook_ TREADLE_GUARDED_BY(mutex_);
  int connections_ TREADLE_GUARDED_BY(mutex_) = 0;
  bool closed_ TREADLE_GUARDED_BY(mutex_) = false;
  std::string refused_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::link
