#include "treadle/core/summation/frame_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace treadle::summation {
namespace {

constexpr size_t kReadPerTurn = size_t{256} << 10;  // then others get their turn

}  // namespace

Status FrameReader::readFrom(io::Stream& stream, FrameReceiver& receiver) {
  for (size_t read = 0;;) {
    MutableBytes piece = frame_ ? piece_.subspan(pieceFilled_) : MutableBytes();
    MutableBytes next = MutableBytes(next_).subspan(nextFilled_);
    if (read >= kReadPerTurn) {  // only what nobody would be told of
      piece = piece.first(std::min(piece.size(), stream.pending()));
      next = next.first(std::min(next.size(), stream.pending() - piece.size()));
    }
    if (piece.empty() && next.empty()) return {};
    const std::array<iovec, 2> parts{iovec{piece.data(), piece.size()}, iovec{next.data(), next.size()}};
    const ssize_t got = stream.read(parts, MSG_DONTWAIT);
    if (got == 0) return Status(Code::kPeerLost, "its connection closed");
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return {};
    if (got < 0) return stream.broken(errno, "its connection broke");
    TREADLE_RETURN_IF_ERROR(take(static_cast<size_t>(got), !stream.guardsItsBytes(), receiver));
    read += static_cast<size_t>(got);
    // A short read has emptied the socket.
    if (static_cast<size_t>(got) < piece.size() + next.size() && stream.pending() == 0) return {};
  }
}

// The bytes that came: first the rest of a piece, then of the next header.
Status FrameReader::take(size_t bytes, bool checks, FrameReceiver& receiver) {
  if (frame_) {
    const size_t filled = std::min(bytes, piece_.size() - pieceFilled_);
    pieceFilled_ += filled;
    bytes -= filled;
    if (pieceFilled_ < piece_.size()) return {};
    if (checks && !isWhole(header_, piece_)) return dataLoss("its data was damaged on the way");
    TREADLE_RETURN_IF_ERROR(receiver.arrived(*std::exchange(frame_, {})));
  }
  nextFilled_ += bytes;
  return nextFilled_ == next_.size() ? takeHeader(checks, receiver) : Status();
}

Status FrameReader::takeHeader(bool checks, FrameReceiver& receiver) {
  header_ = next_;
  nextFilled_ = 0;
  Result<Frame> frame = parseFrame(header_);
  if (!frame.ok()) return std::move(frame).status();
  Result<MutableBytes> room = receiver.roomFor(*frame);
  if (!room.ok()) return std::move(room).status();
  if (frame->sizeBytes == 0) {
    if (checks && !isWhole(header_, {})) return dataLoss("its data was damaged on the way");
    return receiver.arrived(*frame);
  }
  frame_ = *frame;
  piece_ = *room;
  pieceFilled_ = 0;
  return {};
}

void FrameWriter::begin(const Outgoing& frame) {
  header_ = encode(frame.frame, frame.piece);
  frame_ = frame;
  written_ = 0;
}

Result<size_t> FrameWriter::writeTo(io::Stream& stream) {
  const size_t ofHeader = std::min(written_, header_.size());
  const Bytes header = Bytes(header_).subspan(ofHeader), piece = frame_->piece.subspan(written_ - ofHeader);
  const std::array<iovec, 2> parts{iovec{const_cast<std::byte*>(header.data()), header.size()},
                                   iovec{const_cast<std::byte*>(piece.data()), piece.size()}};
  ssize_t done = 0;
  do {
    done = stream.write(parts, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (done < 0 && errno == EINTR);
  if (done < 0 && errno == EAGAIN) return size_t{0};
  if (done < 0) return stream.broken(errno, "its connection broke");
  written_ += static_cast<size_t>(done);
  return static_cast<size_t>(done);
}

std::optional<Outgoing> FrameWriter::takeWritten() {
  if (!frame_ || written_ < header_.size() + frame_->piece.size()) return {};
  return std::exchange(frame_, {});
}

}  // namespace treadle::summation
