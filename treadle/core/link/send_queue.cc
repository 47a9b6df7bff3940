#include "treadle/core/link/send_queue.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "treadle/core/io/executor.h"
#include "treadle/core/io/socket.h"

// Budget of a frame that the socket takes whole: one sendmsg for up to 64 parts, two uncontended locks, two
// allocations (the deque of its parts), no copy and no wake-up. What the socket does not take costs one copy
// of the borrowed bytes that are left, two epoll_ctl calls and another sendmsg by the reactor's thread.
namespace treadle::link {
namespace {

size_t bytesOf(const auto& chunks) {
  size_t bytes = 0;
  for (const auto& chunk : chunks) bytes += chunk.rest().size();
  return bytes;
}

Buffer owned(std::vector<std::byte> bytes) {
  auto holder = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  return {holder->data(), holder->size(), holder};
}

Buffer copyOf(Bytes bytes) {
  Buffer copy = allocateBuffer(bytes.size());
  std::memcpy(copy.data, bytes.data(), bytes.size());
  return copy;
}

}  // namespace

Status SendQueue::send(std::vector<std::byte> front, std::span<const Buffer> buffers, SendMode mode,
                       TimePoint deadline) {
  Chunks chunks;
  chunks.push_back({Buffer{front.data(), front.size(), nullptr}});
  for (const Buffer& buffer : buffers)
    if (buffer.sizeBytes > 0) chunks.push_back({buffer});
  const size_t bytes = bytesOf(chunks);
  // The lock is let go while this thread writes, and `writing_` stands for it: others queue behind rather than wait.
  MutexLock lock(mutex_);
  TREADLE_RETURN_IF_ERROR(waitForRoom(lock, bytes, mode, deadline));
  if (writing_ || !queue_.empty()) {
    chunks.front().buffer = owned(std::move(front));
    queue(std::move(chunks), false);
    return {};
  }
  writing_ = true;
  reservedBytes_ = mode == SendMode::kStay || bytes > limitBytes_ ? 0 : bytes;
  lock.unlock();
  Status written = writeFromCaller(chunks, mode, deadline);
  lock.lock();
  writing_ = false;
  reservedBytes_ = 0;
  // A frame that has begun must end, or the stream is of no use to those who come after: then it counts as sent.
  bool begun = bytesOf(chunks) < bytes;
  if (!written.ok() && !begun) chunks.clear();
  if (!chunks.empty()) {
    queue(std::move(chunks), true);
    written = Status();
  }
  if (!queue_.empty() && closed_.ok()) wantRoom_(true);
  room_.notifyAll();
  return written;
}

// A frame larger than the limit waits until all else is out and is then written by its sender, so it needs no
// room. Threads that read must use kUrgent: a reading thread that waited here for a peer that waits likewise
// would never end.
Status SendQueue::waitForRoom(MutexLock& lock, size_t bytes, SendMode mode, TimePoint deadline) {
  auto hasRoom = [&] {
    bool free = !writing_ && queue_.empty();
    return free || mode == SendMode::kUrgent || queuedBytes_ + reservedBytes_ + bytes <= limitBytes_;
  };
  if (closed_.ok() && !hasRoom()) {
    lock.unlock();
    io::Executor::Blocking blocking;
    TREADLE_RETURN_IF_ERROR(blocking.status());
    lock.lock();
    while (closed_.ok() && !hasRoom())
      if (!room_.waitUntil(lock, deadline) && !hasRoom())
        return deadlineExceeded("the peer reads too slowly: " + std::to_string(queuedBytes_) +
                                " bytes are queued for it already");
  }
  return closed_;
}

// kCapture leaves the rest to the reactor, unless copying it would go over the limit; kStay never copies,
// since its thread has nothing else to do than wait for the answer.
Status SendQueue::writeFromCaller(Chunks& chunks, SendMode mode, TimePoint deadline) {
  for (;;) {
    Result<bool> done = writeSome(chunks);
    if (!done.ok()) return chunks.clear(), std::move(done).status();
    if (*done || mode == SendMode::kUrgent) return {};
    bool wait = mode == SendMode::kStay || bytesOf(chunks) > limitBytes_;
    if (!wait) return {};
    io::Executor::Blocking blocking;
    TREADLE_RETURN_IF_ERROR(blocking.status());
    if (!io::waitFor(fd_, POLLOUT, deadline)) return deadlineExceeded("the peer takes no more bytes");
  }
}

// True when all is written; false when the socket is full.
Result<bool> SendQueue::writeSome(Chunks& chunks) {
  while (!chunks.empty()) {
    std::array<iovec, 64> parts;
    size_t count = std::min(parts.size(), chunks.size());
    for (size_t i = 0; i < count; ++i) {
      Bytes rest = chunks[i].rest();
      parts[i] = {const_cast<std::byte*>(rest.data()), rest.size()};
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    ssize_t written = ::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return false;
      return io::errnoStatus(Code::kPeerLost, "its connection broke", errno);
    }
    auto left = static_cast<size_t>(written);
    while (!chunks.empty() && left >= chunks.front().rest().size()) {
      left -= chunks.front().rest().size();
      chunks.pop_front();
    }
    if (left > 0) chunks.front().offset += left;
  }
  return true;
}

void SendQueue::queue(Chunks chunks, bool inFront) {
  for (Chunk& chunk : chunks)
    if (chunk.buffer.borrowed()) chunk = {copyOf(chunk.rest())};
  queuedBytes_ += bytesOf(chunks);
  auto where = inFront ? queue_.begin() : queue_.end();
  queue_.insert(where, std::make_move_iterator(chunks.begin()), std::make_move_iterator(chunks.end()));
}

Status SendQueue::flush() {
  MutexLock lock(mutex_);
  if (writing_ || queue_.empty()) {
    wantRoom_(false);  // a thread that is writing sees to what is queued when it is done
    return {};
  }
  writing_ = true;
  Chunks chunks;
  chunks.swap(queue_);
  lock.unlock();
  Result<bool> done = writeSome(chunks);
  lock.lock();
  writing_ = false;
  queue_.insert(queue_.begin(), std::make_move_iterator(chunks.begin()), std::make_move_iterator(chunks.end()));
  queuedBytes_ = bytesOf(queue_);
  room_.notifyAll();
  if (queue_.empty()) wantRoom_(false);
  return done.ok() ? Status() : std::move(done).status();
}

void SendQueue::close(const Status& why) {
  MutexLock lock(mutex_);
  if (closed_.ok()) closed_ = why;
  queue_.clear();
  queuedBytes_ = 0;
  room_.notifyAll();
}

bool SendQueue::drain(TimePoint deadline) {
  MutexLock lock(mutex_);
  while (closed_.ok() && (writing_ || !queue_.empty()))
    if (!room_.waitUntil(lock, deadline)) break;
  return closed_.ok() && !writing_ && queue_.empty();
}

size_t SendQueue::queuedBytes() const {
  MutexLock lock(mutex_);
  return queuedBytes_;
}

}  // namespace treadle::link
