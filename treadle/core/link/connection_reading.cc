// The connection's reading half: whoever has the read turn, a caller that waits for its answer or the reactor's thread,
// reads frames and hands on what they carry.
//
// Budget of a small message that is received by a caller that waits: one recvmsg (TCP: recv), one allocation for the
// payload, one lock to turn the reactor's interest off, no epoll_ctl unless other answers are awaited; while it spins,
// a recvmsg and a sched_yield per look. Received by the reactor: epoll_wait and recvmsg, three locks of the reactor.

#include <poll.h>
#include <sys/eventfd.h>

#include <array>

#include "treadle/core/io/socket.h"
#include "treadle/core/io/spin.h"
#include "treadle/core/link/connection.h"
#include "treadle/core/wire/reader.h"

namespace treadle::link {
namespace {

// How long a peer that was told so looks for the message before it sleeps: 8 MiB take about half of that.
constexpr Duration kAwakeFor = std::chrono::milliseconds(1);
// How often a sleeper looks when the process has no descriptor left by which it could be woken.
constexpr Duration kWithoutWakeup = std::chrono::milliseconds(10);

}  // namespace

Connection::ReadScope::ReadScope(Connection& connection) : connection_(connection) { connection_.reads_.fetch_add(1); }

Connection::ReadScope::~ReadScope() {
  connection_.reads_.fetch_sub(1);
  connection_.reads_.notify_all();
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
  if (events & EPOLLOUT) flush();
  if ((events & ~uint32_t{EPOLLOUT}) == 0 || !takeReadTurn()) return;
  (void)readOnce();
  reactor_.stayAwake(std::exchange(awakeUntil_, TimePoint()));
  giveReadTurn();
}

// Reads what is there; false when there was nothing. The caller has the read turn.
bool Connection::readOnce() {
  ReadScope here(*this);
  Result<bool> got = reader_.readFrom(stream_, frameHandler_);
  if (!got.ok()) {
    close(reasonOfEnd(got.status()));
    return true;
  }
  if (*got) heard();
  return *got;
}

// An end that this side brought about by `breakOff` has its reason.
Status Connection::reasonOfEnd(const Status& end) {
  MutexLock lock(interestMutex_);
  return end.code() == Code::kPeerLost && !whyBroken_.ok() ? whyBroken_ : end;
}

// Spins with yield before it sleeps: an answer of a peer on this host comes within tens of microseconds as a
// rule, and waking from poll(2) costs about as much. `done` is looked at after every read, as each may have
// completed it or what others wait for.
void Connection::readUntil(UniqueFunction<bool()> done, TimePoint deadline) {
  if (!takeReadTurn()) return;
  setReadInterest(false);
  io::Spin spin(options_.spinTimeout);
  while (!done() && !closed_.load() && Clock::now() < deadline)
    if (readOnce()) {
      spin.prolong(std::exchange(awakeUntil_, TimePoint()));
    } else if (!spin.again()) {
      sleepUntilReadable(deadline);
    }
  giveReadTurn();
}

// The eventfd wakes it when `done` may have changed without a byte: a deadline passed, a call was cancelled. It is made
// for the first who sleeps, so that an idle peer costs no descriptor; who makes it looks at `done` once more.
void Connection::sleepUntilReadable(TimePoint deadline) {
  int wakeup = -1;
  {
    MutexLock lock(wakeupMutex_);
    if (!wakeup_.valid()) {
      wakeup_ = io::Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      if (wakeup_.valid()) return;
      deadline = std::min(deadline, Clock::now() + kWithoutWakeup);
    }
    wakeup = wakeup_.get();
  }
  std::array<pollfd, 2> waited{pollfd{stream_.fd(), POLLIN, 0}, pollfd{wakeup, POLLIN, 0}};
  (void)::poll(waited.data(), waited.size(), io::millisecondsUntil(deadline));
  uint64_t count;
  if (waited[1].revents != 0) (void)!::read(wakeup, &count, sizeof count);
}

void Connection::wakeReader() {
  MutexLock lock(wakeupMutex_);
  uint64_t one = 1;
  if (wakeup_.valid()) (void)!::write(wakeup_.get(), &one, sizeof one);
}

void Connection::onFrame(Frame frame) {
  switch (frame.header.kind) {
    case wire::FrameKind::kHeartbeat: return onHeartbeat(frame);
    case wire::FrameKind::kComing:
      // Once for a message, so that a peer that only says so keeps nobody awake; and not who is never to spin.
      if (!std::exchange(coming_, true) && options_.spinTimeout > Duration::zero())
        awakeUntil_ = Clock::now() + kAwakeFor;
      return;
    case wire::FrameKind::kLeave: return sink_.onLeave(*this, reasonOf(frame).value_or("for an unreadable reason"));
    case wire::FrameKind::kMessage: return onMessageFrame(std::move(frame));
    case wire::FrameKind::kArena: return onArena(std::move(frame));
    case wire::FrameKind::kMapped: return onMapped(frame);
    case wire::FrameKind::kRelease: return onRelease(frame);
    case wire::FrameKind::kTable: return onTable(frame);
    case wire::FrameKind::kReadable: return onReadable(frame);
    case wire::FrameKind::kPiece: return close(dataLoss("it sent a piece of a buffer beside the lanes"));
    case wire::FrameKind::kHandshake: return close(dataLoss("it sent a handshake after the handshake"));
  }
}

void Connection::onHeartbeat(const Frame& frame) {
  if (frame.payload.empty()) return;
  wire::Reader reader(frame.payload);
  auto pulse = reader.number<uint64_t>();
  Status known = dataLoss("it tells unreadably where its pulse is");
  if (reader.ok() && reader.left() == 0)
    known = memory_ ? memory_->setPulse(pulse) : dataLoss("it has a pulse where no memory is shared");
  if (!known.ok()) close(known);
}

void Connection::onMessageFrame(Frame frame) {
  coming_ = false;
  uint8_t subject = frame.header.subject;
  if (subject == 0 || subject >= kSubjects) return close(dataLoss("it sent a message on an unknown subject"));
  bool onLanes = false, offered = false;
  for (size_t i = 0; i < frame.entries.size(); ++i) {
    wire::Place place = frame.entries[i].place;
    if (place == wire::Place::kOnLanes) onLanes = true;
    if (place == wire::Place::kOffered) offered = true;
    if (place == wire::Place::kInline || place == wire::Place::kOnLanes || place == wire::Place::kOffered) continue;
    Result<Buffer> buffer = memory_ ? memory_->resolve(frame.entries[i]) : dataLoss("no memory is shared with it");
    if (!buffer.ok()) return close(buffer.status());
    frame.buffers[i] = std::move(*buffer);
  }
  Message message{static_cast<Subject>(subject), std::move(frame.payload), std::move(frame.buffers)};
  if (onLanes || offered) {
    if (message.subject != Subject::kRpc)
      return close(dataLoss("it sent buffers of another subject than calls on lanes or out of its memory"));
    if (onLanes && offered) return close(dataLoss("it sent buffers of one message on lanes and out of its memory"));
    auto arrival =
        onLanes ? laneReceiver_.announce(frame.entries, message.buffers) : startReading(frame.entries, message.buffers);
    if (!arrival.ok()) return close(arrival.status());
    message.arrival = std::move(*arrival);
  }
  sink_.onMessage(*this, std::move(message));
}

void Connection::awaitReader() const {
  if (io::Serving::here()) return;
  reading_.wait(true);
  for (int reads; (reads = reads_.load()) > 0;) reads_.wait(reads);
}

// None when it cannot be read.
std::optional<std::string> Connection::reasonOf(const Frame& frame) {
  wire::Reader reader(frame.payload);
  std::string reason = reader.string(kReasonBytes);
  return reader.ok() ? std::optional(std::move(reason)) : std::nullopt;
}

}  // namespace treadle::link
