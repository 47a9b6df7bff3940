#include "treadle/core/link/frame_reader.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "treadle/core/base/spare_bytes.h"
#include "treadle/core/wire/crc32c.h"

// Budget: one recvmsg (TCP: recv) per 64 KiB of small frames, none to hear that there is nothing left; one allocation
// for a payload and two for each buffer; no locks. Payloads are copied once (out of the read buffer), buffers not at
// all but for what came with their front.
namespace treadle::link {
namespace {

constexpr size_t kScratchBytes = 64 << 10;
constexpr size_t kBytesPerTurn = 1 << 20;  // then others get their turn

// The read buffer of whoever reads on this thread: an idle connection needs none.
using SpareScratch = base::SpareBytes<FrameReader, 1, kScratchBytes>;

// Memory for the buffers whose bytes follow.
Status allocateInline(Frame& frame, memory::BlockPool* pool) {
  try {
    for (const wire::BufferEntry& entry : frame.entries) {
      bool isInline = entry.place == wire::Place::kInline;
      frame.buffers.push_back(isInline ? memory::allocateFrom(pool, entry.sizeBytes) : Buffer{});
    }
  } catch (const std::bad_alloc&) {
    return resourceExhausted("no memory for a message's buffers");
  }
  return {};
}

}  // namespace

// recv(2), and on UNIX sockets the descriptor that came with the bytes.
ssize_t FrameReader::receive(io::Stream& from, MutableBytes room) {
  if (!takesDescriptors_) return from.read(room, 0);
  iovec part{room.data(), room.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = ::recvmsg(from.fd(), &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return got;
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  if (rights == nullptr || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) return got;
  // All are taken, or they would stay open: the padding has room for more than the one that is asked for.
  for (size_t at = 0; at + CMSG_LEN(sizeof(int)) <= rights->cmsg_len; at += sizeof(int)) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(rights) + at, sizeof descriptor);
    manyDescriptors_ = manyDescriptors_ || descriptor_.valid();
    descriptor_.reset(descriptor);
  }
  return got;
}

Result<bool> FrameReader::readFrom(io::Stream& from, UniqueFunction<void(Frame)>& onFrame) {
  if (scratch_.empty()) scratch_ = SpareScratch::take();
  Result<bool> got = readSome(from, onFrame);
  // What is left is the beginning of a frame, which will come whole soon: the buffer stays with it.
  if (begin_ == end_) {
    begin_ = end_ = 0;
    SpareScratch::keep(std::exchange(scratch_, {}));
  }
  return got;
}

Result<bool> FrameReader::readSome(io::Stream& from, UniqueFunction<void(Frame)>& onFrame) {
  size_t total = 0;
  for (;;) {
    MutableBytes room = target();
    // What is left in the stream itself is read all the same, and nothing more of the socket.
    if (total >= kBytesPerTurn) room = room.first(std::min(room.size(), from.pending()));
    if (room.empty()) break;
    ssize_t got = receive(from, room);
    if (got == 0) return Status(Code::kPeerLost, "its connection closed");
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) break;
      return from.broken(errno, "its connection broke");
    }
    if (manyDescriptors_) return dataLoss("it sent more descriptors than it has use for");
    advance(static_cast<size_t>(got));
    total += static_cast<size_t>(got);
    TREADLE_RETURN_IF_ERROR(consume(onFrame));
    // A short read has emptied the socket; asking again would cost a system call to hear so.
    if (static_cast<size_t>(got) < room.size() && from.pending() == 0) break;
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
    filled(bytes);
  } else {
    end_ += bytes;
  }
}

// So many bytes more are in the current buffer.
void FrameReader::filled(size_t bytes) {
  Bytes more = current_->buffers[bufferIndex_].bytes().subspan(bufferOffset_, bytes);
  if (checksBuffers_) bufferCrc_ = wire::crc32c(more, bufferCrc_);
  bufferOffset_ += bytes;
}

// Hands over what is whole. A frame may come in any number of pieces, and one piece may hold many frames.
Status FrameReader::consume(UniqueFunction<void(Frame)>& onFrame) {
  for (;;) {
    if (!current_) {
      Result<bool> started = startFrame();
      if (!started.ok()) return std::move(started).status();
      if (!*started) return {};
    }
    TREADLE_RETURN_IF_ERROR(fillBuffers());
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
  Result<std::vector<wire::BufferEntry>> entries = wire::parseFront(*header, front);
  if (!entries.ok()) return std::move(entries).status();
  Bytes payload = front.subspan(wire::kHeaderBytes + header->entriesBytes());
  Frame frame{*header, {payload.begin(), payload.end()}, std::move(*entries), {}, {}};
  TREADLE_RETURN_IF_ERROR(allocateInline(frame, pool_));
  if (header->kind == wire::FrameKind::kArena) frame.descriptor = std::move(descriptor_);
  current_ = std::move(frame);
  bufferIndex_ = bufferOffset_ = bufferCrc_ = 0;
  begin_ += frontBytes;
  return true;
}

// Moves read-ahead bytes to the buffers and steps over the full ones.
Status FrameReader::fillBuffers() {
  std::vector<Buffer>& buffers = current_->buffers;
  while (bufferIndex_ < buffers.size()) {
    MutableBytes room = buffers[bufferIndex_].mutableBytes().subspan(bufferOffset_);
    size_t taken = std::min(room.size(), end_ - begin_);
    if (taken > 0) std::memcpy(room.data(), scratch_.data() + begin_, taken);
    begin_ += taken;
    filled(taken);
    if (taken < room.size()) return {};
    const wire::BufferEntry& entry = current_->entries[bufferIndex_];
    if (checksBuffers_ && entry.place == wire::Place::kInline && entry.at != bufferCrc_) return wire::damagedBuffer();
    ++bufferIndex_;
    bufferOffset_ = bufferCrc_ = 0;
  }
  return {};
}

Result<Frame> readOneFrame(io::Stream& from, const wire::FrameLimits& limits, TimePoint deadline) {
  std::vector<std::byte> front(wire::kHeaderBytes);
  TREADLE_RETURN_IF_ERROR(io::readAll(from, front, deadline));
  Result<wire::FrameHeader> header = wire::parseHeader(front, limits);
  if (!header.ok()) return std::move(header).status();
  front.resize(header->frontBytes());
  TREADLE_RETURN_IF_ERROR(io::readAll(from, MutableBytes(front).subspan(wire::kHeaderBytes), deadline));
  Result<std::vector<wire::BufferEntry>> entries = wire::parseFront(*header, front);
  if (!entries.ok()) return std::move(entries).status();
  Bytes payload = Bytes(front).last(header->payloadBytes);
  Frame frame{*header, {payload.begin(), payload.end()}, std::move(*entries), {}, {}};
  TREADLE_RETURN_IF_ERROR(allocateInline(frame, nullptr));
  for (Buffer& buffer : frame.buffers) TREADLE_RETURN_IF_ERROR(io::readAll(from, buffer.mutableBytes(), deadline));
  return frame;
}

}  // namespace treadle::link
