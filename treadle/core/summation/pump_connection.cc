#include "treadle/core/summation/pump_connection.h"

#include <utility>

#include "treadle/core/io/late_sending.h"

namespace treadle::summation {
namespace {

// Of a socket. Small, or a connection would take far more than its share before it can be written to no longer;
// larger than what is under way on links of up to some Gbit/s.
constexpr int kUnsentBytes = 16 << 10, kBufferBytes = 128 << 10;

}  // namespace

PumpConnection::PumpConnection(PumpState& state, Machine machine, io::Stream stream)
    : state_(state), machine_(machine), stream_(std::move(stream)) {
  io::sendLate(fd(), kUnsentBytes, kBufferBytes);
  state_.order.setWritable(machine_, true);
}

void PumpConnection::leave(uint64_t sums) {
  leaveFrame_ = {FrameKind::kLeave, 0, 0, sums, 0};
  leave_ = Leave::kDue;
}

bool PumpConnection::hasBytes() const {
  if (hasEnded_ || !takesBytes_) return false;
  return !writer_.isIdle() || leave_ == Leave::kDue || state_.sums.hasBytes(machine_);
}

size_t PumpConnection::write() {
  if (writer_.isIdle() && hasBytes()) writer_.begin(take());
  const Result<size_t> bytes = writer_.writeTo(stream_);
  if (!bytes.ok()) {
    takesNoMore(bytes.status());
    return 0;
  }
  state_.order.sent(machine_, *bytes);
  state_.traffic->bytesSent += *bytes;
  state_.bytesSent += *bytes;
  // TLS takes bytes before the socket does, and loses them with it.
  const std::optional<Outgoing> frame = stream_.flushed() ? writer_.takeWritten() : std::nullopt;
  if (frame) {
    ++state_.frames;
    if (frame->frame.kind == FrameKind::kSum) state_.isActive = true;  // from now on its worker may be waited for
    frame->frame.kind == FrameKind::kLeave ? void(leave_ = Leave::kWritten) : state_.sums.written(machine_, *frame);
  } else if (*bytes == 0) {
    setWritable(false);
  }
  return *bytes;
}

// What the other machine has sent before is still to be read, that it leaves above all, and then its end.
void PumpConnection::takesNoMore(const Status& why) {
  takesBytes_ = false;
  if (why.code() != Code::kPeerLost) return end(why);
  onEvents(EPOLLIN);
  if (!hasEnded_) state_.losses.connectionEnded(machine_, why.withContext(name()).withWorker(name()), Clock::now());
}

// That the worker leaves goes last: the other machine may end then.
Outgoing PumpConnection::take() {
  if (auto next = state_.sums.take(machine_)) return *next;
  leave_ = Leave::kBeingWritten;
  return {leaveFrame_, {}};
}

void PumpConnection::setWritable(bool isWritable) {
  state_.order.setWritable(machine_, isWritable);
  state_.reactor->change(fd(), isWritable ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

void PumpConnection::onEvents(uint32_t events) {
  if (hasEnded_) return;
  state_.work();
  if ((events & EPOLLOUT) != 0) setWritable(true);
  if ((events & ~uint32_t{EPOLLOUT}) == 0) return;
  if (const Status status = reader_.readFrom(stream_, *this); !status.ok()) end(status);
}

void PumpConnection::end(const Status& why) {
  hasEnded_ = true;
  state_.reactor->remove(fd());
  Status named = why.withContext(name()).withWorker(name());
  if (why.code() != Code::kPeerLost) {
    if (state_.failure.ok()) state_.failure = std::move(named);
  } else if (mayEnd()) {
    state_.losses.ignore(machine_);
  } else {
    state_.losses.connectionEnded(machine_, std::move(named), Clock::now());
  }
}

// A machine ends when it knows that all workers have left.
bool PumpConnection::mayEnd() const {
  const bool knowsOfThis = !state_.isWorker(state_.self) || leaveIsWritten();
  return knowsOfThis && (!state_.isWorker(machine_) || state_.departures.hasLeft(machine_));
}

Result<MutableBytes> PumpConnection::roomFor(const Frame& frame) { return state_.sums.roomFor(machine_, frame); }

Status PumpConnection::arrived(const Frame& frame) {
  ++state_.frames;
  state_.traffic->bytesReceived += kFrameHeaderBytes + frame.sizeBytes;
  state_.bytesReceived += kFrameHeaderBytes + frame.sizeBytes;
  if (frame.kind == FrameKind::kLeave) return state_.left(machine_, frame);
  if (frame.kind == FrameKind::kAnnounce || frame.kind == FrameKind::kAddend) state_.isActive = true;
  return state_.sums.arrived(machine_, frame);
}

}  // namespace treadle::summation
