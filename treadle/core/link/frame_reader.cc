#include "treadle/core/link/frame_reader.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "treadle/core/io/socket.h"

// Budget: one recv per 64 KiB of small frames, none to hear that there is nothing left; one allocation for a
// payload and two for each buffer; no locks. Payloads are copied once (out of the read buffer), buffers not
// at all but for what came with their front.
namespace treadle::link {
namespace {

constexpr size_t kScratchBytes = 64 << 10;
constexpr size_t kBytesPerTurn = 1 << 20;  // then others get their turn

Status allocateBuffers(const std::vector<uint64_t>& sizes, std::vector<Buffer>& buffers) {
  try {
    for (uint64_t size : sizes) buffers.push_back(allocateBuffer(size));
  } catch (const std::bad_alloc&) {
    return resourceExhausted("no memory for a message's buffers");
  }
  return {};
}

}  // namespace

Result<bool> FrameReader::readFrom(int fd, UniqueFunction<void(Frame)>& onFrame) {
  size_t total = 0;
  while (total < kBytesPerTurn) {
    MutableBytes room = target();
    ssize_t got = ::recv(fd, room.data(), room.size(), 0);
    if (got == 0) return Status(Code::kPeerLost, "its connection closed");
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) break;
      return io::errnoStatus(Code::kPeerLost, "its connection broke", errno);
    }
    advance(static_cast<size_t>(got));
    total += static_cast<size_t>(got);
    TREADLE_RETURN_IF_ERROR(consume(onFrame));
    // A short read has emptied the socket; asking again would cost a system call to hear so.
    if (static_cast<size_t>(got) < room.size()) break;
  }
  return total > 0;
}

// Where the next bytes go: the buffer that is being filled, or the read buffer.
MutableBytes FrameReader::target() {
  if (current_) return current_->buffers[bufferIndex_].mutableBytes().subspan(bufferOffset_);
  if (begin_ == end_) begin_ = end_ = 0;
  if (scratch_.size() < kScratchBytes) scratch_.resize(kScratchBytes);
  if (end_ == scratch_.size()) {
    std::memmove(scratch_.data(), scratch_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  return MutableBytes(scratch_).subspan(end_);
}

void FrameReader::advance(size_t bytes) {
  if (current_) {
    bufferOffset_ += bytes;
  } else {
    end_ += bytes;
  }
}

// Hands over what is whole. A frame may come in any number of pieces, and one piece may hold many frames.
Status FrameReader::consume(UniqueFunction<void(Frame)>& onFrame) {
  for (;;) {
    if (!current_) {
      Result<bool> started = startFrame();
      if (!started.ok()) return std::move(started).status();
      if (!*started) return {};
    }
    fillBuffers();
    if (bufferIndex_ < current_->buffers.size()) return {};
    Frame whole = std::move(*current_);
    current_.reset();
    onFrame(std::move(whole));
  }
}

// Cuts the front of the next frame out of the read buffer; false when it is not all there.
Result<bool> FrameReader::startFrame() {
  Bytes unread = Bytes(scratch_).subspan(begin_, end_ - begin_);
  if (unread.size() < wire::kHeaderBytes) return false;
  Result<wire::FrameHeader> header = wire::parseHeader(unread.first(wire::kHeaderBytes), limits_);
  if (!header.ok()) return std::move(header).status();
  size_t frontBytes = header->frontBytes();
  if (unread.size() < frontBytes) {
    if (scratch_.size() - begin_ < frontBytes) scratch_.resize(begin_ + frontBytes);
    return false;
  }
  Bytes front = unread.first(frontBytes);
  Result<std::vector<uint64_t>> sizes = wire::parseFront(*header, front);
  if (!sizes.ok()) return std::move(sizes).status();
  Bytes payload = front.subspan(wire::kHeaderBytes + header->sizesBytes());
  Frame frame{*header, {payload.begin(), payload.end()}, {}};
  TREADLE_RETURN_IF_ERROR(allocateBuffers(*sizes, frame.buffers));
  current_ = std::move(frame);
  bufferIndex_ = bufferOffset_ = 0;
  begin_ += frontBytes;
  if (begin_ == end_ && scratch_.size() > kScratchBytes) {
    scratch_ = std::vector<std::byte>(kScratchBytes);
    begin_ = end_ = 0;
  }
  return true;
}

// Moves read-ahead bytes to the buffers and steps over the full ones.
void FrameReader::fillBuffers() {
  std::vector<Buffer>& buffers = current_->buffers;
  while (bufferIndex_ < buffers.size()) {
    MutableBytes room = buffers[bufferIndex_].mutableBytes().subspan(bufferOffset_);
    size_t taken = std::min(room.size(), end_ - begin_);
    if (taken > 0) std::memcpy(room.data(), scratch_.data() + begin_, taken);
    begin_ += taken;
    bufferOffset_ += taken;
    if (taken < room.size()) return;
    ++bufferIndex_;
    bufferOffset_ = 0;
  }
}

Result<Frame> readOneFrame(int fd, const wire::FrameLimits& limits, TimePoint deadline) {
  std::vector<std::byte> front(wire::kHeaderBytes);
  TREADLE_RETURN_IF_ERROR(io::readAll(fd, front, deadline));
  Result<wire::FrameHeader> header = wire::parseHeader(front, limits);
  if (!header.ok()) return std::move(header).status();
  front.resize(header->frontBytes());
  TREADLE_RETURN_IF_ERROR(io::readAll(fd, MutableBytes(front).subspan(wire::kHeaderBytes), deadline));
  Result<std::vector<uint64_t>> sizes = wire::parseFront(*header, front);
  if (!sizes.ok()) return std::move(sizes).status();
  Bytes payload = Bytes(front).last(header->payloadBytes);
  Frame frame{*header, {payload.begin(), payload.end()}, {}};
  TREADLE_RETURN_IF_ERROR(allocateBuffers(*sizes, frame.buffers));
  for (Buffer& buffer : frame.buffers) TREADLE_RETURN_IF_ERROR(io::readAll(fd, buffer.mutableBytes(), deadline));
  return frame;
}

}  // namespace treadle::link
