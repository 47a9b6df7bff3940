#pragma once
// The sending half of a connection's lanes: sockets beside the connection that carry nothing but the bytes of large
// buffers, so that small messages never stand behind them. A buffer goes out in pieces; buffers of one priority take
// turns and go before those of lower ones, and every lane takes the next piece when its last is out. A thread writes to
// each, one of them the sender's own if that waits anyway. The message itself went ahead on the connection and says
// which transfers it is made of (wire::Place::kOnLanes).
//
// On TCP without TLS a piece has the checksum of its bytes, which is made right before they are sent: a caller that
// waits with its memory must not write to it meanwhile, or the peer takes the piece for damaged.
//
// Budget of a piece of 256 KiB to 4 MiB: one sendmsg, two uncontended locks, one allocation, no copy. Any thread may
// call anything.

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/io/reactor.h"
#include "treadle/core/io/stream.h"
#include "treadle/core/io/thread_cache.h"
#include "treadle/core/link/send_mode.h"
#include "treadle/core/memory/block_pool.h"
#include "treadle/core/wire/frame.h"

namespace treadle::link {

class LaneSender : public std::enable_shared_from_this<LaneSender> {
 public:
  // `limitBytes` of captured buffers wait at a time; what is larger than that is written from its sender's memory.
  // `pool` may be null.
  // `threads` must outlive the last write, which `close` ends.
  LaneSender(io::Reactor& reactor, io::ThreadCache& threads, memory::BlockPool* pool, size_t limitBytes)
      : reactor_(reactor), threads_(threads), pool_(pool), limitBytes_(limitBytes) {}

  // Called once, when a lane's socket breaks: on any thread.
  void setBreakHook(UniqueFunction<void(const Status&)> hook);

  Status addLane(io::Stream stream);
  bool hasLanes() const;

  struct Transfer;
  using Transfers = std::vector<std::shared_ptr<Transfer>>;

  // Before the message that announces these buffers: numbers for them, room, and copies of what is borrowed and must
  // outlive the send. kStay copies nothing, as its caller waits with its memory, and takes no room, but it waits until
  // what was captured is within the limit. What SendQueue::send
  // says, and ResourceExhausted without memory for the copies.
  Result<Transfers> prepare(std::span<const Buffer> buffers, SendMode mode, TimePoint deadline, int priority = 0);
  // The message is on its way: so are its buffers. Returns when all borrowed bytes are with the sockets or the deadline
  // has passed (the rest is copied then).
  void begin(const Transfers& transfers, TimePoint deadline);
  // The message was not sent.
  void drop(const Transfers& transfers);
  static uint64_t numberOf(const Transfer& transfer);

  // Waits until everything is with the sockets, until the deadline or `close`.
  void drain(TimePoint deadline);
  void close(const Status& why);

 private:
  class Lane;
  struct Piece {
    wire::Piece where;
    std::vector<std::byte> front;  // empty until it is about to be written
    std::shared_ptr<Transfer> transfer;
    Bytes bytes;
    size_t written = 0;    // of front and bytes together
    size_t uncounted = 0;  // bytes of those that are not known to be with the socket
  };

  Status takeRoom(size_t bytes, SendMode mode, TimePoint deadline);
  void wait(std::shared_ptr<Transfer> transfer) TREADLE_REQUIRES(mutex_);
  std::optional<Piece> nextPiece() TREADLE_REQUIRES(mutex_);
  void letThreadsWrite(size_t but);
  std::vector<std::shared_ptr<Lane>> idleLanes() const;
  std::shared_ptr<Lane> laneToWrite() const TREADLE_REQUIRES(mutex_);
  void askForThreadsLater() TREADLE_REQUIRES(mutex_);
  void stayUntilWritten(const Transfers& transfers, TimePoint deadline);
  void goOnFromCopies(const Transfers& transfers);
  bool isBeingWritten(const Transfers& transfers) const TREADLE_REQUIRES(mutex_);
  void breakOff(const Status& why);

  io::Reactor& reactor_;
  io::ThreadCache& threads_;
  memory::BlockPool* const pool_;
  const size_t limitBytes_;
  mutable Mutex mutex_;
  CondVar progress_;
  UniqueFunction<void(const Status&)> onBroken_ TREADLE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Lane>> lanes_ TREADLE_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Transfer>> waiting_
      TREADLE_GUARDED_BY(mutex_);  // with bytes that no piece has; by priority
  size_t unwrittenBytes_ TREADLE_GUARDED_BY(mutex_) = 0;
  size_t capturedBytes_ TREADLE_GUARDED_BY(mutex_) = 0;  // of transfers whose senders have gone on
  bool willAsk_ TREADLE_GUARDED_BY(mutex_) = false;      // a timer will ask for threads
  int holdOff_ TREADLE_GUARDED_BY(mutex_) = 0;           // who wants their memory back: nobody begins another write
  uint64_t lastNumber_ TREADLE_GUARDED_BY(mutex_) = 0;
  Status closed_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::link
