#pragma once
// Cross-memory attach: large buffers of a caller that waits for its answer are read by the callee straight from the
// caller's own memory, with one copy. It stands in where two workers of a host cannot share memory.
//
// The caller *offers* a buffer: a slot of a table in its memory says under which number it lies where, for as long as
// the call is waited for. Then the offer is *withdrawn*: the slot is emptied before the caller goes on, and so before
// it can write to the buffer. Who reads looks at the slot before and after: when the number still stands there, what it
// has read is what was sent. Nobody has to be asked or waited for. The messages are in docs/protocol/link.md.
//
// Nothing that the peer says is trusted: what can be read is its own memory, and of what cannot be read the
// message fails. Any thread may call anything.

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/io/process_memory.h"
#include "treadle/core/link/arrival.h"
#include "treadle/core/memory/block_pool.h"
#include "treadle/core/wire/frame.h"

namespace treadle::link {

// What one connection offers at a time. It is read by another process: the layout travels.
class OfferTable {
 public:
  static constexpr size_t kSlots = 64;
  struct Slot {
    std::atomic<uint64_t> number = 0;   // 0: nothing is offered
    std::atomic<uint64_t> address = 0;  // of the bytes, in this process
  };
  struct Layout {
    uint64_t mark;  // drawn at random: tells this process from one that came to have its number
    std::array<Slot, kSlots> slots;
  };

  OfferTable();
  uint64_t mark() const { return layout_.mark; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(&layout_); }

  // The number of an offer, or none when all slots are taken.
  std::optional<uint64_t> offer(const Buffer& buffer);
  // Afterwards whoever reads the buffer finds out that it came too late.
  void withdraw(uint64_t number);

 private:
  Layout layout_;
  Mutex mutex_;
  uint64_t last_ TREADLE_GUARDED_BY(mutex_) = 0;
};

// The offers of one message. Keeps the buffers, and what else owns their memory, until they are withdrawn, which its
// end does.
class MemoryOffer {
 public:
  MemoryOffer(std::shared_ptr<OfferTable> table, std::span<const Buffer> buffers, size_t smallestBytes);
  ~MemoryOffer();
  MemoryOffer(const MemoryOffer&) = delete;
  MemoryOffer& operator=(const MemoryOffer&) = delete;

  // What borrowed buffers lie in.
  void keep(std::vector<std::shared_ptr<void>> owners) { owners_ = std::move(owners); }
  // Of the message's buffer `index`; 0: it is not offered.
  uint64_t number(size_t index) const { return numbers_[index]; }

 private:
  const std::shared_ptr<OfferTable> table_;
  const std::vector<Buffer> buffers_;
  std::vector<std::shared_ptr<void>> owners_;
  std::vector<uint64_t> numbers_;
};

// The other side: reads what a peer offers.
class OfferReader {
 public:
  // The table of the process at the other end of a UNIX socket, at the address and of the mark that it told. At most
  // `limitBytes` and kMostReadings messages are read at a time; `pool` may be null. A failed status: why its memory
  // cannot be read.
  static Result<std::shared_ptr<OfferReader>> make(int socket, uint64_t address, uint64_t mark, memory::BlockPool* pool,
                                                   uint64_t limitBytes);
  OfferReader(io::ProcessMemory peer, uint64_t address, uint64_t mark, memory::BlockPool* pool, uint64_t limitBytes)
      : peer_(peer), address_(address), mark_(mark), pool_(pool), limitBytes_(limitBytes) {}

  static constexpr size_t kMostReadings = 2 * OfferTable::kSlots;  // some may be of callers that wait no more

  // The buffers of one message that are read from the peer.
  struct Reading {
    std::vector<std::pair<uint64_t, Buffer>> offers;  // by number
    std::shared_ptr<Arrival> arrival;
    uint64_t bytes = 0;
  };
  // Gives each entry of kOffered its buffer, to be filled by `read`. ResourceExhausted beyond the limit or without
  // memory; DataLoss for an entry that cannot be.
  Result<Reading> announce(std::span<const wire::BufferEntry> entries, std::span<Buffer> buffers);
  // Reads them all; as long as a copy of them takes. Cancelled: they were withdrawn, or the connection has
  // ended. Otherwise as io::ProcessMemory::read.
  Status read(const Reading& reading);
  // `reading` is over. Tells whoever waits for its buffers how it ended.
  void finish(const Reading& reading, const Status& how);

  // Tells those who wait that the connection has ended.
  void close(const Status& why);

 private:
  Result<uint64_t> addressOf(uint64_t number) const;
  Status readOne(uint64_t number, MutableBytes to);
  Status readPart(uint64_t address, MutableBytes to);

  const io::ProcessMemory peer_;
  const uint64_t address_, mark_;
  memory::BlockPool* const pool_;
  const uint64_t limitBytes_;
  memory::Copier copier_;  // not the pool's: a peer may make it wait
  std::atomic<bool> ended_ = false;
  Mutex mutex_;
  uint64_t openBytes_ TREADLE_GUARDED_BY(mutex_) = 0;
  std::set<std::shared_ptr<Arrival>> open_ TREADLE_GUARDED_BY(mutex_);
  Status closed_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::link
