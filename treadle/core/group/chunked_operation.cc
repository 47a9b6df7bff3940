// Budget per chunk of large data: one encoded message of 26 bytes and one system call to send it, every fourth time
// another pair for the acknowledgement; no copy but the kernel's, unless the socket does not take it all at once. Per
// operation the plan and its progress: about 500 bytes and four allocations a peer. A dense operation's plan is made
// before the group's lock is taken.

#include "treadle/core/group/chunked_operation.h"

namespace treadle::group {
namespace {

uint64_t chunkElements(const Plan& plan, const Description& description, size_t elementBytes) {
  return plan.withStarts ? UINT64_MAX : description.chunkBytes / elementBytes;
}

}  // namespace

ChunkedOperation::ChunkedOperation(Setup&& setup, Plan plan, size_t elementBytes)
    : Operation(std::move(setup)),
      elementBytes_(elementBytes),
      plan_(std::move(plan)),
      progress_(plan_, chunkElements(plan_, description(), elementBytes)) {}

// It may come before the operation has begun.
void ChunkedOperation::onPermit() {
  permitted_ = true;
  advance();
}

void ChunkedOperation::onChunk(int member, uint64_t position, Buffer data) {
  if (!begun()) return violated(member, "data of an operation that this worker has not begun");
  const std::optional<size_t> channel = plan_.channelTo(member);
  const std::optional<Chunk> chunk = channel ? progress_.arrive(*channel, position) : std::nullopt;
  if (!chunk) return violated(member, "a chunk where none was due");
  if (data.sizeBytes != chunk->count() * elementBytes_) return violated(member, "a chunk of the wrong size");
  onArrived(*channel, *chunk, std::move(data));
}

void ChunkedOperation::onAck(int member, uint64_t positions) {
  const std::optional<size_t> channel = plan_.channelTo(member);
  if (!channel || !progress_.acknowledged(*channel, positions))
    return violated(member, "an acknowledgement of what was not sent");
  advance();
}

void ChunkedOperation::addSend(size_t channel, const Place& from) {
  plan_.channels[channel].sends.push_back({from, {}});
  progress_.grow(channel);
}

void ChunkedOperation::addReceive(size_t channel, const Place& to) {
  plan_.channels[channel].receives.push_back({to, Action::kReplace, {}, {}});
  progress_.grow(channel);
}

void ChunkedOperation::sendChunks() {
  for (size_t channel = 0; channel < plan_.channels.size(); ++channel) {
    const Channel& to = plan_.channels[channel];
    while (permitted_ && mayMove() && agreement().sendsDataTo(to.peer) && !ended()) {
      const std::optional<Chunk> next = progress_.send(channel);
      if (!next) break;
      Message chunk = message(MessageKind::kChunk);
      chunk.position = progress_.sent(channel) - 1;
      const Bytes bytes = chunkFor(to.peer, to.sends[next->transfer].from, *next);
      chunk.data = Buffer::borrow(bytes.data(), bytes.size());
      send(to.peer, std::move(chunk));
    }
  }
}

void ChunkedOperation::acknowledgeChunks() {
  for (size_t channel = 0; channel < plan_.channels.size() && !ended(); ++channel)
    if (const std::optional<uint64_t> taken = progress_.acknowledge(channel)) {
      Message ack = message(MessageKind::kAck);
      ack.position = *taken;
      send(plan_.channels[channel].peer, std::move(ack));
    }
}

// The channel that is furthest behind, first among those from which chunks are missing.
std::string ChunkedOperation::waitsFor() const {
  if (large() && !mayMove()) return "operations that go first have not ended";
  std::optional<size_t> from, to;
  for (size_t channel = 0; channel < plan_.channels.size(); ++channel) {
    if (progress_.waitsForChunk(channel) && (!from || progress_.arrived(channel) < progress_.arrived(*from)))
      from = channel;
    if (progress_.waitsForAck(channel) && (!to || progress_.acknowledgedBy(channel) < progress_.acknowledgedBy(*to)))
      to = channel;
  }
  if (from)
    return std::to_string(progress_.arrived(*from)) + " of " + std::to_string(progress_.receives(*from)) +
           " chunks have come from " + link().nameOf(plan_.channels[*from].peer);
  if (!to) return waitsForOther();
  return link().nameOf(plan_.channels[*to].peer) + " has taken " + std::to_string(progress_.acknowledgedBy(*to)) +
         " of " + std::to_string(progress_.sends(*to)) + " chunks";
}

}  // namespace treadle::group
