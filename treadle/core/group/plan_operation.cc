// Budget: that of chunked_operation.cc. What is combined is kept where it arrived until the chunks of all members are
// there.

#include "treadle/core/group/plan_operation.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace treadle::group {
namespace {

// The bytes of a chunk of the elements at `place`.
template <class Span>
Span cut(Span area, const Place& place, const Chunk& chunk, size_t elementBytes) {
  return area.subspan((place.range.begin + chunk.begin) * elementBytes, chunk.count() * elementBytes);
}

}  // namespace

PlanOperation::PlanOperation(Setup setup, Plan plan, std::shared_ptr<Staging> staging)
    : ChunkedOperation(std::move(setup), std::move(plan), sizeOf(setup.description.movedType())),
      staging_(std::move(staging)),
      arrived_(this->plan().channels.size()) {}

void PlanOperation::onBegin() {
  if (!large() && !fillStaging()) return;
  // From each to each starts hold what arriving data may replace; along the tree they hold what has arrived.
  if (agreement().kind() == Agreement::Kind::kAllToAll) sendStarts();
  advance();
}

// All that it depends on has come, with the starts that had to come before.
Buffer PlanOperation::dataWithStart(int member) {
  const std::optional<size_t> channel = plan().channelTo(member);
  const std::optional<Chunk> chunk = plan().withStarts && channel ? progress().send(*channel) : std::nullopt;
  if (!chunk) return {};
  const Bytes bytes = read(plan().channels[*channel].sends[chunk->transfer].from, *chunk);
  return Buffer::borrow(bytes.data(), bytes.size());
}

void PlanOperation::onStarted(int member, uint64_t elements, Buffer data) {
  if (const uint64_t expected = elementsFrom(member); elements != expected)
    return finish(mismatch(member, elements, expected));
  if (large()) {
    if (data.sizeBytes != 0) return violated(member, "data too early");
    return advance();
  }
  const std::optional<size_t> channel = plan().channelTo(member);
  const std::optional<Chunk> chunk = channel ? progress().arrive(*channel, 0) : std::nullopt;
  if (data.sizeBytes != (chunk ? chunk->count() * elementBytes() : 0))
    return violated(member, "data of another size than it said");
  if (chunk) arrived_[*channel].push_back(std::move(data));
  advance();
}

void PlanOperation::onFinished() {
  arrived_.clear();
  scratch_.reset();
  staging_.reset();
}

void PlanOperation::onArrived(size_t channel, const Chunk&, Buffer data) {
  arrived_[channel].push_back(std::move(data));
  advance();
}

// Nothing is taken before the operation has begun: what arrives may replace what the start gives away. Nor before the
// memory of the operation is there, which a large one has from when it may move its data for the first time.
void PlanOperation::advance() {
  if (ended() || !begun()) return;
  if (!copied_ && (permitted() || !large())) makeCopies();
  if (ended()) return;
  if (!copied_ && (staging_ || plan().scratch > 0)) return sendStarts();  // which carry no data, as it is large
  takeAll();
  acknowledgeChunks();
  if (ended()) return;
  sendStarts();
  sendChunks();
  if (!agreement().agreed() || !copied_ || !progress().done()) return;
  if (staging_) staging_->putBack();
  finish({});
}

bool PlanOperation::fillStaging() {
  if (!staging_) return true;
  Result<Staged> filled = staging_->fill();
  if (!filled.ok()) return finish(std::move(filled).status()), false;
  staged_ = *filled;
  return true;
}

bool PlanOperation::makeScratch() {
  const uint64_t bytes = plan().scratch * elementBytes();
  if (bytes == 0) return true;
  try {
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  } catch (const std::bad_alloc&) {
    finish(resourceExhausted(text() + ": " + link().nameOf(link().self()) + " has no memory for " +
                             std::to_string(bytes) + " bytes of partial results"));
  }
  return scratch_ != nullptr;
}

void PlanOperation::makeCopies() {
  if (large() && !fillStaging()) return;
  if (!makeScratch()) return;
  copied_ = true;
  for (const Copy& copy : plan().copies) {
    const Chunk all{0, 0, 0, copy.from.range.count()};
    const Bytes from = read(copy.from, all);
    if (!from.empty()) std::memmove(write(copy.to, all).data(), from.data(), from.size());
  }
}

// Each chunk taken may be what another one waits for.
void PlanOperation::takeAll() {
  for (bool more = true; more;) {
    more = false;
    for (size_t channel = 0; channel < plan().channels.size(); ++channel)
      while (const std::optional<Chunk> chunk = progress().take(channel)) {
        take(channel, *chunk);
        more = true;
      }
  }
}

void PlanOperation::take(size_t channel, const Chunk& chunk) {
  const Receive& receive = plan().channels[channel].receives[chunk.transfer];
  if (receive.action == Action::kCombine) return combine(receive, chunk);
  const Buffer data = popArrived(channel);
  const MutableBytes to = write(receive.to, chunk);
  if (receive.action == Action::kReplace) {
    std::memcpy(to.data(), data.data, to.size());
    return;
  }
  const auto [type, op] = std::pair(description().movedType(), description().reduceOp);
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
  for (size_t channel = 0; channel < plan().channels.size(); ++channel)
    if (progress().combines(channel)) data[static_cast<size_t>(plan().channels[channel].peer)] = popArrived(channel);
  std::vector<const std::byte*> values;
  for (const Buffer& member : data) values.push_back(member.data);
  reduceMembers(description().dataType, description().reduceOp, values, chunk.count(), write(receive.to, chunk).data());
}

Bytes PlanOperation::chunkFor(int, const Place& from, const Chunk& chunk) const { return read(from, chunk); }

Buffer PlanOperation::popArrived(size_t channel) {
  Buffer data = std::move(arrived_[channel].front());
  arrived_[channel].erase(arrived_[channel].begin());
  return data;
}

Bytes PlanOperation::read(const Place& from, const Chunk& chunk) const {
  if (from.area == Area::kInput) return cut(source(), from, chunk, elementBytes());
  return write(from, chunk);
}

MutableBytes PlanOperation::write(const Place& to, const Chunk& chunk) const {
  return cut(to.area == Area::kScratch ? scratch() : result(), to, chunk, elementBytes());
}

uint64_t PlanOperation::elementsTo(int member) const {
  const std::optional<size_t> channel = plan().channelTo(member);
  return channel ? elementsOf(plan().channels[*channel].sends) : 0;
}

uint64_t PlanOperation::elementsFrom(int member) const {
  const std::optional<size_t> channel = plan().channelTo(member);
  return channel ? elementsOf(plan().channels[*channel].receives) : 0;
}

}  // namespace treadle::group
