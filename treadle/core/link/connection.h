#pragma once
// One authenticated stream socket between two workers: frames out, frames in. Its owner (a link) holds it; so does
// the reactor until it is closed.
//
// Reading is done by one thread at a time, who holds the read turn: the reactor's thread as a rule, or a caller that
// waits for an answer on this connection (`readUntil`) and so need not be woken by anybody. On a connection of kind
// kCalls (this worker dialed it to send its calls) the reactor reads only while answers are awaited that no thread
// reads for itself; on one of kind kServing it always reads.
//
// Any thread may call anything, also after the reactor is gone when the connection was closed before. Callbacks to the
// sink come from the reading thread and must not wait.

#include <array>
#include <atomic>

#include "treadle/core/io/reactor.h"
#include "treadle/core/io/serving.h"
#include "treadle/core/link/frame_reader.h"
#include "treadle/core/link/lane_reader.h"
#include "treadle/core/link/lane_sender.h"
#include "treadle/core/link/message.h"
#include "treadle/core/link/offered_memory.h"
#include "treadle/core/link/peer_memory.h"
#include "treadle/core/link/send_queue.h"

namespace treadle::link {

class Connection;

class ConnectionSink {
 public:
  virtual ~ConnectionSink() = default;
  virtual void onMessage(Connection& from, Message message) = 0;
  // The peer's last word: why it leaves, as it told it. The connection is about to close.
  virtual void onLeave(Connection& from, std::string reason) = 0;
  // Exactly once, with why: the peer's end, damage, or the status given to `close`.
  virtual void onClosed(Connection& connection, const Status& why) = 0;
  // Reports the reason before the socket is shut down, unless the socket broke. The peer may then end its other
  // connection, and another thread here may see that end before `onClosed`. The peer hears nothing until this returns.
  virtual void onClosing(Connection&, const Status&) {}
  // The connection goes on without a way for large buffers: this side or the peer does not take what the other offers.
  virtual void onRefusal(Connection&, const Status&) {}
  // A further socket to the peer, for large buffers that `from` sends: on the sending thread, which waits.
  virtual Result<io::Stream> dialLane(Connection& from, TimePoint deadline);
};

// What is not the same for all messages that are sent in one mode.
struct SendExtras {
  const MemoryOffer* offer = nullptr;  // of the buffers, which stay where they are; its owner keeps it until the answer
  int priority = 0;                    // on lanes: buffers of a higher one go first, those of the same take turns
};

struct ConnectionOptions {
  size_t maxQueuedBytes = 64U << 20;  // queued for a peer that reads slowly; a larger frame is written by its sender
  size_t urgentLimitBytes = size_t{1} << 30;  // of urgent messages on top; a peer that reads less is closed
  wire::FrameLimits limits;
  Duration spinTimeout = std::chrono::microseconds(50);  // how long a waiting caller yields before it sleeps
  memory::BlockPool* pool = nullptr;                     // where large buffers lie; null: nothing is shared or kept
  io::ThreadCache* threads = nullptr;                    // that move the bytes of lanes; null: there are none
  Duration probeLimit{};  // of its TCP sockets, lanes too: io::probeWhileIdle; zero: none is probed
  size_t offerBytes = 0;  // buffers of this size and more are offered, and read when the peer offers them; 0: none
  // The credit of the peer's requests, whose large buffers, on lanes or read from its memory, may be under way at a
  // time: so many bytes and one message more. It rounds to less by a 32nd at most. Of answers two of the largest
  // messages may.
  uint64_t requestBytes = uint64_t{1} << 30;
  uint64_t underWayBytes(bool ofRequests) const {
    const uint64_t message = limits.bufferBytes + kBookkeepingBytes * limits.buffers;
    return message + (ofRequests ? requestBytes + requestBytes / 32 : message);
  }
};

class Connection final : public io::EventHandler,
                         private SendQueueHost,
                         public std::enable_shared_from_this<Connection> {
 public:
  enum class Kind { kCalls, kServing };
  static constexpr size_t kReasonBytes = 4096;  // of a sentence that one side tells the other

  // The socket is non-blocking and authenticated. The sink must outlive the connection's close. Begins to read, and on
  // a UNIX socket of kind kCalls to share memory. `memory`: what both connections with this peer have in common; null:
  // all bytes go through the socket.
  static Result<std::shared_ptr<Connection>> start(io::Reactor& reactor, io::Stream stream, Kind kind,
                                                   const ConnectionOptions& options, ConnectionSink& sink,
                                                   std::shared_ptr<PeerMemory> memory = nullptr);

  // InvalidArgument or ResourceExhausted for a message that the format or this side's limits, which are taken to be the
  // peer's too, do not admit; otherwise what SendQueue::send says. Success means that the bytes are on their way or
  // queued, not that they arrived. A thread that polls or reads never waits, whatever the mode: where another one
  // would, it gets ResourceExhausted.
  Status send(Subject subject, Bytes payload, std::span<const Buffer> buffers, SendMode mode, TimePoint deadline,
              const SendExtras& extras = {});
  // For a caller that waits for its answer: lets the peer read the large ones of `buffers` where they are, where that
  // is possible and no memory is shared; otherwise null.
  std::shared_ptr<MemoryOffer> offer(std::span<const Buffer> buffers) const;
  // One frame, or none when `pulse` says enough: where in the arena of this worker a number is counted up for as long
  // as it lives, which peers that map the arena are told once.
  void sendHeartbeat(std::optional<uint64_t> pulse = {});

  // One more, or one fewer, answer is awaited on this connection (kCalls only). With `callerReads` the calling thread
  // goes on to `readUntil`, and the reactor need not listen.
  void awaitAnswer(bool callerReads);
  void answerArrived() { awaited_.fetch_sub(1); }

  // Reads on behalf of a caller that waits until `done()` or the deadline; returns at once when another thread reads
  // already (then wait for what that one completes). `wakeReader` makes it look at `done` again.
  void readUntil(UniqueFunction<bool()> done, TimePoint deadline);
  void wakeReader();

  // Says `reason` (at most 4,096 bytes of it) to the peer and closes the sending direction, after what is queued (until
  // the deadline).
  void leave(const std::string& reason, TimePoint deadline);
  // Ends both directions, fails all who send, tells the sink. Idempotent. The descriptor is closed with this object, so
  // that no thread that still reads meets a number that has come to mean something else.
  void close(const Status& why);

  // After close(): returns when nobody reads any more, so that the sink may go. At once on a thread that polls or
  // reads.
  void awaitReader() const;

  // When bytes came last from the peer.
  TimePoint lastHeard() const { return TimePoint(Duration(lastHeard_.load(std::memory_order_relaxed))); }
  bool sentSinceLastAsked() { return sent_.exchange(false, std::memory_order_relaxed); }
  size_t queuedBytes() const { return sendQueue_.queuedBytes(); }

  // What is known of the ways that buffers can take to the peer: OK when there is that way, otherwise why not.
  bool overUnix() const { return stream_.isUnix(); }
  bool encrypted() const { return stream_.tls() != nullptr; }
  Status lanes() const;
  Status sharing() const;
  Status offering() const;
  // Bytes of buffers that were sent so far, by the way that they took.
  uint64_t sentBytes(wire::Place place) const { return sentBytes_[static_cast<size_t>(place)].load(); }

  // A lane that the peer dialed for this connection.
  Status addLane(io::Stream stream);
  Kind kind() const { return kind_; }

  void onEvents(uint32_t events) override;

  Connection(io::Reactor& reactor, io::Stream stream, Kind kind, const ConnectionOptions& options, ConnectionSink& sink,
             std::shared_ptr<PeerMemory> memory);

 private:
  class Lane;
  // Counts who reads, for awaitReader, and keeps it from waiting.
  class ReadScope {
   public:
    explicit ReadScope(Connection& connection);
    ~ReadScope();

   private:
    Connection& connection_;
    io::Serving here_;
  };
  // A message's buffers by the way that they take.
  struct Parts {
    std::vector<wire::BufferEntry> entries;
    std::vector<Buffer> followers;
    LaneSender::Transfers onLanes;
  };

  void count(std::span<const wire::BufferEntry> entries);
  void announceCopies(std::span<const Buffer> buffers);
  Status place(std::span<const Buffer> buffers, const SendExtras& extras, bool mayUseLanes, SendMode mode,
               TimePoint deadline, Parts& parts);
  Status sumFollowers(Parts& parts);

  Result<bool> useLanes(size_t bytes, SendMode mode, TimePoint deadline);
  std::shared_ptr<LaneSender> makeLaneSender();
  void probe(int fd) const;
  Result<bool> dialLanes(TimePoint deadline);
  Status dialLane(TimePoint deadline);
  void watchLane(const std::shared_ptr<Lane>& lane);
  void dropLane(const Lane& lane);
  void laneEnded(const Lane& lane, const Status& why);
  void closeLanes(const Status& why);
  void heard() { lastHeard_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed); }

  bool takeReadTurn() { return !reading_.exchange(true); }
  void giveReadTurn();
  bool readOnce();
  void sleepUntilReadable(TimePoint deadline);
  void onFrame(Frame frame);
  void onHeartbeat(const Frame& frame);
  void onMessageFrame(Frame frame);
  void sendReason(wire::FrameKind kind, std::string_view reason);
  std::optional<std::string> reasonOf(const Frame& frame);
  void onArena(Frame frame);
  void onMapped(const Frame& frame);
  void onRelease(const Frame& frame);
  void shareMemory();
  void tellTable();
  void onTable(const Frame& frame);
  void onReadable(const Frame& frame);
  Result<std::shared_ptr<Arrival>> startReading(std::span<const wire::BufferEntry> entries, std::span<Buffer> buffers);
  void closeOffers(const Status& why);
  void releaseSoon();
  static std::vector<std::byte> releaseFrame(const std::vector<uint64_t>& offsets);
  wire::BufferEntry placeFor(const Buffer& buffer);
  void sendControl(wire::FrameKind kind, Bytes payload, int descriptor = -1);
  void updateInterest() TREADLE_REQUIRES(interestMutex_);
  void wantRoom(bool wanted) override;
  void wantFlush() override;
  void wantFlushLater() override;
  void flush();
  void afterFlush(const Status& flushed);
  void breakOff(const Status& why);
  Status reasonOfEnd(const Status& end);
  SendMode modeFor(SendMode mode, bool hasBuffers) const;
  void setReadInterest(bool wanted);

  io::Reactor& reactor_;
  io::Stream stream_;
  const Kind kind_;
  const ConnectionOptions options_;
  ConnectionSink& sink_;
  const std::shared_ptr<PeerMemory> memory_;  // may be null
  SendQueue sendQueue_;
  FrameReader reader_;                        // whoever has the read turn
  UniqueFunction<void(Frame)> frameHandler_;  // likewise
  TimePoint awakeUntil_;                      // likewise: the peer has said that a message is coming
  bool coming_ = false;                       // likewise: it has not come since

  std::atomic<bool> reading_ = false, breaking_ = false, closed_ = false, sent_ = false;
  std::atomic<bool> arenaOffered_ = false, arenaTaken_ = false, releaseTimer_ = false, pulseTold_ = false;
  std::atomic<int> awaited_ = 0, reads_ = 0;
  std::array<std::atomic<uint64_t>, wire::kPlaces> sentBytes_{};
  std::atomic<Duration::rep> lastHeard_;

  const std::shared_ptr<LaneSender> laneSender_;  // null without threads
  LaneReceiver laneReceiver_;
  mutable Mutex laneMutex_;
  CondVar dialed_;
  bool dialing_ TREADLE_GUARDED_BY(laneMutex_) = false;
  TimePoint nextDial_ TREADLE_GUARDED_BY(laneMutex_);                        // not before
  std::vector<std::shared_ptr<Lane>> lanes_ TREADLE_GUARDED_BY(laneMutex_);  // incoming
  Status noLanes_ TREADLE_GUARDED_BY(laneMutex_);                            // why none could be dialed last

  std::atomic<bool> tableTold_ = false, readable_ = false;
  mutable Mutex offerMutex_;
  std::shared_ptr<OfferTable> offers_ TREADLE_GUARDED_BY(offerMutex_);        // of what this side sends
  Status notReadable_ TREADLE_GUARDED_BY(offerMutex_);                        // why the peer cannot read it
  std::shared_ptr<OfferReader> offerReader_ TREADLE_GUARDED_BY(offerMutex_);  // of what the peer offers

  Mutex wakeupMutex_;
  io::Fd wakeup_ TREADLE_GUARDED_BY(wakeupMutex_);

  Mutex interestMutex_;
  bool wantRead_ TREADLE_GUARDED_BY(interestMutex_);
  bool wantWrite_ TREADLE_GUARDED_BY(interestMutex_) = false;
  uint32_t interest_ TREADLE_GUARDED_BY(interestMutex_) = 0;
  bool detached_ TREADLE_GUARDED_BY(interestMutex_) = false;  // from the reactor, for good
  Status whyBroken_ TREADLE_GUARDED_BY(interestMutex_);
};

}  // namespace treadle::link
