#include "treadle/core/link/connection.h"

#include <sys/socket.h>

#include <array>

#include "treadle/core/base/log.h"
#include "treadle/core/io/executor.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/wire/crc32c.h"
#include "treadle/core/wire/writer.h"

// Budget of a small message that is sent: two allocations (its front, the list of its parts), two uncontended locks,
// one sendmsg. Received: connection_reading.cc.
//
// Budget of a second of idleness, for each peer: where memory is shared three locks and two looks at it, otherwise a
// heartbeat sent and one received (sendmsg, recvmsg), three allocations, eleven locks; and one or two epoll_wait for
// all.
namespace treadle::link {
namespace {

constexpr size_t kShareBytes = memory::kSmallestBlock;
constexpr int kManyAwaited = 8;
// Copies that take about as long as the peer takes to wake up: it is told before they are made. Of smaller ones the
// notice costs more than it brings, beside larger ones a wake-up counts for nothing.
constexpr size_t kLeastNotice = 512U << 10, kMostNotice = 8U << 20;
constexpr Duration kLazyDelay = std::chrono::milliseconds(5);
// How long a connection that is broken off waits for the peer to end its side.
constexpr Duration kLastWords = std::chrono::seconds(1);

// What senders are told of a connection that is over: whatever was wrong with the peer's bytes, to them it is lost.
Status toSenders(const Status& why) {
  const bool ours = why.code() == Code::kCancelled;  // this side has left
  return ours || why.code() == Code::kPeerLost ? why : Status(Code::kPeerLost, why.message());
}

}  // namespace

Result<io::Stream> ConnectionSink::dialLane(Connection&, TimePoint) {
  return failedPrecondition("no lanes are known of to this peer");
}

Result<std::shared_ptr<Connection>> Connection::start(io::Reactor& reactor, io::Stream stream, Kind kind,
                                                      const ConnectionOptions& options, ConnectionSink& sink,
                                                      std::shared_ptr<PeerMemory> memory) {
  int socket = stream.fd();
  auto connection = std::make_shared<Connection>(reactor, std::move(stream), kind, options, sink, std::move(memory));
  if (connection->laneSender_)
    connection->laneSender_->setBreakHook([weak = std::weak_ptr(connection)](const Status& why) {
      if (auto self = weak.lock()) self->breakOff(why);
    });
  connection->probe(socket);
  if (connection->memory_) connection->memory_->addConnection();
  if (Status added = reactor.add(socket, 0, connection); !added.ok()) {
    if (connection->memory_) connection->memory_->removeConnection();
    return added;
  }
  connection->setReadInterest(kind == Kind::kServing);
  connection->shareMemory();
  return connection;
}

Connection::Connection(io::Reactor& reactor, io::Stream stream, Kind kind, const ConnectionOptions& options,
                       ConnectionSink& sink, std::shared_ptr<PeerMemory> memory)
    : reactor_(reactor),
      stream_(std::move(stream)),
      kind_(kind),
      options_(options),
      sink_(sink),
      memory_(std::move(memory)),
      sendQueue_(stream_, options.maxQueuedBytes, options.urgentLimitBytes, *this),
      reader_(options.limits, options.pool, memory_ != nullptr && stream_.isUnix(), !stream_.guardsItsBytes()),
      frameHandler_([this](Frame frame) { onFrame(std::move(frame)); }),
      lastHeard_(Clock::now().time_since_epoch().count()),
      laneSender_(makeLaneSender()),
      laneReceiver_(options.pool, options.underWayBytes(kind == Kind::kServing)),
      wantRead_(false) {}

void Connection::probe(int fd) const {
  if (options_.probeLimit > Duration::zero()) io::probeWhileIdle(fd, options_.probeLimit);
}

Status Connection::send(Subject subject, Bytes payload, std::span<const Buffer> buffers, SendMode mode,
                        TimePoint deadline, const SendExtras& extras) {
  if (payload.size() > options_.limits.payloadBytes)
    return resourceExhausted("a message's values take " + std::to_string(payload.size()) +
                             " bytes, over the limit of " + std::to_string(options_.limits.payloadBytes) +
                             "; send large data as tensors");
  if (buffers.size() > UINT16_MAX)
    return invalidArgument("a message has " + std::to_string(buffers.size()) + " tensors; 65,535 is the most");
  uint64_t bufferBytes = 0;
  for (const Buffer& buffer : buffers) bufferBytes += buffer.sizeBytes;
  if (bufferBytes > options_.limits.bufferBytes)
    return resourceExhausted("a message's tensors take " + std::to_string(bufferBytes) + " bytes, over the limit of " +
                             std::to_string(options_.limits.bufferBytes));
  if (mode == SendMode::kStay && io::Serving::here()) mode = SendMode::kCapture;  // it waits for no answer here
  sent_.store(true, std::memory_order_relaxed);
  announceCopies(buffers);
  Parts parts;
  // Only calls may overtake each other: the messages of the other rooms are in order.
  Status placed = place(buffers, extras, subject == Subject::kRpc, mode, deadline, parts);
  std::vector<std::byte> front =
      wire::frameFront(wire::FrameKind::kMessage, static_cast<uint8_t>(subject), payload, parts.entries);
  std::vector<uint64_t> releases = memory_ ? memory_->takeReleases() : std::vector<uint64_t>();
  if (!releases.empty()) {
    std::vector<std::byte> frame = releaseFrame(releases);
    front.insert(front.begin(), frame.begin(), frame.end());
  }
  count(parts.entries);  // before the peer can have them: it may answer, and somebody ask
  SendMode how = modeFor(mode, !parts.followers.empty());
  Status sent = placed.ok() ? sendQueue_.send(std::move(front), parts.followers, how, deadline) : placed;
  if (!sent.ok() && memory_) memory_->takeBack(parts.entries, releases);
  if (parts.onLanes.empty()) return sent;
  if (sent.ok()) {
    laneSender_->begin(parts.onLanes, deadline);
  } else {
    laneSender_->drop(parts.onLanes);
  }
  return sent;
}

void Connection::count(std::span<const wire::BufferEntry> entries) {
  for (const wire::BufferEntry& entry : entries)
    sentBytes_[static_cast<size_t>(entry.place)].fetch_add(entry.sizeBytes, std::memory_order_relaxed);
}

// The peer wakes up while its bytes are copied, rather than afterwards.
void Connection::announceCopies(std::span<const Buffer> buffers) {
  if (!memory_ || !memory_->mapped()) return;
  size_t bytes = 0;
  for (const Buffer& buffer : buffers)
    if (!buffer.given && buffer.sizeBytes >= kShareBytes) bytes += buffer.sizeBytes;
  if (bytes < kLeastNotice || bytes > kMostNotice || sendQueue_.queuedBytes() > 0) return;
  sendControl(wire::FrameKind::kComing, {});
}

// Shared memory first, the sender's own if it is offered, lanes for what is large, the rest behind the message on its
// own socket.
Status Connection::place(std::span<const Buffer> buffers, const SendExtras& extras, bool mayUseLanes, SendMode mode,
                         TimePoint deadline, Parts& parts) {
  size_t large = 0;
  for (size_t i = 0; i < buffers.size(); ++i) {
    wire::BufferEntry& entry = parts.entries.emplace_back(placeFor(buffers[i]));
    if (entry.place != wire::Place::kInline || entry.sizeBytes < kShareBytes) continue;
    if (extras.offer != nullptr && extras.offer->number(i) != 0) {
      entry = {entry.sizeBytes, wire::Place::kOffered, extras.offer->number(i)};
    } else {
      large += entry.sizeBytes;
    }
  }
  // All by one way or the other: what no offer was to be had for may be too much for the message's own socket.
  Result<bool> allowed = mayUseLanes ? useLanes(large, mode, deadline) : Result<bool>(false);
  if (!allowed.ok()) return std::move(allowed).status();
  const bool lanes = *allowed;
  for (wire::BufferEntry& entry : parts.entries)
    if (lanes && entry.place == wire::Place::kOffered) entry = {entry.sizeBytes, wire::Place::kInline, 0};
  std::vector<Buffer> onLanes;
  for (size_t i = 0; i < buffers.size(); ++i) {
    wire::BufferEntry& entry = parts.entries[i];
    if (entry.place != wire::Place::kInline) continue;
    bool onLane = lanes && entry.sizeBytes >= kShareBytes;
    if (onLane) entry.place = wire::Place::kOnLanes;
    (onLane ? onLanes : parts.followers).push_back(buffers[i]);
  }
  if (!stream_.guardsItsBytes()) TREADLE_RETURN_IF_ERROR(sumFollowers(parts));
  if (onLanes.empty()) return {};
  Result<LaneSender::Transfers> prepared = laneSender_->prepare(onLanes, mode, deadline, extras.priority);
  if (!prepared.ok()) return std::move(prepared).status();
  parts.onLanes = std::move(*prepared);
  auto transfer = parts.onLanes.begin();
  for (wire::BufferEntry& entry : parts.entries)
    if (entry.place == wire::Place::kOnLanes) entry.at = LaneSender::numberOf(**transfer++);
  return {};
}

// What is summed is what is sent: of memory that others may write to meanwhile a copy is.
Status Connection::sumFollowers(Parts& parts) try {
  auto follower = parts.followers.begin();
  for (wire::BufferEntry& entry : parts.entries) {
    if (entry.place != wire::Place::kInline) continue;
    Buffer& buffer = *follower++;
    if (buffer.borrowed()) {
      Buffer copy = memory::allocateFrom(options_.pool, buffer.sizeBytes);
      entry.at = wire::copyWithCrc32c(copy.mutableBytes(), buffer.bytes());
      buffer = std::move(copy);
    } else {
      entry.at = wire::crc32c(buffer.bytes());
    }
  }
  return {};
} catch (const std::bad_alloc&) {
  return resourceExhausted("no memory for a copy of a message's tensors");
}

// Many small messages that follow each other share a system call: requests when many are unanswered already, answers
// when their thread has the next request at hand.
SendMode Connection::modeFor(SendMode mode, bool hasBuffers) const {
  if (mode != SendMode::kCapture || hasBuffers) return mode;
  bool more =
      kind_ == Kind::kCalls ? awaited_.load(std::memory_order_relaxed) > kManyAwaited : io::Executor::moreToRun();
  return more ? SendMode::kBatch : mode;
}

// Small buffers are cheaper sent than shared: beside the copy, which both have, sharing costs the way back of the
// block.
wire::BufferEntry Connection::placeFor(const Buffer& buffer) {
  if (!memory_ || buffer.sizeBytes < kShareBytes) return {buffer.sizeBytes, wire::Place::kInline, 0};
  return memory_->place(buffer);
}

void Connection::flush() { afterFlush(sendQueue_.flush()); }

void Connection::afterFlush(const Status& flushed) {
  if (flushed.code() == Code::kResourceExhausted) return close(flushed);
  breakOff(flushed);
}

// A socket that takes no more bytes may still hold the peer's farewell, or have it on the way where a lane ended before
// it came: the reader comes to it, and then to the end, for which the peer is asked by the end of this side.
void Connection::breakOff(const Status& why) {
  if (why.ok() || breaking_.exchange(true)) return;
  {
    MutexLock lock(interestMutex_);
    whyBroken_ = why;  // before the end that it leads to
  }
  sendQueue_.close(toSenders(why));
  (void)::shutdown(stream_.fd(), SHUT_WR);
  MutexLock lock(interestMutex_);
  if (detached_) return;
  reactor_.at(deadlineAfter(kLastWords), [weak = weak_from_this()] {
    if (auto self = weak.lock()) (void)::shutdown(self->stream_.fd(), SHUT_RDWR);
  });
}

void Connection::sendHeartbeat(std::optional<uint64_t> pulse) {
  if (pulse && memory_ && memory_->mapped()) {
    if (pulseTold_.exchange(true)) return;
    return sendControl(wire::FrameKind::kHeartbeat, std::as_bytes(std::span(&*pulse, 1)));
  }
  // Queued bytes say as much as a heartbeat would; a peer that reads nothing must not pile heartbeats up.
  if (sendQueue_.queuedBytes() > 0) return;
  sendControl(wire::FrameKind::kHeartbeat, {});
}

// Few and small: they never wait. A failure means that the peer is lost, which others hear of.
void Connection::sendControl(wire::FrameKind kind, Bytes payload, int descriptor) {
  sendQueue_.send(wire::frameFront(kind, 0, payload), {}, SendMode::kUrgent, kNever, descriptor).ignore();
}

// An empty one says that all is well.
void Connection::sendReason(wire::FrameKind kind, std::string_view reason) {
  wire::Writer writer;
  writer.string(reason.substr(0, kReasonBytes));
  sendControl(kind, writer.bytes());
}

void Connection::leave(const std::string& reason, TimePoint deadline) {
  if (laneSender_) laneSender_->drain(deadline);
  sendReason(wire::FrameKind::kLeave, reason);
  (void)sendQueue_.drain(deadline);
  sendQueue_.close(cancelled("this worker has left"));  // and not that the socket broke, to who comes later
  stream_.closeWrite();
}

void Connection::close(const Status& why) {
  const Status told = toSenders(why);
  sendQueue_.close(told);  // before anybody who finds it closed goes on to tell of the loss
  if (closed_.exchange(true)) return;
  auto self = shared_from_this();  // the reactor may hold the last other reference
  sink_.onClosing(*this, why);
  closeLanes(told);
  closeOffers(told);
  if (memory_) memory_->removeConnection();
  {
    // From here on the reactor is not touched any more: this object may outlive it.
    MutexLock lock(interestMutex_);
    detached_ = true;
    reactor_.remove(stream_.fd());
  }
  (void)::shutdown(stream_.fd(), SHUT_RDWR);  // wakes a caller that reads; the number is freed with this object
  wakeReader();
  sink_.onClosed(*this, why);
}

// A serving connection always reads: the peer may ask at any time.
void Connection::setReadInterest(bool wanted) {
  MutexLock lock(interestMutex_);
  wantRead_ = kind_ == Kind::kServing || wanted;
  updateInterest();
}

// Level-triggered by the reactor, like room in the socket: `onEvents` flushes.
void Connection::wantFlush() {
  if (auto self = weak_from_this().lock()) reactor_.soon(std::move(self));
}

void Connection::wantFlushLater() {
  reactor_.at(Clock::now() + kLazyDelay, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->afterFlush(self->sendQueue_.flushLater());
  });
}

void Connection::wantRoom(bool wanted) {
  MutexLock lock(interestMutex_);
  wantWrite_ = wanted;
  updateInterest();
}

// The end of the peer also where nothing is read or written: a TCP peer that takes no more bytes and then goes sends
// nothing else by which a sender would notice it.
void Connection::updateInterest() {
  const uint32_t interest = EPOLLRDHUP | (wantRead_ ? EPOLLIN : 0U) | (wantWrite_ ? EPOLLOUT : 0U);
  if (interest == interest_ || detached_) return;
  interest_ = interest;
  reactor_.change(stream_.fd(), interest);
}

}  // namespace treadle::link
