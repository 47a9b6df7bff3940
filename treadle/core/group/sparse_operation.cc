// Budget: that of chunked_operation.cc, and two copies of what arrives: into its block, because the rows are checked
// and added where no peer can write, and as the block grows.

#include "treadle/core/group/sparse_operation.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "treadle/core/group/direct.h"
#include "treadle/core/io/executor.h"

namespace treadle::group {
namespace {

// A channel to each other member. From the right neighbour on, so that the members do not all send to the same one
// first.
Plan channelsOf(const MemberLink& link) {
  Plan plan;
  for (int step = 1; step < link.size(); ++step) plan.channels.emplace_back().peer = (link.self() + step) % link.size();
  plan.setWindow(directWindow(link.size()));
  return plan;
}

// Its elements are bytes.
Range allOf(const RowLayout& layout) { return {0, layout.sizeBytes()}; }

Buffer borrowed(Bytes bytes) { return Buffer::borrow(bytes.data(), bytes.size()); }

}  // namespace

SparseOperation::SparseOperation(Setup setup, SparseData data)
    : ChunkedOperation(std::move(setup), channelsOf(setup.link), 1),
      data_(std::move(data)),
      shares_(static_cast<size_t>(link().size())),
      sums_(shares_.size()),
      announced_(shares_.size()),
      missingShares_(link().size()),
      missingSums_(link().size() - 1) {}

void SparseOperation::onBegin() {
  deal();
  sendStarts();
  advance();
}

// Large rows do not travel with the start.
void SparseOperation::deal() {
  for (size_t i = 0; i < plan().channels.size(); ++i) {
    const RowLayout& layout = data_.own[static_cast<size_t>(plan().channels[i].peer)].layout;
    if (!isSmall(layout)) addSend(i, {Area::kInput, allOf(layout)});
  }
  const auto self = static_cast<size_t>(link().self());
  shares_[self] = data_.own[self];
  --missingShares_;
  dealt_ = true;
}

uint64_t SparseOperation::rowsFor(int member) const { return data_.own[static_cast<size_t>(member)].layout.count; }

Buffer SparseOperation::smallRowsFor(int member) const {
  const RowBlock& block = data_.own[static_cast<size_t>(member)];
  return isSmall(block.layout) ? borrowed(block.bytes()) : Buffer();
}

void SparseOperation::expectShare(int member, uint64_t rows, Buffer data) {
  expect(Area::kScratch, member, data_.type.sumLayout(rangeOf(link().self()), rows), std::move(data));
}

// The sender has the rows of all members, so this member has begun.
void SparseOperation::onResult(int member, uint64_t rows, Buffer data) {
  if (!dealt_ || announced_[static_cast<size_t>(member)]) return violated(member, "a result where none was due");
  announced_[static_cast<size_t>(member)] = true;
  expect(Area::kOutput, member, data_.type.layout(rangeOf(member), rows), std::move(data));
}

RowBlock& SparseOperation::incoming(Area area, int member) {
  return (area == Area::kOutput ? sums_ : shares_)[static_cast<size_t>(member)];
}

// Prepares for a block of a member. A large block gets its memory as its bytes arrive: a number in a message takes
// none.
void SparseOperation::expect(Area area, int member, const RowLayout& layout, Buffer data) {
  RowBlock& block = incoming(area, member);
  if (isSmall(layout)) {
    if (take(block, member, layout, data)) count(area);
    return;
  }
  if (!checkSize(member, layout, data)) return;
  block.layout = layout;
  addReceive(*plan().channelTo(member), {area, allOf(layout)});
  advance();
}

bool SparseOperation::checkSize(int member, const RowLayout& layout, const Buffer& data) {
  if (layout.count > layout.range) {
    violated(member, std::to_string(layout.count) + " rows of a range of " + std::to_string(layout.range));
  } else if (data.sizeBytes != (isSmall(layout) ? layout.sizeBytes() : 0)) {
    violated(member, "rows of another size than it said");
  }
  return !ended();
}

bool SparseOperation::take(RowBlock& block, int member, const RowLayout& layout, const Buffer& data) {
  if (!checkSize(member, layout, data)) return false;
  if (!isSmall(layout)) {
    violated(member, "more rows than go with a message");
    return false;
  }
  block.layout = layout;
  return store(block, 0, data.bytes()) && checkRows(block, member);
}

bool SparseOperation::checkRows(const RowBlock& block, int member) {
  if (!block.isValid()) violated(member, "rows outside of their range, or out of order");
  return !ended();
}

void SparseOperation::onArrived(size_t channel, const Chunk& chunk, Buffer data) {
  const int member = plan().channels[channel].peer;
  const Place to = plan().channels[channel].receives[chunk.transfer].to;
  progress().take(channel);  // nothing has to come before it
  if (!store(incoming(to.area, member), chunk.begin, data.bytes())) return;
  if (chunk.end < to.range.end) return advance();
  if (checkRows(incoming(to.area, member), member)) count(to.area);
}

bool SparseOperation::store(RowBlock& block, uint64_t begin, Bytes data) {
  try {
    block.growTo(begin + data.size());
  } catch (const std::bad_alloc&) {
    finishWithoutMemory(std::to_string(block.layout.count) + " rows");
    return false;
  }
  if (!data.empty()) std::memcpy(block.memory.data + begin, data.data(), data.size());
  return true;
}

void SparseOperation::finishWithoutMemory(const std::string& rows) {
  finish(resourceExhausted(text() + ": " + link().nameOf(link().self()) + " has no memory for " + rows));
}

void SparseOperation::count(Area area) {
  --(area == Area::kOutput ? missingSums_ : missingShares_);
  advance();
}

void SparseOperation::advance() {
  if (ended() || !begun()) return;
  acknowledgeChunks();
  if (ended() || !dealt_) return;
  if (missingShares_ == 0 && !combined_ && combine()) sendResults();
  if (ended()) return;
  sendChunks();
  freeSent();
  if (ended() || !combined_ || missingSums_ > 0 || !progress().done()) return;
  data_.sums = RowSums(data_.ranges, std::move(sums_));
  finish({});
}

// All members have begun: the last share came with or after the last start. Needs no permit: small results are bounded
// as small starts are, and chunks wait for the permit in sendChunks.
bool SparseOperation::combine() {
  const auto self = static_cast<size_t>(link().self());
  RowBlock& sums = sums_[self];
  uint64_t bytes = 0;
  for (const RowBlock& share : shares_) bytes += share.bytes().size();
  io::Executor::expectRunTime(std::chrono::nanoseconds(bytes));  // about 1 GB/s
  try {
    sums = sumRows(shares_, data_.type, divisor());
  } catch (const std::bad_alloc&) {
    finishWithoutMemory("the sums");
    return false;
  }
  combined_ = true;
  shares_.clear();
  data_.own[self].memory = {};
  return true;
}

void SparseOperation::sendResults() {
  const RowBlock& sums = sums_[static_cast<size_t>(link().self())];
  for (size_t i = 0; i < plan().channels.size() && !ended(); ++i) {
    const int member = plan().channels[i].peer;
    Message result = message(MessageKind::kResult);
    result.elements = sums.layout.count;
    if (isSmall(sums.layout)) result.data = borrowed(sums.bytes());
    send(member, std::move(result));
    if (!ended() && !isSmall(sums.layout)) addSend(i, {Area::kOutput, allOf(sums.layout)});
  }
}

void SparseOperation::freeSent() {
  for (size_t i = 0; i < plan().channels.size() && !ended(); ++i) {
    RowBlock& share = data_.own[static_cast<size_t>(plan().channels[i].peer)];
    const bool isSent = progress().sent(i) * description().chunkBytes >= share.layout.sizeBytes();
    if (isSent && !isSmall(share.layout)) share.memory = {};
  }
}

Bytes SparseOperation::chunkFor(int member, const Place& from, const Chunk& chunk) const {
  const bool isResult = from.area == Area::kOutput;
  const RowBlock& block = isResult ? sums_[static_cast<size_t>(link().self())] : data_.own[static_cast<size_t>(member)];
  return block.bytes().subspan(chunk.begin, chunk.count());
}

void SparseOperation::onFinished() {
  shares_.clear();
  sums_.clear();
  data_.own.clear();
}

std::string SparseOperation::waitsForOther() const {
  std::string names;
  for (const Channel& channel : plan().channels)
    if (!announced_[static_cast<size_t>(channel.peer)])
      names += (names.empty() ? "" : ", ") + link().nameOf(channel.peer);
  return names.empty() ? ChunkedOperation::waitsForOther() : "no sums have come from " + names;
}

}  // namespace treadle::group
