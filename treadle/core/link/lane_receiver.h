#pragma once
// The receiving half of a connection's lanes: puts the pieces of large buffers together, straight from the sockets into
// their memory. A piece may come before the message that announces it; a message is handed up before its pieces are
// there, with an Arrival that says when they are.
//
// Nothing that the peer says is trusted: buffers that are under way stay within a limit, a piece lies within its
// buffer, and no byte comes twice. Any thread may call anything; a piece is filled by one thread.
//
// Budget of a piece: two uncontended locks, and an allocation where it splits what is missing. Of a buffer: its memory,
// an entry, the list of what is missing, and with the others of its message an Arrival and one lock.

#include <map>
#include <memory>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/link/arrival.h"
#include "treadle/core/memory/block_pool.h"
#include "treadle/core/memory/free_ranges.h"
#include "treadle/core/wire/frame.h"

namespace treadle::link {

class LaneReceiver {
 public:
  // At most `limitBytes` of buffers are under way at a time; `pool` may be null.
  LaneReceiver(memory::BlockPool* pool, uint64_t limitBytes) : pool_(pool), limitBytes_(limitBytes) {}

  // Where the bytes of a piece go. DataLoss for one that cannot be, ResourceExhausted beyond the limit or without
  // memory.
  Result<Buffer> memoryFor(const wire::Piece& piece);
  // Its bytes are there; whether they were the last of a buffer that is announced.
  bool filled(const wire::Piece& piece);

  // Gives each entry of kOnLanes its buffer, whose bytes may be still to come: null when none are.
  Result<std::shared_ptr<Arrival>> announce(std::span<const wire::BufferEntry> entries, std::span<Buffer> buffers);

  // Lets go of what will never be whole, and tells those who wait for it.
  void clear(const Status& why);

 private:
  struct Incoming {
    Buffer buffer;
    memory::FreeRanges missing{0};
    uint64_t unfilled = 0;
    bool announced = false;
    std::shared_ptr<Arrival> arrival;  // once it is announced
  };
  using IncomingBuffers = std::map<uint64_t, Incoming>;

  Result<IncomingBuffers::iterator> find(uint64_t number, uint64_t totalBytes) TREADLE_REQUIRES(mutex_);
  void erase(IncomingBuffers::iterator whole) TREADLE_REQUIRES(mutex_);

  memory::BlockPool* const pool_;
  const uint64_t limitBytes_;
  Mutex mutex_;
  IncomingBuffers incoming_ TREADLE_GUARDED_BY(mutex_);
  uint64_t openBytes_ TREADLE_GUARDED_BY(mutex_) = 0;
  Status closed_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::link
