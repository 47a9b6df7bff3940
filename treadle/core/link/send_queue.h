#pragma once
// The sending half of a connection: whole frames in, bytes to the socket, in order. A sender writes to the socket
// itself as far as it takes bytes; what is left is queued (borrowed bytes are copied) and goes out when the reactor
// says that there is room. At most `limitBytes` are queued: a sender waits beyond that, until its deadline or until the
// connection is closed. On top of it come the rest of one frame that was given up half sent, and urgent frames, which
// never wait: who lets so many bytes of them pile up reads nothing, and the queue ends.
//
// A thread that polls or reads (io::Serving) never waits here, for it may be the one that would flush. It has
// kReserveBytes more than others, so that full queues do not keep its acknowledgements back; beyond that its frames are
// refused.
//
// Small frames of kBatch are gathered in memory and go out together: when the reactor comes by, when there are
// kBatchBytes of them, or with the next frame of another mode. Those of kLazy have time until `wantFlushLater`. Any
// thread may call anything.

#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/mutex.h"
#include "treadle/core/base/status.h"
#include "treadle/core/io/stream.h"
#include "treadle/core/link/send_mode.h"

namespace treadle::link {

// What the queue asks of its connection. Called with the queue's lock held.
class SendQueueHost {
 public:
  virtual ~SendQueueHost() = default;
  // The socket is full, or not any more: call `flush` as soon as it takes bytes again.
  virtual void wantRoom(bool wanted) = 0;
  // Call `flush` as soon as the reactor's thread comes by.
  virtual void wantFlush() = 0;
  // Call `flush` some time later.
  virtual void wantFlushLater() = 0;
};

class SendQueue {
 public:
  static constexpr size_t kBatchBytes = 32U << 10;
  static constexpr size_t kReserveBytes = 256U << 10;

  // `stream` must outlive it. `urgentLimitBytes`: of urgent frames, on top of the others'.
  SendQueue(io::Stream& stream, size_t limitBytes, size_t urgentLimitBytes, SendQueueHost& host)
      : stream_(stream), limitBytes_(limitBytes), urgentLimitBytes_(urgentLimitBytes), host_(host) {}

  // DeadlineExceeded, ResourceExhausted (this thread must not wait, or too many do): nothing of the frame was sent.
  // (One that has begun by then counts as sent, and its rest is queued whatever its size.) The reason of `close` after
  // that. PeerLost when the socket broke. `descriptor` (UNIX sockets only; -1: none) goes with the first byte and must
  // stay open until it has been sent.
  Status send(std::vector<std::byte> front, std::span<const Buffer> buffers, SendMode mode, TimePoint deadline,
              int descriptor = -1);

  // Writes what is queued as far as the socket takes it. PeerLost when the socket broke, ResourceExhausted when too
  // many urgent frames are queued: the connection is to be closed.
  Status flush();
  Status flushLater();

  // Fails senders that wait and all later ones with `why`.
  void close(const Status& why);

  // Waits until nothing is queued; false at the deadline or when closed.
  bool drain(TimePoint deadline);

  size_t queuedBytes() const;

 private:
  struct Chunk {
    Buffer buffer;
    size_t offset = 0;
    int descriptor = -1;
    Bytes rest() const { return buffer.bytes().subspan(offset); }
  };
  using Chunks = std::vector<Chunk>;
  struct HeldBytes;

  bool batch(Bytes frame, bool lazy) TREADLE_REQUIRES(mutex_);
  // Of a frame whose front the caller keeps.
  static Chunks chunksOf(std::vector<std::byte>& front, std::span<const Buffer> buffers, int descriptor);
  Chunks takeQueue() TREADLE_REQUIRES(mutex_);
  void afterWriting(Chunks left, bool socketIsFull) TREADLE_REQUIRES(mutex_);
  Status waitForRoom(MutexLock& lock, size_t bytes, SendMode mode, TimePoint deadline)
      TREADLE_REQUIRES(mutex_) TREADLE_UNCHECKED_LOCKS;
  Status broken() const;
  Result<bool> writeSome(Chunks& chunks);
  ssize_t writeOnce(std::span<const Chunk> chunks);
  Status writeFromCaller(Chunks& chunks, SendMode mode, TimePoint deadline);
  static Status makeOwned(Chunks& chunks);
  Status makeOwnedUnlocked(MutexLock& lock, Chunks& chunks, size_t bytes)
      TREADLE_REQUIRES(mutex_) TREADLE_UNCHECKED_LOCKS;
  void queue(Chunks chunks) TREADLE_REQUIRES(mutex_);
  void breakOff(Status why) TREADLE_REQUIRES(mutex_);
  Status overflow() TREADLE_REQUIRES(mutex_);
  void end(const Status& why) TREADLE_REQUIRES(mutex_);
  Status writeQueue(MutexLock& lock) TREADLE_REQUIRES(mutex_) TREADLE_UNCHECKED_LOCKS;

  io::Stream& stream_;
  const size_t limitBytes_, urgentLimitBytes_;
  mutable Mutex mutex_;
  CondVar room_;
  SendQueueHost& host_;
  bool full_ TREADLE_GUARDED_BY(mutex_) = false;  // the socket took not all: the host calls when it takes more
  // The host was asked to flush.
  bool flushSoon_ TREADLE_GUARDED_BY(mutex_) = false, flushLater_ TREADLE_GUARDED_BY(mutex_) = false;
  std::shared_ptr<HeldBytes> batch_ TREADLE_GUARDED_BY(mutex_);  // the last chunk of the queue, if frames may be added
  Chunks queue_ TREADLE_GUARDED_BY(mutex_);
  size_t queuedBytes_ TREADLE_GUARDED_BY(mutex_) = 0;
  // Bytes that may be queued soon: of the frame that is being written, and of frames that are being copied.
  size_t reservedBytes_ TREADLE_GUARDED_BY(mutex_) = 0;
  bool writing_ TREADLE_GUARDED_BY(mutex_) = false;  // a thread is between the bytes of a frame
  size_t halfSentBytes_ TREADLE_GUARDED_BY(mutex_) =
      0;  // of the queued ones: what is left of one larger than the limit
  Status closed_ TREADLE_GUARDED_BY(mutex_);
  // Why the connection has to end, which the next flush reports: too much is queued, or a frame that had begun did not
  // end (a socket reports that once).
  Status broken_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::link
