// Budget per chunk of large data: one encoded message of 26 bytes and one system call to send it, every fourth time
// another pair for the acknowledgement; no copy but the kernel's, unless the socket does not take it all at once. What
// is combined is kept where it arrived until the chunks of all members are there. Per operation the plan and its
// progress: about 500 bytes and four allocations a peer, made before the group's lock is taken.

#include "treadle/core/group/plan_operation.h"

#include <algorithm>
#include <cstring>

namespace treadle::group {
namespace {

uint64_t chunkElements(const Plan& plan, const Description& description) {
  return plan.withStarts ? UINT64_MAX : description.chunkBytes / sizeOf(description.dataType);
}

template <class Transfers>
uint64_t elementsOf(const Transfers& transfers) {
  uint64_t elements = 0;
  for (const auto& transfer : transfers) elements += transfer.range().count();
  return elements;
}

// The bytes of a chunk of the elements at `place`.
template <class Span>
Span cut(Span area, const Place& place, const Chunk& chunk, size_t elementBytes) {
  return area.subspan((place.range.begin + chunk.begin) * elementBytes, chunk.count() * elementBytes);
}

}  // namespace

PlanOperation::PlanOperation(Setup setup, Plan plan)
    : Operation(std::move(setup)),
      plan_(std::move(plan)),
      progress_(plan_, chunkElements(plan_, description())),
      arrived_(plan_.channels.size()) {}

void PlanOperation::onBegin() {
  if (plan_.scratch > 0) scratch_ = std::make_unique_for_overwrite<std::byte[]>(plan_.scratch * elementBytes());
  // From each to each starts hold what arriving data may replace; along the tree they hold what has arrived.
  if (agreement().kind() == Agreement::Kind::kAllToAll) sendStarts();
  advance();
}

// All that it depends on has come, with the starts that had to come before.
Buffer PlanOperation::dataWithStart(int member) {
  const std::optional<size_t> channel = plan_.channelTo(member);
  const std::optional<Chunk> chunk = plan_.withStarts && channel ? progress_.send(*channel) : std::nullopt;
  if (!chunk) return {};
  const Bytes bytes = read(plan_.channels[*channel].sends[chunk->transfer].from, *chunk);
  return Buffer::borrow(bytes.data(), bytes.size());
}

// It may have come before the operation has begun.
void PlanOperation::onPermit() {
  permitted_ = true;
  advance();
}

void PlanOperation::onStarted(int member, Buffer data) {
  if (large()) {
    if (data.sizeBytes != 0) return violated(member, "data too early");
    return advance();
  }
  const std::optional<size_t> channel = plan_.channelTo(member);
  const std::optional<Chunk> chunk = channel ? progress_.arrive(*channel, 0) : std::nullopt;
  if (data.sizeBytes != (chunk ? chunk->count() * elementBytes() : 0))
    return violated(member, "data of another size than it said");
  if (chunk) arrived_[*channel].push_back(std::move(data));
  advance();
}

void PlanOperation::onFinished() {
  arrived_.clear();
  scratch_.reset();
}

void PlanOperation::onChunk(int member, uint64_t position, Buffer data) {
  if (!begun()) return violated(member, "data of an operation that this worker has not begun");
  const std::optional<size_t> channel = plan_.channelTo(member);
  const std::optional<Chunk> chunk = channel ? progress_.arrive(*channel, position) : std::nullopt;
  if (!chunk) return violated(member, "a chunk where none was due");
  if (data.sizeBytes != chunk->count() * elementBytes()) return violated(member, "a chunk of the wrong size");
  arrived_[*channel].push_back(std::move(data));
  advance();
}

void PlanOperation::onAck(int member, uint64_t positions) {
  const std::optional<size_t> channel = plan_.channelTo(member);
  if (!channel || !progress_.acknowledged(*channel, positions))
    return violated(member, "an acknowledgement of what was not sent");
  advance();
}

// Nothing is taken before the operation has begun: what arrives may replace what the start gives away.
void PlanOperation::advance() {
  if (ended() || !begun()) return;
  if (!copied_ && (permitted_ || !large())) makeCopies();
  takeAll();
  if (ended()) return;
  sendStarts();
  sendAll();
  if (agreement().agreed() && copied_ && progress_.done()) finish({});
}

void PlanOperation::makeCopies() {
  copied_ = true;
  for (const Copy& copy : plan_.copies) {
    const Chunk all{0, 0, 0, copy.from.range.count()};
    const Bytes from = read(copy.from, all);
    if (!from.empty()) std::memmove(write(copy.to, all).data(), from.data(), from.size());
  }
}

// Each chunk taken may be what another one waits for.
void PlanOperation::takeAll() {
  for (bool more = true; more;) {
    more = false;
    for (size_t channel = 0; channel < plan_.channels.size(); ++channel)
      while (const std::optional<Chunk> chunk = progress_.take(channel)) {
        take(channel, *chunk);
        more = true;
      }
  }
  for (size_t channel = 0; channel < plan_.channels.size() && !ended(); ++channel)
    if (const std::optional<uint64_t> taken = progress_.acknowledge(channel)) {
      Message ack = message(MessageKind::kAck);
      ack.position = *taken;
      send(plan_.channels[channel].peer, std::move(ack));
    }
}

void PlanOperation::take(size_t channel, const Chunk& chunk) {
  const Receive& receive = plan_.channels[channel].receives[chunk.transfer];
  if (receive.action == Action::kCombine) return combine(receive, chunk);
  const Buffer data = popArrived(channel);
  const MutableBytes to = write(receive.to, chunk);
  if (receive.action == Action::kReplace) {
    std::memcpy(to.data(), data.data, to.size());
    return;
  }
  const auto [type, op] = std::pair(description().dataType, description().reduceOp);
  const Bytes operand = read(receive.operand, chunk);
  if (operand.data() != to.data()) std::memcpy(to.data(), operand.data(), to.size());
  reduceInto(type, op, to.data(), data.data, chunk.count());
  if (receive.action == Action::kReduceLast && op == ReduceOp::kAverage)
    divide(type, to.data(), chunk.count(), link().size());
}

void PlanOperation::combine(const Receive& receive, const Chunk& chunk) {
  std::vector<Buffer> data(static_cast<size_t>(link().size()));
  const Bytes own = read(receive.operand, chunk);
  data[static_cast<size_t>(link().self())] = Buffer::borrow(own.data(), own.size());
  for (size_t channel = 0; channel < plan_.channels.size(); ++channel)
    if (progress_.combines(channel)) data[static_cast<size_t>(plan_.channels[channel].peer)] = popArrived(channel);
  std::vector<const std::byte*> values;
  for (const Buffer& member : data) values.push_back(member.data);
  reduceMembers(description().dataType, description().reduceOp, values, chunk.count(), write(receive.to, chunk).data());
}

void PlanOperation::sendAll() {
  for (size_t channel = 0; channel < plan_.channels.size(); ++channel) {
    const Channel& to = plan_.channels[channel];
    while (permitted_ && agreement().sendsDataTo(to.peer) && !ended()) {
      const std::optional<Chunk> next = progress_.send(channel);
      if (!next) break;
      Message chunk = message(MessageKind::kChunk);
      chunk.position = progress_.sent(channel) - 1;
      const Bytes bytes = read(to.sends[next->transfer].from, *next);
      chunk.data = Buffer::borrow(bytes.data(), bytes.size());
      send(to.peer, std::move(chunk));
    }
  }
}

void PlanOperation::send(int member, Message message) {
  if (Status sent = link().send(member, std::move(message)); !sent.ok()) finish(sent.withContext(text()));
}

Buffer PlanOperation::popArrived(size_t channel) {
  Buffer data = std::move(arrived_[channel].front());
  arrived_[channel].erase(arrived_[channel].begin());
  return data;
}

Bytes PlanOperation::read(const Place& from, const Chunk& chunk) const {
  if (from.area == Area::kInput) return cut(input(), from, chunk, elementBytes());
  return write(from, chunk);
}

MutableBytes PlanOperation::write(const Place& to, const Chunk& chunk) const {
  return cut(to.area == Area::kScratch ? scratch() : output(), to, chunk, elementBytes());
}

uint64_t PlanOperation::elementsTo(int member) const {
  const std::optional<size_t> channel = plan_.channelTo(member);
  return channel ? elementsOf(plan_.channels[*channel].sends) : 0;
}

uint64_t PlanOperation::elementsFrom(int member) const {
  const std::optional<size_t> channel = plan_.channelTo(member);
  return channel ? elementsOf(plan_.channels[*channel].receives) : 0;
}

// The channel that is furthest behind, first among those from which chunks are missing.
std::string PlanOperation::waitsFor() const {
  if (large() && !permitted_) return "operations before it have not ended";
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
  if (!to) return "it is about to end";
  return link().nameOf(plan_.channels[*to].peer) + " has taken " + std::to_string(progress_.acknowledgedBy(*to)) +
         " of " + std::to_string(progress_.sends(*to)) + " chunks";
}

}  // namespace treadle::group
