#include "treadle/core/link/send_queue.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "treadle/core/io/executor.h"
#include "treadle/core/io/serving.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/memory/block_pool.h"
#include "treadle/core/wire/writer.h"

// Budget of a frame that the socket takes whole: one sendmsg for up to 64 parts, two uncontended locks, one
// allocation (the list of its parts), no copy and no wake-up. What the socket does not take costs one copy
// of the borrowed bytes that are left, two epoll_ctl calls and another sendmsg by the reactor's thread. A frame that is
// queued whole costs a copy of its borrowed bytes, without the lock, and takes the lock once more for it.
namespace treadle::link {
namespace {

size_t bytesOf(const auto& chunks) {
  size_t bytes = 0;
  for (const auto& chunk : chunks) bytes += chunk.rest().size();
  return bytes;
}

}  // namespace

struct SendQueue::HeldBytes final : Memory {
  explicit HeldBytes(std::vector<std::byte> held) : bytes(std::move(held)) {}
  std::vector<std::byte> bytes;
};

SendQueue::Chunks SendQueue::chunksOf(std::vector<std::byte>& front, std::span<const Buffer> buffers, int descriptor) {
  Chunks chunks;
  chunks.reserve(1 + buffers.size());
  chunks.push_back({Buffer{front.data(), front.size()}, 0, descriptor});
  for (const Buffer& buffer : buffers)
    if (buffer.sizeBytes > 0) chunks.push_back({buffer});
  return chunks;
}

Status SendQueue::send(std::vector<std::byte> front, std::span<const Buffer> buffers, SendMode mode, TimePoint deadline,
                       int descriptor) {
  size_t bytes = front.size();
  for (const Buffer& buffer : buffers) bytes += buffer.sizeBytes;
  // The lock is let go while this thread writes, and `writing_` stands for it: others queue behind rather than wait.
  MutexLock lock(mutex_);
  TREADLE_RETURN_IF_ERROR(waitForRoom(lock, bytes, mode, deadline));
  const size_t unsent = queuedBytes_ - halfSentBytes_ + reservedBytes_;
  if (mode == SendMode::kUrgent && unsent > limitBytes_ + urgentLimitBytes_) return overflow();
  bool mayWait = mode == SendMode::kBatch || mode == SendMode::kLazy;
  if (mayWait && !full_ && bytes == front.size() && bytes <= kBatchBytes / 4) {
    bool filled = batch(front, mode == SendMode::kLazy);
    wire::Writer::Spare::keep(std::move(front));
    return filled && !writing_ ? writeQueue(lock) : Status();
  }
  Chunks own = chunksOf(front, buffers, descriptor);
  if (writing_ || full_) {
    auto holder = std::make_shared<HeldBytes>(std::move(front));
    own.front().buffer = {holder->bytes.data(), holder->bytes.size(), holder};
    TREADLE_RETURN_IF_ERROR(makeOwnedUnlocked(lock, own, bytes));
    if (writing_ || full_) {
      queue(std::move(own));
      return {};
    }
  }
  Chunks chunks = takeQueue();
  if (chunks.empty()) {
    chunks.swap(own);
  } else {
    chunks.insert(chunks.end(), std::make_move_iterator(own.begin()), std::make_move_iterator(own.end()));
  }
  writing_ = true;
  const size_t reserved = mode == SendMode::kStay || bytes > limitBytes_ ? 0 : bytes;
  reservedBytes_ += reserved;
  lock.unlock();
  Status written = writeFromCaller(chunks, mode, deadline);
  // A frame that has begun must end, or the stream is of no use to those who come after: then it counts as sent.
  const bool begun = bytesOf(chunks) < bytes;
  // Before the lock, for which the heartbeats of all peers wait: it may be a copy of gigabytes.
  const bool broke = written.code() == Code::kPeerLost;
  const Status kept = !broke && (begun || written.ok()) ? makeOwned(chunks) : Status();
  if (!kept.ok()) written = kept;
  if (!written.ok() && !begun)
    for (size_t dropped = 0; dropped < bytes; chunks.pop_back()) dropped += chunks.back().rest().size();
  if (begun && (broke || !kept.ok())) chunks.clear();
  lock.lock();
  reservedBytes_ -= reserved;
  if (begun) {
    if (broke && broken_.ok()) broken_ = written;  // the flush that follows reports it
    if (!kept.ok()) breakOff(Status(Code::kPeerLost, kept.message()));
    written = Status();
  } else if (broke && !closed_.ok()) {
    written = closed_;  // this side ended it meanwhile, and has a reason
  }
  const bool full = !broke && (!chunks.empty() || !stream_.flushed());
  if (size_t left = bytesOf(chunks); left > limitBytes_) halfSentBytes_ = left;
  afterWriting(std::move(chunks), full);
  return written;
}

// Adds a small frame to those that wait; true when there are enough of them to be sent.
bool SendQueue::batch(Bytes frame, bool lazy) {
  if (!batch_) {
    batch_ = std::make_shared<HeldBytes>(std::vector<std::byte>());
    batch_->bytes.reserve(kBatchBytes);
    queue_.push_back({Buffer{batch_->bytes.data(), 0, batch_}});
  }
  // Within what is reserved, so that the bytes stay where they are.
  batch_->bytes.insert(batch_->bytes.end(), frame.begin(), frame.end());
  queue_.back().buffer.sizeBytes = batch_->bytes.size();
  queuedBytes_ += frame.size();
  bool filled = batch_->bytes.size() > kBatchBytes - kBatchBytes / 4;
  if (filled) batch_.reset();
  if (filled || writing_) return filled;
  if (lazy && !std::exchange(flushLater_, true)) host_.wantFlushLater();
  if (!lazy && !std::exchange(flushSoon_, true)) host_.wantFlush();
  return false;
}

SendQueue::Chunks SendQueue::takeQueue() {
  batch_.reset();
  return std::exchange(queue_, {});
}

// What others queued meanwhile goes out next.
void SendQueue::afterWriting(Chunks left, bool socketIsFull) {
  writing_ = false;
  if (!closed_.ok()) left.clear();
  queue_.insert(queue_.begin(), std::make_move_iterator(left.begin()), std::make_move_iterator(left.end()));
  queuedBytes_ = bytesOf(queue_);
  halfSentBytes_ = std::min(halfSentBytes_, queuedBytes_);
  room_.notifyAll();
  if (!closed_.ok()) return;
  if (socketIsFull != full_) host_.wantRoom(full_ = socketIsFull);
  const bool more = !queue_.empty() || !broken_.ok();
  if (!full_ && more && !std::exchange(flushSoon_, true)) host_.wantFlush();
}

// A frame larger than the limit waits until all else is out and is then written by its sender, so it needs no
// room. The scope of the wait refuses threads that poll or read.
Status SendQueue::waitForRoom(MutexLock& lock, size_t bytes, SendMode mode, TimePoint deadline) {
  const size_t limit = limitBytes_ + (io::Serving::here() ? kReserveBytes : 0);
  auto hasRoom = [&]() TREADLE_REQUIRES(mutex_) {
    bool free = !writing_ && !full_ && queue_.empty();
    return free || mode == SendMode::kUrgent || queuedBytes_ + reservedBytes_ + bytes <= limit;
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
    if (!done.ok()) return std::move(done).status();
    if (*done || mode == SendMode::kUrgent) return {};
    bool wait = mode == SendMode::kStay || bytesOf(chunks) > limitBytes_;
    if (!wait) return {};
    io::Executor::Blocking blocking;
    TREADLE_RETURN_IF_ERROR(blocking.status());
    if (!io::waitFor(stream_.fd(), POLLOUT, deadline)) return deadlineExceeded("the peer takes no more bytes");
  }
}

// By errno(3). TLS, once it has found damage in what came, says DataLoss of what is written too.
Status SendQueue::broken() const {
  return Status(Code::kPeerLost, stream_.broken(errno, "its connection broke").message());
}

// True when all is written; false when the socket is full. What is written is taken out of `chunks`. Without chunks the
// stream may still have bytes that the socket did not take.
Result<bool> SendQueue::writeSome(Chunks& chunks) {
  size_t done = 0;  // of the chunks, all at once
  Result<bool> result = true;
  if (chunks.empty() && !stream_.flushed() && stream_.write({}, MSG_DONTWAIT) < 0 && errno != EAGAIN) return broken();
  while (done < chunks.size()) {
    ssize_t written = writeOnce(std::span(chunks).subspan(done));
    if (written < 0) {
      if (errno == EINTR) continue;
      result = errno == EAGAIN ? Result<bool>(false) : broken();
      break;
    }
    auto left = static_cast<size_t>(written);
    chunks[done].descriptor = -1;  // it has gone with the first byte
    while (done < chunks.size() && left >= chunks[done].rest().size()) left -= chunks[done++].rest().size();
    if (left > 0) chunks[done].offset += left;
  }
  chunks.erase(chunks.begin(), chunks.begin() + static_cast<ptrdiff_t>(done));
  if (result.ok() && !stream_.flushed()) return false;
  return result;
}

// One sendmsg(2) of as many parts as it takes. A descriptor goes with the first part, so the next one that has one must
// wait its turn.
ssize_t SendQueue::writeOnce(std::span<const Chunk> chunks) {
  std::array<iovec, 64> parts;
  size_t count = 0;
  for (const Chunk& chunk : chunks) {
    if (count == parts.size() || (count > 0 && chunk.descriptor >= 0)) break;
    Bytes rest = chunk.rest();
    parts[count++] = {const_cast<std::byte*>(rest.data()), rest.size()};
  }
  if (chunks.front().descriptor < 0) return stream_.write(std::span(parts).first(count), MSG_DONTWAIT);
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &chunks.front().descriptor, sizeof(int));
  return ::sendmsg(stream_.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Borrowed bytes are gone when the sender returns.
Status SendQueue::makeOwned(Chunks& chunks) try {
  for (Chunk& chunk : chunks)
    if (chunk.buffer.borrowed()) chunk = {memory::copyTo(nullptr, chunk.rest()), 0, chunk.descriptor};
  return {};
} catch (const std::bad_alloc&) {
  return resourceExhausted("there is no memory to keep what the peer takes too slowly");
}

// Copies without the lock, for which the heartbeats of all peers wait. The frame's bytes count as queued meanwhile. A
// frame of another thread may go first: the two are sent at the same time, so either order is right.
Status SendQueue::makeOwnedUnlocked(MutexLock& lock, Chunks& chunks, size_t bytes) {
  if (std::ranges::none_of(chunks, [](const Chunk& chunk) { return chunk.buffer.borrowed(); })) return {};
  reservedBytes_ += bytes;
  lock.unlock();
  Status made = makeOwned(chunks);
  lock.lock();
  reservedBytes_ -= bytes;
  room_.notifyAll();
  return made.ok() ? closed_ : made;
}

void SendQueue::queue(Chunks chunks) {
  batch_.reset();
  queuedBytes_ += bytesOf(chunks);
  queue_.insert(queue_.end(), std::make_move_iterator(chunks.begin()), std::make_move_iterator(chunks.end()));
}

// Nothing more is sent. The connection is closed from the reactor's thread: the sender may hold locks.
void SendQueue::breakOff(Status why) {
  end(Status(Code::kPeerLost, why.message()));
  if (broken_.ok()) broken_ = std::move(why);
  host_.wantFlush();
}

Status SendQueue::overflow() {
  breakOff(resourceExhausted("it reads nothing of what it is told: " + std::to_string(queuedBytes_) +
                             " bytes are queued for it"));
  return closed_;
}

Status SendQueue::flush() {
  MutexLock lock(mutex_);
  flushSoon_ = false;
  if (!broken_.ok()) return broken_;
  // A thread that is writing sees to what is queued when it is done.
  if (writing_) return {};
  if (queue_.empty() && !full_) return {};
  return writeQueue(lock);
}

Status SendQueue::flushLater() {
  {
    MutexLock lock(mutex_);
    flushLater_ = false;
  }
  return flush();
}

Status SendQueue::writeQueue(MutexLock& lock) {
  Chunks chunks = takeQueue();
  writing_ = true;
  lock.unlock();
  Result<bool> done = writeSome(chunks);
  lock.lock();
  afterWriting(std::move(chunks), done.ok() && !*done);
  return done.ok() ? Status() : std::move(done).status();
}

void SendQueue::close(const Status& why) {
  MutexLock lock(mutex_);
  end(why);
}

void SendQueue::end(const Status& why) {
  if (closed_.ok()) closed_ = why;
  queue_.clear();
  batch_.reset();
  queuedBytes_ = halfSentBytes_ = 0;
  room_.notifyAll();
}

bool SendQueue::drain(TimePoint deadline) {
  MutexLock lock(mutex_);
  auto drained = [&]()
                     TREADLE_REQUIRES(mutex_) { return !writing_ && !full_ && queue_.empty() && reservedBytes_ == 0; };
  while (closed_.ok() && !drained())
    if (!room_.waitUntil(lock, deadline)) break;
  return closed_.ok() && drained();
}

size_t SendQueue::queuedBytes() const {
  MutexLock lock(mutex_);
  return queuedBytes_;
}

}  // namespace treadle::link
