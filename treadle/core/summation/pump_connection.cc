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
  if (hasEnded_) return false;
  return !writer_.isIdle() || leave_ == Leave::kDue || nextOfAdder() || state_.requester.next(machine_);
}

std::optional<size_t> PumpConnection::nextOfAdder() const {
  return state_.isWorker(machine_) ? state_.adder.next(machine_) : std::nullopt;
}

size_t PumpConnection::write() {
  if (writer_.isIdle() && hasBytes()) writer_.begin(take());
  const Result<size_t> bytes = writer_.writeTo(stream_);
  if (!bytes.ok()) {
    end(bytes.status());
    return 0;
  }
  state_.order.sent(machine_, *bytes);
  state_.traffic->bytesSent += *bytes;
  // TLS takes bytes before the socket does, and loses them with it.
  const std::optional<Outgoing> frame = stream_.flushed() ? writer_.takeWritten() : std::nullopt;
  if (frame) {
    written(*frame);
  } else if (*bytes == 0) {
    setWritable(false);
  }
  return *bytes;
}

// Of the first tensor; of the same one the sum, which is nearer to its end. A worker that leaves has sent all its data.
Outgoing PumpConnection::take() {
  const std::optional<size_t> sum = nextOfAdder(), addend = state_.requester.next(machine_);
  if (leave_ == Leave::kDue) {
    source_ = Source::kLeave;
    return {leaveFrame_, {}};
  }
  source_ = sum && (!addend || *sum <= *addend) ? Source::kAdder : Source::kRequester;
  return (source_ == Source::kAdder ? state_.adder.take(machine_) : state_.requester.take(machine_)).value();
}

void PumpConnection::written(const Outgoing& frame) {
  switch (source_) {
    case Source::kAdder: return state_.adder.written(machine_, frame);
    case Source::kRequester: return state_.requester.written(frame);
    case Source::kLeave: leave_ = Leave::kWritten;
  }
}

void PumpConnection::setWritable(bool isWritable) {
  state_.order.setWritable(machine_, isWritable);
  state_.reactor->change(fd(), isWritable ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

void PumpConnection::onEvents(uint32_t events) {
  if (hasEnded_) return;
  if ((events & EPOLLOUT) != 0) setWritable(true);
  if ((events & ~uint32_t{EPOLLOUT}) == 0) return;
  if (const Status status = reader_.readFrom(stream_, *this); !status.ok()) end(status);
}

void PumpConnection::end(const Status& why) {
  hasEnded_ = true;
  state_.reactor->remove(fd());
  const std::string& name = state_.names[machine_];
  Status named = why.withContext(name).withWorker(name);
  if (why.code() != Code::kPeerLost) {
    if (state_.failure.ok()) state_.failure = std::move(named);
  } else if (mayEnd()) {
    state_.losses.endedWell(machine_);
  } else {
    state_.losses.connectionEnded(machine_, std::move(named), Clock::now());
  }
}

// A machine ends when it knows that all workers have left.
bool PumpConnection::mayEnd() const {
  const bool knowsOfThis = !state_.isWorker(state_.self) || leaveIsWritten();
  return knowsOfThis && (!state_.isWorker(machine_) || state_.departures.hasLeft(machine_));
}

bool PumpConnection::hasLeft(FrameKind kind) const {
  return (kind == FrameKind::kAnnounce || kind == FrameKind::kAddend) && state_.departures.hasLeft(machine_);
}

Result<MutableBytes> PumpConnection::roomFor(const Frame& frame) {
  if (hasLeft(frame.kind)) return neverSent("data after it had left");
  if (frame.kind == FrameKind::kAddend) return state_.adder.roomFor(machine_, frame);
  if (frame.kind == FrameKind::kSum) return state_.requester.roomFor(machine_, frame);
  return MutableBytes();
}

Status PumpConnection::arrived(const Frame& frame) {
  ++state_.frames;
  state_.traffic->bytesReceived += kFrameHeaderBytes + frame.sizeBytes;
  switch (frame.kind) {
    case FrameKind::kAnnounce: state_.isActive = true; return state_.adder.announced(machine_, frame);
    case FrameKind::kGrant: return state_.requester.granted(machine_, frame);
    case FrameKind::kAddend: state_.adder.arrived(machine_, frame); return {};
    case FrameKind::kLeave: return state_.departures.left(machine_, frame);
    case FrameKind::kSum: break;
  }
  if (const std::optional<size_t> part = state_.requester.arrived(frame)) state_.done.push_back(*part);
  return {};
}

}  // namespace treadle::summation
