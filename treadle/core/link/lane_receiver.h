#pragma once
// The receiving half of a connection's lanes: puts the pieces of large buffers together, straight from the sockets into
// their memory, and holds a message back until all of its buffers are whole. A piece may come before the message that
// announces it.
//
// Nothing that the peer says is trusted: buffers that are under way stay within the connection's limit, a piece lies
// within its buffer, and no byte comes twice. Any thread may call anything; a piece is filled by one thread.

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/link/message.h"
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
  Result<Buffer> memoryFor(const wire::PieceHeader& piece, uint64_t sizeBytes);
  // Its bytes are there: the messages that are whole now.
  std::vector<Message> filled(const wire::PieceHeader& piece, uint64_t sizeBytes);

  // A message whose buffers of place kOnLanes are empty yet: what is whole now, the message or nothing.
  Result<std::vector<Message>> announce(Message message, std::span<const wire::BufferEntry> entries);

  // Lets go of what will never be whole.
  void clear();

 private:
  struct Incoming {
    Buffer buffer;
    memory::FreeRanges missing{0};
    uint64_t unfilled = 0;
    uint64_t message = 0;  // 0: not announced yet
    size_t index = 0;      // among its buffers
  };
  struct Parked {
    Message message;
    size_t missing = 0;  // buffers
  };

  Result<Incoming*> find(uint64_t number, uint64_t totalBytes) TREADLE_REQUIRES(mutex_);
  void collect(uint64_t number, std::vector<Message>& whole) TREADLE_REQUIRES(mutex_);

  memory::BlockPool* const pool_;
  const uint64_t limitBytes_;
  Mutex mutex_;
  std::map<uint64_t, Incoming> incoming_ TREADLE_GUARDED_BY(mutex_);
  std::map<uint64_t, Parked> parked_ TREADLE_GUARDED_BY(mutex_);
  uint64_t lastParked_ TREADLE_GUARDED_BY(mutex_) = 0;
  uint64_t openBytes_ TREADLE_GUARDED_BY(mutex_) = 0;
};

}  // namespace treadle::link
