#include "treadle/core/link/lane_sender.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "treadle/core/io/executor.h"
#include "treadle/core/io/socket.h"

namespace treadle::link {
namespace {

// Large enough for its header to cost nothing, small enough that many buffers take turns while it is on its way.
constexpr size_t kPieceBytes = 256U << 10;
// Then the reactor goes on with the other sockets first.
constexpr size_t kBytesPerTurn = 4U << 20;

}  // namespace

struct LaneSender::Transfer {
  uint64_t number;
  Buffer buffer;
  bool captured;         // counts among the captured bytes until it is written
  size_t begun = 0;      // bytes that pieces have been cut of
  size_t unwritten = 0;  // bytes that no socket has yet
};

uint64_t LaneSender::numberOf(const Transfer& transfer) { return transfer.number; }

// One socket. Who finds it free writes pieces until the socket is full; then the reactor's thread goes on.
class LaneSender::Lane final : public io::EventHandler {
 public:
  Lane(std::shared_ptr<LaneSender> owner, io::Fd fd) : owner_(std::move(owner)), fd_(std::move(fd)) {}

  void onEvents(uint32_t events) override {
    if (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP))
      return owner_->breakOff(Status(Code::kPeerLost, "one of its lanes closed"));
    pump();
  }

  void pump() {
    std::shared_ptr<LaneSender> owner = owner_;
    MutexLock lock(owner->mutex_);
    if (busy_) return;
    busy_ = true;
    size_t total = 0;
    bool more = true;
    while (more && total < kBytesPerTurn && owner->closed_.ok()) {
      more = piece_ || (piece_ = owner->nextPiece());
      if (!more) break;
      lock.unlock();
      ssize_t written = write();
      int error = errno;
      lock.lock();
      if (written < 0 && error == EINTR) continue;
      if (written < 0 && error == EAGAIN) break;
      if (written < 0) {
        setIdle();
        lock.unlock();
        return owner->breakOff(io::errnoStatus(Code::kPeerLost, "one of its lanes broke", error));
      }
      wrote(static_cast<size_t>(written));
      total += static_cast<size_t>(written);
    }
    setIdle();
    if (owner->closed_.ok()) wantRoom(more);
  }

  int fd() const { return fd_.get(); }
  // With the owner's lock held.
  bool busy() const { return busy_; }
  std::optional<Piece>& piece() { return piece_; }

 private:
  ssize_t write() {
    std::array<iovec, 2> parts;
    size_t front = std::min(piece_->written, piece_->front.size()), bytes = piece_->written - front;
    parts[0] = {piece_->front.data() + front, piece_->front.size() - front};
    parts[1] = {const_cast<std::byte*>(piece_->bytes.data()) + bytes, piece_->bytes.size() - bytes};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    return ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // With the lock held.
  void wrote(size_t bytes) {
    size_t before = std::max(piece_->written, piece_->front.size());
    piece_->written += bytes;
    size_t payload = std::max(piece_->written, piece_->front.size()) - before;
    Transfer& transfer = *piece_->transfer;
    transfer.unwritten -= payload;
    owner_->unwrittenBytes_ -= payload;
    if (transfer.unwritten == 0 && transfer.captured) owner_->capturedBytes_ -= transfer.buffer.sizeBytes;
    bool whole = piece_->written == piece_->front.size() + piece_->bytes.size();
    if (whole) piece_.reset();
    if (whole) owner_->progress_.notifyAll();
  }

  void setIdle() {
    busy_ = false;
    owner_->progress_.notifyAll();
  }

  void wantRoom(bool wanted) {
    if (wanted == armed_) return;
    armed_ = wanted;
    owner_->reactor_.change(fd_.get(), EPOLLRDHUP | (wanted ? EPOLLOUT : 0U));
  }

  const std::shared_ptr<LaneSender> owner_;  // a cycle until the sender is closed
  const io::Fd fd_;
  // Guarded by the owner's mutex; the piece is its writer's alone while the lane is busy.
  std::optional<Piece> piece_;
  bool busy_ = false, armed_ = false;
};

Status LaneSender::addLane(io::Fd fd) {
  auto lane = std::make_shared<Lane>(shared_from_this(), std::move(fd));
  MutexLock lock(mutex_);
  TREADLE_RETURN_IF_ERROR(closed_);
  TREADLE_RETURN_IF_ERROR(reactor_.add(lane->fd(), EPOLLRDHUP, lane));
  lanes_.push_back(std::move(lane));
  return {};
}

bool LaneSender::hasLanes() const {
  MutexLock lock(mutex_);
  return !lanes_.empty();
}

void LaneSender::breakOff(const Status& why) {
  UniqueFunction<void(const Status&)> onBroken;
  {
    MutexLock lock(mutex_);
    onBroken = std::move(onBroken_);
  }
  if (onBroken) onBroken(why);
}

Status LaneSender::takeRoom(size_t bytes, SendMode mode, TimePoint deadline) {
  auto hasRoom = [&] { return mode == SendMode::kUrgent || capturedBytes_ + bytes <= limitBytes_; };
  MutexLock lock(mutex_);
  if (closed_.ok() && !hasRoom()) {
    lock.unlock();
    io::Executor::Blocking blocking;
    TREADLE_RETURN_IF_ERROR(blocking.status());
    lock.lock();
    while (closed_.ok() && !hasRoom())
      if (!progress_.waitUntil(lock, deadline) && !hasRoom())
        return deadlineExceeded("the peer reads too slowly: " + std::to_string(capturedBytes_) +
                                " bytes wait for it already");
  }
  if (closed_.ok()) capturedBytes_ += bytes;
  return closed_;
}

Result<LaneSender::Transfers> LaneSender::prepare(std::span<const Buffer> buffers, SendMode mode, TimePoint deadline) {
  size_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.sizeBytes;
  const bool stay = mode == SendMode::kStay || (mode != SendMode::kUrgent && bytes > limitBytes_);
  if (!stay) TREADLE_RETURN_IF_ERROR(takeRoom(bytes, mode, deadline));
  Transfers transfers;
  try {
    for (const Buffer& buffer : buffers) {
      bool copied = !stay && buffer.borrowed();
      Buffer held = copied ? memory::copyTo(pool_, buffer.bytes()) : buffer;
      transfers.push_back(std::make_shared<Transfer>(Transfer{0, std::move(held), !stay, 0, buffer.sizeBytes}));
    }
  } catch (const std::bad_alloc&) {
    MutexLock lock(mutex_);
    if (!stay) capturedBytes_ -= bytes;
    progress_.notifyAll();
    return resourceExhausted("no memory for a copy of tensors of " + std::to_string(bytes) + " bytes");
  }
  MutexLock lock(mutex_);
  for (auto& transfer : transfers) transfer->number = ++lastNumber_;
  return transfers;
}

void LaneSender::drop(const Transfers& transfers) {
  MutexLock lock(mutex_);
  for (const auto& transfer : transfers)
    if (transfer->captured) capturedBytes_ -= transfer->buffer.sizeBytes;
  progress_.notifyAll();
}

void LaneSender::begin(const Transfers& transfers, TimePoint deadline) {
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return;
    waiting_.insert(waiting_.end(), transfers.begin(), transfers.end());
    for (const auto& transfer : transfers) unwrittenBytes_ += transfer->buffer.sizeBytes;
  }
  pumpAll();
  if (!transfers.empty() && !transfers.front()->captured) stayUntilWritten(transfers, deadline);
}

// Whoever comes first writes; the sockets that are full are left to the reactor's thread.
void LaneSender::pumpAll() {
  std::vector<std::shared_ptr<Lane>> lanes;
  {
    MutexLock lock(mutex_);
    lanes = lanes_;
  }
  for (const auto& lane : lanes) lane->pump();
}

// The caller's memory is its own again when this returns: what is not written by then goes on from a copy.
void LaneSender::stayUntilWritten(const Transfers& transfers, TimePoint deadline) {
  auto written = [&] {
    return std::all_of(transfers.begin(), transfers.end(), [](const auto& one) { return one->unwritten == 0; });
  };
  MutexLock lock(mutex_);
  if (written()) return;
  lock.unlock();
  // If too many wait already this one waits all the same: its bytes are on their way.
  io::Executor::Blocking blocking;
  lock.lock();
  while (closed_.ok() && !written() && progress_.waitUntil(lock, deadline)) {}
  if (closed_.ok() && !written()) {
    lock.unlock();
    goOnFromCopies(transfers);
    lock.lock();
  }
  while (!closed_.ok() && isBeingWritten(transfers)) progress_.wait(lock);  // one system call that does not block
}

void LaneSender::goOnFromCopies(const Transfers& transfers) {
  std::vector<Buffer> copies;
  try {
    for (const auto& transfer : transfers)
      copies.push_back(transfer->buffer.borrowed() ? memory::copyTo(pool_, transfer->buffer.bytes())
                                                   : transfer->buffer);
  } catch (const std::bad_alloc&) {
    breakOff(resourceExhausted("no memory to go on with a tensor that has begun"));
    return close(cancelled("no memory to go on with a tensor that has begun"));
  }
  MutexLock lock(mutex_);
  while (closed_.ok() && isBeingWritten(transfers)) progress_.wait(lock);
  if (!closed_.ok()) return;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const std::byte* before = transfers[i]->buffer.data;
    for (const auto& lane : lanes_)
      if (auto& piece = lane->piece(); piece && piece->transfer == transfers[i])
        piece->bytes =
            copies[i].bytes().subspan(static_cast<size_t>(piece->bytes.data() - before), piece->bytes.size());
    transfers[i]->buffer = std::move(copies[i]);
  }
}

bool LaneSender::isBeingWritten(const Transfers& transfers) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) {
    return lane->busy() && lane->piece() &&
           std::find(transfers.begin(), transfers.end(), lane->piece()->transfer) != transfers.end();
  });
}

void LaneSender::drain(TimePoint deadline) {
  MutexLock lock(mutex_);
  while (closed_.ok() && unwrittenBytes_ > 0 && progress_.waitUntil(lock, deadline)) {}
}

// The transfers take turns, a piece each.
std::optional<LaneSender::Piece> LaneSender::nextPiece() {
  if (waiting_.empty()) return std::nullopt;
  std::shared_ptr<Transfer> transfer = std::move(waiting_.front());
  waiting_.pop_front();
  Piece piece;
  piece.bytes = transfer->buffer.bytes().subspan(transfer->begun);
  piece.bytes = piece.bytes.first(std::min(kPieceBytes, piece.bytes.size()));
  piece.front = wire::pieceFront({transfer->number, transfer->begun, transfer->buffer.sizeBytes, piece.bytes.size()});
  transfer->begun += piece.bytes.size();
  piece.transfer = transfer;
  if (transfer->begun < transfer->buffer.sizeBytes) waiting_.push_back(std::move(transfer));
  return piece;
}

void LaneSender::close(const Status& why) {
  std::vector<std::shared_ptr<Lane>> lanes;
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return;
    closed_ = why;
    onBroken_ = {};
    lanes = lanes_;
    waiting_.clear();
    progress_.notifyAll();
  }
  for (const auto& lane : lanes) reactor_.remove(lane->fd());
  MutexLock lock(mutex_);
  // A sender that still waits for a lane to let go of its memory looks for it here: the lanes go when they are idle.
  while (std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->busy(); })) progress_.wait(lock);
  lanes_.clear();
}

size_t LaneSender::queuedBytes() const {
  MutexLock lock(mutex_);
  return unwrittenBytes_;
}

}  // namespace treadle::link
