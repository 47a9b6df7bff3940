#include "treadle/core/link/lane_sender.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "treadle/core/io/executor.h"
#include "treadle/core/io/serving.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/wire/crc32c.h"

namespace treadle::link {
namespace {

// Large enough for its header to cost nothing, small enough that many buffers take turns while it is on its way.
constexpr size_t kLeastPiece = 256U << 10, kMostPiece = 4U << 20;
constexpr size_t kPieces = 16;  // of a buffer, between these
// A second thread is not worth its wake-up for less.
constexpr size_t kSharedBytes = 1U << 20;
// How long a write that makes no progress stays in the kernel before it looks whether it should.
constexpr Duration kWriteLook = std::chrono::milliseconds(100);
// When no thread was to be had, the polling thread asks for one again after this.
constexpr Duration kThreadRetry = std::chrono::milliseconds(20);

}  // namespace

struct LaneSender::Transfer {
  uint64_t number;
  Buffer buffer;
  int priority;
  bool captured;         // counts among the captured bytes until it is written
  size_t begun = 0;      // bytes that pieces have been cut of
  size_t unwritten = 0;  // bytes that no socket has yet
};

uint64_t LaneSender::numberOf(const Transfer& transfer) { return transfer.number; }

// One socket. A thread at a time writes to it, blocking in the kernel while it is full: on two cores that moves nearly
// twice as many bytes as writing what fits and waiting for room (docs/rooms/link.md has the figures).
class LaneSender::Lane final : public io::EventHandler {
 public:
  Lane(std::shared_ptr<LaneSender> owner, io::Stream stream) : owner_(std::move(owner)), stream_(std::move(stream)) {}

  // The peer sends nothing here, so all there is to hear is its end.
  // An event may have been meant for another socket that had this number before.
  void onEvents(uint32_t) override {
    std::byte one;
    ssize_t got = ::recv(stream_.fd(), &one, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    owner_->breakOff(got < 0 ? stream_.broken(errno, "one of its lanes broke")
                             : Status(Code::kPeerLost, "its connection closed"));
  }

  // Writes pieces until there are none, until `enough`, or until others must have the memory for themselves. Returns at
  // once when another thread writes. The caller keeps this lane.
  template <class Enough>
  void write(Enough enough) {
    MutexLock lock(owner_->mutex_);
    if (!beginWriting()) return;
    Status broken;
    while (broken.ok() && owner_->closed_.ok() && owner_->holdOff_ == 0 && !enough() &&
           (piece_ || (piece_ = owner_->nextPiece()))) {
      lock.unlock();
      if (piece_->front.empty()) makeFront();
      ssize_t written = writeOnce();
      int error = errno;
      lock.lock();
      if (written >= 0) {
        wrote(static_cast<size_t>(written));
      } else if (error != EINTR && error != EAGAIN) {
        broken = stream_.broken(error, "one of its lanes broke");
      }
    }
    endWriting();
    owner_->progress_.notifyAll();
    lock.unlock();
    if (!broken.ok()) owner_->breakOff(broken);
  }

  int fd() const { return stream_.fd(); }
  std::optional<Piece>& piece() { return piece_; }

  // The writer of a lane, and all its changes, with the owner's lock held. A sender that waits anyway may begin before
  // the thread that was asked for; that thread then finds a writer and leaves, or finds none and writes itself. No lane
  // with bytes left stays without a writer: a writer looks for the next piece before it ends, a sender asks threads to
  // write after it has written, and a thread that the system refused is asked for again.
  enum class Writer { kNone, kAskedFor, kWrites };
  bool idle() const { return writer_ == Writer::kNone; }
  bool isWritten() const { return writer_ == Writer::kWrites; }
  bool askForThread() {
    if (!idle()) return false;
    writer_ = Writer::kAskedFor;
    return true;
  }
  void threadWasRefused() {
    if (writer_ == Writer::kAskedFor) writer_ = Writer::kNone;
  }

 private:
  bool beginWriting() {
    if (isWritten()) return false;
    writer_ = Writer::kWrites;
    return true;
  }
  void endWriting() { writer_ = Writer::kNone; }

  // Right before its bytes are sent, so that the socket finds them in the cache.
  void makeFront() {
    if (!stream_.guardsItsBytes()) piece_->where.crc = wire::crc32c(piece_->bytes);
    piece_->front = wire::pieceFront(piece_->where);
  }

  // With nothing left of the piece: what TLS still keeps of it.
  ssize_t writeOnce() {
    std::array<iovec, 2> parts;
    size_t front = std::min(piece_->written, piece_->front.size()), bytes = piece_->written - front;
    parts[0] = {piece_->front.data() + front, piece_->front.size() - front};
    parts[1] = {const_cast<std::byte*>(piece_->bytes.data()) + bytes, piece_->bytes.size() - bytes};
    return stream_.write(parts, 0);
  }

  // A piece is whole when the socket has all of it: until then it stays this lane's, which somebody goes on with.
  void wrote(size_t bytes) TREADLE_REQUIRES(owner_->mutex_) {
    size_t before = std::max(piece_->written, piece_->front.size());
    piece_->written += bytes;
    size_t payload = std::max(piece_->written, piece_->front.size()) - before;
    if (piece_->written < piece_->front.size() + piece_->bytes.size()) return count(payload);
    if (!stream_.flushed()) return void(piece_->uncounted += payload);
    count(payload + piece_->uncounted);
    piece_.reset();
    owner_->progress_.notifyAll();
  }

  void count(size_t payload) TREADLE_REQUIRES(owner_->mutex_) {
    Transfer& transfer = *piece_->transfer;
    transfer.unwritten -= payload;
    owner_->unwrittenBytes_ -= payload;
    if (transfer.unwritten == 0 && transfer.captured) owner_->capturedBytes_ -= transfer.buffer.sizeBytes;
  }

  const std::shared_ptr<LaneSender> owner_;  // a cycle until the sender is closed
  io::Stream stream_;
  // Guarded by the owner's mutex; the piece is its writer's alone while it writes.
  std::optional<Piece> piece_;
  Writer writer_ = Writer::kNone;
};

void LaneSender::setBreakHook(UniqueFunction<void(const Status&)> hook) {
  MutexLock lock(mutex_);
  onBroken_ = std::move(hook);
}

Status LaneSender::addLane(io::Stream stream) {
  TREADLE_RETURN_IF_ERROR(io::makeBlocking(stream.fd(), kWriteLook));
  auto lane = std::make_shared<Lane>(shared_from_this(), std::move(stream));
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
  auto hasRoom = [&]() TREADLE_REQUIRES(mutex_) {
    return mode == SendMode::kUrgent || capturedBytes_ + bytes <= limitBytes_;
  };
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

Result<LaneSender::Transfers> LaneSender::prepare(std::span<const Buffer> buffers, SendMode mode, TimePoint deadline,
                                                  int priority) {
  size_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.sizeBytes;
  const bool large = mode != SendMode::kUrgent && bytes > limitBytes_;
  const bool stay = !io::Serving::here() && (mode == SendMode::kStay || large);
  TREADLE_RETURN_IF_ERROR(takeRoom(stay ? 0 : bytes, mode, deadline));
  Transfers transfers;
  try {
    for (const Buffer& buffer : buffers) {
      bool copied = !stay && buffer.borrowed();
      Buffer held = copied ? memory::copyTo(pool_, buffer.bytes()) : buffer;
      transfers.push_back(
          std::make_shared<Transfer>(Transfer{0, std::move(held), priority, !stay, 0, buffer.sizeBytes}));
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
    for (const auto& transfer : transfers) {
      wait(transfer);
      unwrittenBytes_ += transfer->buffer.sizeBytes;
    }
  }
  const bool stay = !transfers.empty() && !transfers.front()->captured;
  if (stay) stayUntilWritten(transfers, deadline);
  letThreadsWrite(0);
}

// Sends threads to the idle lanes, as many as there is something for, except the first `but` of them.
void LaneSender::letThreadsWrite(size_t but) {
  std::vector<std::shared_ptr<Lane>> lanes = idleLanes();
  for (size_t i = but; i < lanes.size(); ++i) {
    UniqueFunction<void()> task = [lane = lanes[i]] { lane->write([] { return false; }); };
    MutexLock lock(mutex_);
    if (!lanes[i]->askForThread()) continue;
    lock.unlock();
    if (threads_.run(task)) continue;
    lock.lock();
    lanes[i]->threadWasRefused();
    return askForThreadsLater();
  }
}

// Asks also while another sender writes: that sender stops when its own bytes are written, and may get no thread for
// the rest.
void LaneSender::askForThreadsLater() {
  if (willAsk_ || !closed_.ok()) return;
  reactor_.at(deadlineAfter(kThreadRetry), [self = weak_from_this()] {
    auto sender = self.lock();
    if (!sender) return;
    {
      MutexLock lock(sender->mutex_);
      sender->willAsk_ = false;
    }
    sender->letThreadsWrite(0);
  });
  willAsk_ = true;  // the timer's callback waits for the lock
}

std::vector<std::shared_ptr<LaneSender::Lane>> LaneSender::idleLanes() const {
  std::vector<std::shared_ptr<Lane>> idle;
  MutexLock lock(mutex_);
  size_t wanted = waiting_.empty() ? 0 : unwrittenBytes_ < kSharedBytes ? 1 : lanes_.size();
  for (const auto& lane : lanes_)
    if (lane->idle() && (lane->piece() || idle.size() < wanted)) idle.push_back(lane);
  return idle;
}

// An idle lane for which something is left; null when there is none.
std::shared_ptr<LaneSender::Lane> LaneSender::laneToWrite() const {
  auto found = std::find_if(lanes_.begin(), lanes_.end(), [this](const auto& lane) TREADLE_REQUIRES(mutex_) {
    return lane->idle() && (lane->piece() || !waiting_.empty());
  });
  return found == lanes_.end() ? nullptr : *found;
}

// The caller writes to one lane itself, whenever one is idle. Its memory is its own again when this returns: what is
// not written by then goes on from a copy.
void LaneSender::stayUntilWritten(const Transfers& transfers, TimePoint deadline) {
  auto written = [&] {
    return std::all_of(transfers.begin(), transfers.end(), [](const auto& one) { return one->unwritten == 0; });
  };
  // If too many wait already this one waits all the same: its bytes are on their way.
  io::Executor::Blocking blocking;
  letThreadsWrite(1);
  MutexLock lock(mutex_);
  while (closed_.ok() && !written()) {
    if (auto lane = holdOff_ == 0 ? laneToWrite() : nullptr; lane && Clock::now() < deadline) {
      lock.unlock();
      lane->write([&] { return written() || Clock::now() >= deadline; });
      lock.lock();
    } else if (!progress_.waitUntil(lock, deadline)) {
      break;
    }
  }
  if (closed_.ok() && !written()) {
    lock.unlock();
    goOnFromCopies(transfers);
    lock.lock();
  }
  while (!closed_.ok() && isBeingWritten(transfers)) progress_.wait(lock);  // `close` has woken who writes
}

void LaneSender::goOnFromCopies(const Transfers& transfers) {
  std::vector<Buffer> copies;
  try {
    for (const auto& transfer : transfers)
      copies.push_back(transfer->buffer.borrowed() ? memory::copyTo(pool_, transfer->buffer.bytes())
                                                   : transfer->buffer);
  } catch (const std::bad_alloc&) {
    const Status why(Code::kPeerLost, "no memory to go on with a tensor that has begun");
    breakOff(why);
    return close(why);
  }
  MutexLock lock(mutex_);
  ++holdOff_;
  while (closed_.ok() && isBeingWritten(transfers)) progress_.wait(lock);
  --holdOff_;
  if (!closed_.ok()) return;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const std::byte* before = transfers[i]->buffer.data;
    for (const auto& lane : lanes_)
      if (auto& piece = lane->piece(); piece && piece->transfer == transfers[i])
        piece->bytes =
            copies[i].bytes().subspan(static_cast<size_t>(piece->bytes.data() - before), piece->bytes.size());
    transfers[i]->buffer = std::move(copies[i]);
    // From here on it waits like any that was captured, and counts as one.
    if (transfers[i]->unwritten == 0) continue;
    transfers[i]->captured = true;
    capturedBytes_ += transfers[i]->buffer.sizeBytes;
  }
}

bool LaneSender::isBeingWritten(const Transfers& transfers) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) {
    return lane->isWritten() && lane->piece() &&
           std::find(transfers.begin(), transfers.end(), lane->piece()->transfer) != transfers.end();
  });
}

void LaneSender::drain(TimePoint deadline) {
  MutexLock lock(mutex_);
  while (closed_.ok() && unwrittenBytes_ > 0 && progress_.waitUntil(lock, deadline)) {}
}

// Behind those of its priority.
void LaneSender::wait(std::shared_ptr<Transfer> transfer) {
  auto lower = [](const auto& one, const auto& other) { return one->priority > other->priority; };
  auto at = std::upper_bound(waiting_.begin(), waiting_.end(), transfer, lower);
  waiting_.insert(at, std::move(transfer));
}

// The transfers of the highest priority take turns, a piece each.
std::optional<LaneSender::Piece> LaneSender::nextPiece() {
  if (waiting_.empty()) return std::nullopt;
  std::shared_ptr<Transfer> transfer = std::move(waiting_.front());
  waiting_.pop_front();
  Piece piece;
  piece.bytes = transfer->buffer.bytes().subspan(transfer->begun);
  size_t share = std::clamp(transfer->buffer.sizeBytes / kPieces, kLeastPiece, kMostPiece);
  piece.bytes = piece.bytes.first(std::min(share, piece.bytes.size()));
  piece.where = {transfer->number, transfer->begun, transfer->buffer.sizeBytes, piece.bytes.size(), 0};
  transfer->begun += piece.bytes.size();
  piece.transfer = transfer;
  if (transfer->begun < transfer->buffer.sizeBytes) wait(std::move(transfer));
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
  for (const auto& lane : lanes) {
    reactor_.remove(lane->fd());
    (void)::shutdown(lane->fd(), SHUT_RDWR);  // wakes who writes
  }
  MutexLock lock(mutex_);
  // A sender that still waits for a lane to let go of its memory looks for it here: the lanes go when they are idle.
  while (std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->isWritten(); }))
    progress_.wait(lock);
  lanes_.clear();
}

}  // namespace treadle::link
