// The connection's part in sharing memory with a peer on the same host: each side offers its arena on the connection
// that it dialed, so once in each direction (peer_memory.h; docs/protocol/link.md).

#include "treadle/core/link/connection.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::link {
namespace {

// How long blocks may wait for a message that takes their release along.
constexpr Duration kReleaseDelay = std::chrono::milliseconds(1);

}  // namespace

void Connection::shareMemory() {
  if (kind_ != Kind::kCalls) return;
  if (!memory_) return tellTable();
  memory_->setReleaseHook([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->releaseSoon();
  });
  const io::SharedMemory* arena = stream_.isUnix() ? memory_->arena() : nullptr;
  if (arena == nullptr) return tellTable();
  arenaOffered_.store(true);
  awaitAnswer(false);  // or nobody would read the reply
  sendControl(wire::FrameKind::kArena, {}, arena->fd());
}

Status Connection::sharing() const {
  if (!memory_) return failedPrecondition("this worker shares no memory");
  Status own = memory_->sharing();
  if (stream_.isUnix() || memory_->arena() == nullptr) return own;
  return failedPrecondition("memory is shared over UNIX sockets only, and the connection is TCP");
}

void Connection::onArena(Frame frame) {
  if (!memory_ || !stream_.isUnix()) return close(dataLoss("it shared memory where none can be shared"));
  if (arenaTaken_.exchange(true)) return close(dataLoss("it shared its memory twice"));
  Status mapped = frame.descriptor.valid() ? memory_->setPeerArena(std::move(frame.descriptor))
                                           : resourceExhausted("its descriptor did not arrive");
  if (!mapped.ok()) sink_.onRefusal(*this, mapped.withContext("this worker does not take the memory that it shares"));
  sendReason(wire::FrameKind::kMapped, mapped.message());
}

void Connection::onMapped(const Frame& frame) {
  if (!arenaOffered_.exchange(false)) return close(dataLoss("it answered an offer of memory that nobody made"));
  answerArrived();
  std::optional<std::string> reason = reasonOf(frame);
  if (!reason) return close(dataLoss("it answered an offer of memory unreadably"));
  if (reason->empty()) return memory_->setMapped(io::ProcessHandle::ofPeer(stream_.fd()));
  memory_->setRefused(*reason);
  sink_.onRefusal(*this, failedPrecondition("it does not take the memory of this worker: " + *reason));
  tellTable();
}

void Connection::onRelease(const Frame& frame) {
  wire::Reader reader(frame.payload);
  std::vector<uint64_t> offsets(reader.left() / sizeof(uint64_t));
  for (uint64_t& offset : offsets) offset = reader.number<uint64_t>();
  Status released =
      memory_ && reader.left() == 0 ? memory_->released(offsets) : dataLoss("it gave back memory where none is shared");
  if (!released.ok()) close(released);
}

// As a rule the next message to the peer takes the releases along; the timer is for when there is none.
void Connection::releaseSoon() {
  if (releaseTimer_.exchange(true)) return;
  reactor_.at(Clock::now() + kReleaseDelay, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (!self) return;
    self->releaseTimer_.store(false);
    std::vector<uint64_t> offsets = self->memory_->takeReleases();
    if (!offsets.empty())
      self->sendQueue_.send(releaseFrame(offsets), {}, SendMode::kUrgent, kNever).ignore();  // or the peer is lost
  });
}

std::vector<std::byte> Connection::releaseFrame(const std::vector<uint64_t>& offsets) {
  return wire::frameFront(wire::FrameKind::kRelease, 0, std::as_bytes(std::span(offsets)));
}

}  // namespace treadle::link
