// The connection's lanes: dialed by who has large buffers to send, when it has the first; read by the reactor's thread
// of who receives them.

#include <poll.h>
#include <sys/socket.h>

#include "treadle/core/base/log.h"
#include "treadle/core/io/executor.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/link/connection.h"

namespace treadle::link {
namespace {

// Two keep both ends busy; more share the same two cores (docs/rooms/link.md has the figures).
constexpr int kLanes = 2;
constexpr size_t kMaxLanes = 8;  // that a peer may dial
// On one host the bytes in flight should stay in the cache; elsewhere the system's own sizes follow the network.
constexpr int kLocalSocketBytes = 256 << 10;
// Buffers that do not fill a piece are not worth a lane.
constexpr size_t kLaneBytes = 256U << 10;
// What is missing of a piece, for a thread to wait for the rest in the kernel rather than the reactor to come back; and
// how long that thread waits for the next piece before it leaves the lane to the reactor.
constexpr size_t kWorthAThread = 128U << 10;
constexpr Duration kNextPiece = std::chrono::milliseconds(2);
// How long a read that gets nothing stays in the kernel before it looks whether it should.
constexpr Duration kReadLook = std::chrono::milliseconds(100);
// How long a connection that got no lanes goes without, before it asks for them again.
constexpr Duration kDialAgain = std::chrono::seconds(10);

}  // namespace

// One incoming lane. The connection holds it; it must not hold the connection, which the reactor would keep with it.
class Connection::Lane final : public io::EventHandler, public std::enable_shared_from_this<Lane> {
 public:
  Lane(std::shared_ptr<Connection> owner, io::Stream stream)
      : owner_(owner),
        stream_(std::move(stream)),
        reader_(owner->laneReceiver_, owner->options_.limits, !stream_.guardsItsBytes()) {}

  void onEvents(uint32_t) override {
    std::shared_ptr<Connection> owner = owner_.lock();
    if (owner && read(*owner, false) && reader_.missingBytes() >= kWorthAThread) handOver(*owner);
  }

  int fd() const { return stream_.fd(); }

 private:
  // False when nothing more is to be read.
  bool read(Connection& owner, bool wait) {
    ReadScope scope(owner);
    if (owner.closed_.load()) return false;
    Result<LaneReader::Progress> got = reader_.readFrom(stream_, wait);
    // The peer closes its lanes and its connection together: what it said last on that one is heard first.
    if (!got.ok() && got.status().code() == Code::kPeerLost)
      return began_ ? owner.laneEnded(*this, got.status()) : owner.dropLane(*this), false;
    if (!got.ok()) return owner.close(got.status()), false;
    if (got->bytes > 0) began_ = true, owner.heard();
    if (got->whole) owner.wakeReader();  // a caller may sleep on the connection itself while its answer came here
    return true;
  }

  // To a thread that waits in the kernel, which costs far less than coming back for each part.
  void handOver(Connection& owner) {
    owner.reactor_.remove(stream_.fd());
    UniqueFunction<void()> task = [self = shared_from_this()] { self->readOn(); };
    if (!owner.options_.threads->run(task)) owner.watchLane(shared_from_this());
  }

  void readOn() {
    std::shared_ptr<Connection> owner = owner_.lock();
    while (owner && read(*owner, true)) {
      if (reader_.missingBytes() > 0) continue;
      if (!io::waitFor(stream_.fd(), POLLIN, deadlineAfter(kNextPiece))) return owner->watchLane(shared_from_this());
    }
  }

  const std::weak_ptr<Connection> owner_;
  io::Stream stream_;
  LaneReader reader_;   // of the reactor's thread, or of the one that it was handed over to
  bool began_ = false;  // something came; likewise
};

std::shared_ptr<LaneSender> Connection::makeLaneSender() {
  if (options_.threads == nullptr) return nullptr;
  return std::make_shared<LaneSender>(reactor_, *options_.threads, options_.pool, options_.maxQueuedBytes);
}

Status Connection::addLane(io::Stream stream) {
  if (options_.threads == nullptr) return failedPrecondition("this worker has no threads for lanes");
  probe(stream.fd());
  TREADLE_RETURN_IF_ERROR(io::makeBlocking(stream.fd(), kReadLook));
  if (io::isLocal(stream.fd())) io::setBufferSizes(stream.fd(), kLocalSocketBytes);
  auto lane = std::make_shared<Lane>(shared_from_this(), std::move(stream));
  MutexLock lock(laneMutex_);
  if (closed_.load()) return cancelled("the connection is closed");
  if (lanes_.size() == kMaxLanes)
    return resourceExhausted("a connection has at most " + std::to_string(kMaxLanes) + " lanes");
  TREADLE_RETURN_IF_ERROR(reactor_.add(lane->fd(), EPOLLIN, lane));
  lanes_.push_back(std::move(lane));
  return {};
}

void Connection::watchLane(const std::shared_ptr<Lane>& lane) {
  MutexLock lock(laneMutex_);
  if (closed_.load()) return;
  if (Status added = reactor_.add(lane->fd(), EPOLLIN, lane); !added.ok()) breakOff(added);
}

// Its dialer had no time left to hear that it was welcome. If it is in use all the same, its socket tells the dialer.
void Connection::dropLane(const Lane& lane) {
  MutexLock lock(laneMutex_);
  if (closed_.load()) return;
  reactor_.remove(lane.fd());
  std::erase_if(lanes_, [&lane](const auto& one) { return one.get() == &lane; });
}

void Connection::laneEnded(const Lane& lane, const Status& why) {
  {
    MutexLock lock(laneMutex_);
    if (!closed_.load()) reactor_.remove(lane.fd());
  }
  breakOff(why);
}

// Whether these bytes go on lanes; dials them for the first that should. DeadlineExceeded when that took too long.
Result<bool> Connection::useLanes(size_t bytes, SendMode mode, TimePoint deadline) {
  if (bytes < kLaneBytes || !laneSender_) return false;
  if (laneSender_->hasLanes()) return true;
  if (mode == SendMode::kUrgent || closed_.load()) return false;
  return dialLanes(deadline);
}

Status Connection::lanes() const {
  if (!laneSender_) return failedPrecondition("this worker has no threads for lanes");
  if (laneSender_->hasLanes()) return {};
  MutexLock lock(laneMutex_);
  if (!noLanes_.ok()) return noLanes_;
  return failedPrecondition("none were needed so far: nothing of " + std::to_string(kLaneBytes >> 10) +
                            " KiB and more was sent but through shared memory");
}

// Who comes while another thread dials waits for it: beside small messages large bytes would hold them up.
Result<bool> Connection::dialLanes(TimePoint deadline) {
  {
    MutexLock lock(laneMutex_);
    if (!dialing_ && Clock::now() < nextDial_) return false;
  }
  io::Executor::Blocking blocking;
  if (!blocking.status().ok()) return false;
  {
    MutexLock lock(laneMutex_);
    while (dialing_ && !closed_.load())
      if (!dialed_.waitUntil(lock, deadline)) return deadlineExceeded("the lanes to the peer were not there in time");
    if (laneSender_->hasLanes()) return true;
    if (closed_.load() || Clock::now() < nextDial_) return false;
    dialing_ = true;
  }
  Status dialed;
  for (int i = 0; i < kLanes && dialed.ok(); ++i) dialed = dialLane(deadline);
  MutexLock lock(laneMutex_);
  dialing_ = false;
  dialed_.notifyAll();
  noLanes_ = std::move(dialed);
  if (!noLanes_.ok()) nextDial_ = deadlineAfter(kDialAgain);
  return laneSender_->hasLanes();
}

// Throws nothing: others wait for its end.
Status Connection::dialLane(TimePoint deadline) try {
  Result<io::Stream> stream = sink_.dialLane(*this, deadline);
  if (!stream.ok()) return std::move(stream).status();
  probe(stream->fd());
  if (io::isLocal(stream->fd())) io::setBufferSizes(stream->fd(), kLocalSocketBytes);
  return laneSender_->addLane(std::move(*stream));
} catch (const std::exception& error) {
  return internalError(error.what());
}

void Connection::closeLanes(const Status& why) {
  if (laneSender_) laneSender_->close(why);
  {
    MutexLock lock(laneMutex_);
    for (const auto& lane : lanes_) {
      reactor_.remove(lane->fd());
      (void)::shutdown(lane->fd(), SHUT_RDWR);  // wakes who reads
    }
    lanes_.clear();
    dialed_.notifyAll();
  }
  laneReceiver_.clear(why);
}

}  // namespace treadle::link
