#include "treadle/core/link/lane_reader.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "treadle/core/wire/crc32c.h"

namespace treadle::link {
namespace {

constexpr size_t kPieceBytesPerTurn = 1 << 20;  // then others get their turn

}  // namespace

// At most `most` bytes. The front of the next piece is asked for only when nobody waits for it.
ssize_t LaneReader::receive(io::Stream& from, bool wait, size_t most) {
  MutableBytes front = frontRoom();
  const size_t inRoom = std::min(room_.sizeBytes, most);
  std::array<iovec, 2> parts{iovec{room_.data, inRoom}, iovec{front.data(), std::min(front.size(), most - inRoom)}};
  return from.read(std::span(parts).first(wait ? 1 : parts.size()), wait ? MSG_WAITALL : MSG_DONTWAIT);
}

Result<LaneReader::Progress> LaneReader::readFrom(io::Stream& from, bool wait) {
  Progress progress;
  for (;;) {
    const bool waits = wait && room_.sizeBytes > 0;
    size_t asked = room_.sizeBytes + (waits ? 0 : frontRoom().size());
    // What is left in the stream itself is read all the same, and nothing more of the socket.
    if (progress.bytes >= kPieceBytesPerTurn) asked = std::min(asked, from.pending());
    if (asked == 0) break;
    ssize_t got = receive(from, waits, asked);
    if (got == 0) return Status(Code::kPeerLost, "its connection closed");
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) break;
      return from.broken(errno, "one of its lanes broke");
    }
    const auto bytes = static_cast<size_t>(got);
    Result<bool> taken = take(bytes);
    if (!taken.ok()) return std::move(taken).status();
    progress.whole = progress.whole || *taken;
    progress.bytes += bytes;
    // A short read has emptied the socket; asking again would cost a system call to hear so.
    if (bytes < asked && from.pending() == 0) break;
  }
  return progress;
}

// The bytes that came: first the rest of a piece, then the front of the next. True when a buffer became whole.
Result<bool> LaneReader::take(size_t bytes) {
  bool whole = false;
  size_t filled = std::min(bytes, room_.sizeBytes);
  if (checks_) crc_ = wire::crc32c(room_.bytes().first(filled), crc_);
  room_.data += filled;
  room_.sizeBytes -= filled;
  if (filled > 0 && room_.sizeBytes == 0) {
    room_ = {};
    if (checks_ && piece_.crc != crc_) return wire::damagedBuffer();
    whole = receiver_.filled(piece_);
  }
  frontFilled_ += bytes - filled;
  if (frontFilled_ < front_.size()) return whole;
  frontFilled_ = 0;
  Result<wire::Piece> piece = wire::parsePieceFront(front_, limits_);
  if (!piece.ok()) return std::move(piece).status();
  Result<Buffer> room = receiver_.memoryFor(*piece);
  if (!room.ok()) return std::move(room).status();
  piece_ = *piece;
  crc_ = 0;
  room_ = std::move(*room);
  return whole;
}

}  // namespace treadle::link
