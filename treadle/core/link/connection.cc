#include "treadle/core/link/connection.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <thread>

#include "treadle/core/io/socket.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

// Budget of a small message. Sent: three allocations (its front, the deque of its parts), two uncontended
// locks, one sendmsg. Received by a caller that waits: one recv, one allocation for the payload, one lock to
// turn the reactor's interest off, no epoll_ctl unless other answers are awaited; while it spins, a recv and
// a sched_yield per look. Received by the reactor: epoll_wait and recv, three locks of the reactor.
namespace treadle::link {
namespace {

// How many reads this thread is inside of: what a frame completes may run the user's code.
thread_local int readsHere = 0;
struct ReadsHere {
  ReadsHere() { ++readsHere; }
  ~ReadsHere() { --readsHere; }
};

constexpr size_t kReasonBytes = 4096;

}  // namespace

Result<std::shared_ptr<Connection>> Connection::start(io::Reactor& reactor, io::Fd fd, Kind kind,
                                                      const ConnectionOptions& options, ConnectionSink& sink) {
  io::Fd wakeup(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeup.valid()) return io::errnoStatus(Code::kResourceExhausted, "no file descriptor is left", errno);
  int socket = fd.get();
  auto connection = std::make_shared<Connection>(reactor, std::move(fd), std::move(wakeup), kind, options, sink);
  TREADLE_RETURN_IF_ERROR(reactor.add(socket, 0, connection));
  connection->setReadInterest(kind == Kind::kServing);
  return connection;
}

Connection::Connection(io::Reactor& reactor, io::Fd fd, io::Fd wakeup, Kind kind, const ConnectionOptions& options,
                       ConnectionSink& sink)
    : reactor_(reactor),
      fd_(std::move(fd)),
      wakeup_(std::move(wakeup)),
      kind_(kind),
      options_(options),
      sink_(sink),
      sendQueue_(fd_.get(), options.sendLimitBytes, [this](bool wanted) { setWriteInterest(wanted); }),
      reader_(options.limits),
      frameHandler_([this](Frame frame) { onFrame(std::move(frame)); }),
      lastHeard_(Clock::now().time_since_epoch().count()),
      wantRead_(false) {}

Status Connection::send(Subject subject, Bytes payload, std::span<const Buffer> buffers, SendMode mode,
                        TimePoint deadline) {
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
  sent_.store(true, std::memory_order_relaxed);
  return sendQueue_.send(wire::frameFront(wire::FrameKind::kMessage, static_cast<uint8_t>(subject), payload, buffers),
                         buffers, mode, deadline);
}

void Connection::sendHeartbeat() {
  // Queued bytes say as much as a heartbeat would; a peer that reads nothing must not pile heartbeats up.
  if (sendQueue_.queuedBytes() > 0) return;
  sendQueue_.send(wire::frameFront(wire::FrameKind::kHeartbeat, 0, {}, {}), {}, SendMode::kUrgent, kNever).ignore();
}

// Why the interest is turned off while callers read for themselves: the reactor's thread would wake on every
// answer only to find that it has been read. Counting answers, rather than asking whether somebody waits,
// makes sure that an answer for a future that nobody waits for yet is read all the same.
void Connection::awaitAnswer(bool callerReads) {
  awaited_.fetch_add(1);
  // A thread that has the read turn looks at awaited_ when it gives the turn back.
  if (!callerReads && !reading_.load()) setReadInterest(true);
}

void Connection::giveReadTurn() {
  reading_.store(false);
  reading_.notify_all();
  if (kind_ == Kind::kCalls && awaited_.load() > 0) setReadInterest(true);
}

// Without the read turn there is nothing to do: who has it reads what is there.
void Connection::onEvents(uint32_t events) {
  if (events & EPOLLOUT) {
    if (Status flushed = sendQueue_.flush(); !flushed.ok()) return close(flushed);
  }
  if ((events & ~uint32_t{EPOLLOUT}) == 0 || !takeReadTurn()) return;
  (void)readOnce();
  giveReadTurn();
}

// Reads what is there; false when there was nothing. The caller has the read turn.
bool Connection::readOnce() {
  ReadsHere here;
  Result<bool> got = reader_.readFrom(fd_.get(), frameHandler_);
  if (!got.ok()) {
    close(got.status());
    return true;
  }
  if (*got) lastHeard_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  return *got;
}

// Spins with yield before it sleeps: an answer of a peer on this host comes within tens of microseconds as a
// rule, and waking from poll(2) costs about as much. `done` is looked at after every read, as each may have
// completed it or what others wait for.
void Connection::readUntil(UniqueFunction<bool()> done, TimePoint deadline) {
  if (!takeReadTurn()) return;
  setReadInterest(false);
  TimePoint spinEnd = Clock::now() + options_.spin;
  while (!done() && !closed_.load() && Clock::now() < deadline) {
    if (readOnce()) continue;
    if (Clock::now() < spinEnd) {
      std::this_thread::yield();
    } else {
      sleepUntilReadable(deadline);
    }
  }
  giveReadTurn();
}

// The eventfd wakes it when `done` may have changed without a byte: a deadline passed, a call was cancelled.
void Connection::sleepUntilReadable(TimePoint deadline) {
  std::array<pollfd, 2> waited{pollfd{fd_.get(), POLLIN, 0}, pollfd{wakeup_.get(), POLLIN, 0}};
  (void)::poll(waited.data(), waited.size(), io::millisecondsUntil(deadline));
  uint64_t count;
  if (waited[1].revents != 0) (void)!::read(wakeup_.get(), &count, sizeof count);
}

void Connection::wakeReader() {
  uint64_t one = 1;
  (void)!::write(wakeup_.get(), &one, sizeof one);
}

void Connection::onFrame(Frame frame) {
  switch (frame.header.kind) {
    case wire::FrameKind::kHeartbeat: return;
    case wire::FrameKind::kLeave: {
      wire::Reader reader(frame.payload);
      std::string reason = reader.string(kReasonBytes);
      return sink_.onLeave(*this, reader.ok() ? reason : "for an unreadable reason");
    }
    case wire::FrameKind::kMessage: {
      uint8_t subject = frame.header.subject;
      if (subject == 0 || subject >= kSubjects) return close(dataLoss("it sent a message on an unknown subject"));
      return sink_.onMessage(*this,
                             {static_cast<Subject>(subject), std::move(frame.payload), std::move(frame.buffers)});
    }
    case wire::FrameKind::kHandshake: return close(dataLoss("it sent a handshake after the handshake"));
  }
}

void Connection::leave(const std::string& reason, TimePoint deadline) {
  wire::Writer writer;
  writer.string(std::string_view(reason).substr(0, kReasonBytes));
  sendQueue_.send(wire::frameFront(wire::FrameKind::kLeave, 0, writer.bytes(), {}), {}, SendMode::kUrgent, kNever)
      .ignore();
  (void)sendQueue_.drain(deadline);
  (void)::shutdown(fd_.get(), SHUT_WR);
}

void Connection::close(const Status& why) {
  if (closed_.exchange(true)) return;
  auto self = shared_from_this();  // the reactor may hold the last other reference
  sendQueue_.close(why);
  {
    // From here on the reactor is not touched any more: this object may outlive it.
    MutexLock lock(interestMutex_);
    detached_ = true;
    reactor_.remove(fd_.get());
  }
  (void)::shutdown(fd_.get(), SHUT_RDWR);  // wakes a caller that reads; the number is freed with this object
  wakeReader();
  sink_.onClosed(*this, why);
}

void Connection::awaitReader() const {
  if (readsOnThisThread()) return;
  reading_.wait(true);
}

bool Connection::readsOnThisThread() { return readsHere > 0; }

// A serving connection always reads: the peer may ask at any time.
void Connection::setReadInterest(bool wanted) {
  MutexLock lock(interestMutex_);
  wantRead_ = kind_ == Kind::kServing || wanted;
  updateInterest();
}

void Connection::setWriteInterest(bool wanted) {
  MutexLock lock(interestMutex_);
  wantWrite_ = wanted;
  updateInterest();
}

void Connection::updateInterest() {
  uint32_t interest = (wantRead_ ? EPOLLIN : 0U) | (wantWrite_ ? EPOLLOUT : 0U);
  if (interest == interest_ || detached_) return;
  interest_ = interest;
  reactor_.change(fd_.get(), interest);
}

}  // namespace treadle::link
