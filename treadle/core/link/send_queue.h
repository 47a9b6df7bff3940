#pragma once
// The sending half of a connection: whole frames in, bytes to the socket, in order. A sender writes to the socket
// itself as far as it takes bytes; what is left is queued (borrowed bytes are copied) and goes out when the reactor
// says that there is room. At most `limitBytes` are queued: a sender waits beyond that, until its deadline or until the
// connection is closed. On top of it come urgent frames, and the rest of one frame that was given up half sent. Any
// thread may call anything.

#include <deque>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/mutex.h"
#include "treadle/core/base/status.h"
#include "treadle/core/base/unique_function.h"

namespace treadle::link {

enum class SendMode {
  kCapture,  // return as soon as the bytes are captured
  kStay,     // the caller waits for an answer anyway: write from its memory rather than copy
  kUrgent,   // never wait: for heartbeats and acknowledgements, which are few and small
};

class SendQueue {
 public:
  // `wantRoom` is called (with the lock held) with true when bytes are left that the socket did not take, so that
  // `flush` is due as soon as it takes bytes again, and with false when that is over.
  SendQueue(int fd, size_t limitBytes, UniqueFunction<void(bool)> wantRoom)
      : fd_(fd), limitBytes_(limitBytes), wantRoom_(std::move(wantRoom)) {}

  // DeadlineExceeded, ResourceExhausted: nothing of the frame was sent. (One that has begun by then counts as sent, and
  // its rest is queued whatever its size.) The reason of `close` after that. PeerLost when the socket broke.
  Status send(std::vector<std::byte> front, std::span<const Buffer> buffers, SendMode mode, TimePoint deadline);

  // Writes what is queued as far as the socket takes it. PeerLost when the socket broke.
  Status flush();

  // Fails senders that wait and all later ones with `why`.
  void close(const Status& why);

  // Waits until nothing is queued; false at the deadline or when closed.
  bool drain(TimePoint deadline);

  size_t queuedBytes() const;

 private:
  struct Chunk {
    Buffer buffer;
    size_t offset = 0;
    Bytes rest() const { return buffer.bytes().subspan(offset); }
  };
  using Chunks = std::deque<Chunk>;

  Status waitForRoom(MutexLock& lock, size_t bytes, SendMode mode, TimePoint deadline) TREADLE_REQUIRES(mutex_);
  Result<bool> writeSome(Chunks& chunks);
  Status writeFromCaller(Chunks& chunks, SendMode mode, TimePoint deadline);
  void queue(Chunks chunks, bool inFront) TREADLE_REQUIRES(mutex_);

  const int fd_;
  const size_t limitBytes_;
  mutable Mutex mutex_;
  CondVar room_;
  UniqueFunction<void(bool)> wantRoom_ TREADLE_GUARDED_BY(mutex_);
  Chunks queue_ TREADLE_GUARDED_BY(mutex_);
  size_t queuedBytes_ TREADLE_GUARDED_BY(mutex_) = 0;
  size_t reservedBytes_ TREADLE_GUARDED_BY(mutex_) = 0;  // of the frame that is being written, if it may be queued
  bool writing_ TREADLE_GUARDED_BY(mutex_) = false;      // a thread is between the bytes of a frame
  Status closed_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::link
