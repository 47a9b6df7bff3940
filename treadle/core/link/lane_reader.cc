#include "treadle/core/link/lane_reader.h"

#include <sys/socket.h>

#include <cerrno>

#include "treadle/core/io/socket.h"

namespace treadle::link {
namespace {

constexpr size_t kBytesPerTurn = 1 << 20;  // then others get their turn

}  // namespace

Result<bool> LaneReader::readFrom(int fd) {
  bool whole = false;
  for (size_t total = 0; total < kBytesPerTurn;) {
    MutableBytes front = frontRoom();
    std::array<iovec, 2> parts{iovec{room_.data, room_.sizeBytes}, iovec{front.data(), front.size()}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT);
    if (got == 0) return Status(Code::kPeerLost, "one of its lanes closed");
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) break;
      return io::errnoStatus(Code::kPeerLost, "one of its lanes broke", errno);
    }
    const auto bytes = static_cast<size_t>(got), asked = room_.sizeBytes + front.size();
    Result<bool> taken = take(bytes);
    if (!taken.ok()) return taken;
    whole = whole || *taken;
    total += bytes;
    // A short read has emptied the socket; asking again would cost a system call to hear so.
    if (bytes < asked) break;
  }
  return whole;
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
