#include "treadle/core/link/lane_reader.h"

#include <sys/socket.h>

#include <cerrno>

#include "treadle/core/io/socket.h"

namespace treadle::link {
namespace {

constexpr size_t kBytesPerTurn = 1 << 20;  // then others get their turn

}  // namespace

// The front of the next piece is asked for only when nobody waits for it.
ssize_t LaneReader::receive(int fd, bool wait) {
  MutableBytes front = frontRoom();
  std::array<iovec, 2> parts{iovec{room_.data, room_.sizeBytes}, iovec{front.data(), front.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = wait ? 1 : parts.size();
  return ::recvmsg(fd, &message, wait ? MSG_WAITALL : MSG_DONTWAIT);
}

Result<LaneReader::Progress> LaneReader::readFrom(int fd, bool wait) {
  Progress progress;
  while (progress.bytes < kBytesPerTurn) {
    const bool waits = wait && room_.sizeBytes > 0;
    const size_t asked = room_.sizeBytes + (waits ? 0 : frontRoom().size());
    ssize_t got = receive(fd, waits);
    if (got == 0) return Status(Code::kPeerLost, "one of its lanes closed");
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) break;
      return io::errnoStatus(Code::kPeerLost, "one of its lanes broke", errno);
    }
    const auto bytes = static_cast<size_t>(got);
    Result<bool> taken = take(bytes);
    if (!taken.ok()) return std::move(taken).status();
    progress.whole = progress.whole || *taken;
    progress.bytes += bytes;
    // A short read has emptied the socket; asking again would cost a system call to hear so.
    if (bytes < asked) break;
  }
  return progress;
}

// The bytes that came: first the rest of a piece, then the front of the next. True when a buffer became whole.
Result<bool> LaneReader::take(size_t bytes) {
  bool whole = false;
  size_t filled = std::min(bytes, room_.sizeBytes);
  room_.data += filled;
  room_.sizeBytes -= filled;
  if (filled > 0 && room_.sizeBytes == 0) {
    room_ = {};
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
  room_ = std::move(*room);
  return whole;
}

}  // namespace treadle::link
