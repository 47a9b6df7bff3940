// Budget per chunk: a ring's (ring_operation.cc) and two conversions of each element. The member that combines a chunk
// keeps a copy of it from each other member.

#include "treadle/core/group/direct_reduce.h"

#include <algorithm>
#include <cstring>

namespace treadle::group {

// Twice a ring's window for all others together. So what is in flight, and kept, grows with the group only beyond 17
// members.
DirectReduce::DirectReduce(Setup setup)
    : LargeOperation(std::move(setup)),
      segments_(description(), static_cast<uint64_t>(link().size())),
      window_(std::max<uint64_t>(1, 2 * kWindow / static_cast<uint64_t>(link().size() - 1))),
      peers_(static_cast<size_t>(link().size())),
      left_(4 * segments_.chunks() * static_cast<uint64_t>(link().size() - 1)) {}

void DirectReduce::onChunk(int member, uint64_t position, Buffer data) {
  Peer& from = peer(member);
  const bool isResult = position >= segments_.chunks();
  uint64_t& taken = isResult ? from.results : from.shares;
  const uint64_t chunk = isResult ? position - segments_.chunks() : position;
  // A member cannot have the result of a chunk before this worker's share of it, whose place the result takes. A member
  // sends no more shares than a window beyond the acknowledged ones.
  const uint64_t most = isResult ? from.sharesSent : std::min(segments_.chunks(), complete_ + window_);
  if (chunk != taken || chunk >= most) return violated(member, "a chunk where none was due");
  MutableBytes own = bytesOf(segments_.chunk(isResult ? static_cast<uint64_t>(member) : self(), chunk));
  if (data.sizeBytes != own.size()) return violated(member, "a chunk of the wrong size");
  ++taken;
  if (!isResult) {
    keepShare(member, chunk, std::move(data));
  } else {
    if (!own.empty()) std::memcpy(own.data(), data.data, own.size());
    acknowledge(member);
  }
  done();
}

// Each member sends its shares in order, so the chunks become complete in order.
void DirectReduce::keepShare(int member, uint64_t chunk, Buffer data) {
  Shares& shares = shares_[chunk];
  shares.data.resize(peers_.size());
  shares.data[static_cast<size_t>(member)] = std::move(data);
  if (++shares.count + 1 < link().size()) return;
  combine(shares, segments_.chunk(self(), chunk));
  shares_.erase(chunk);
  ++complete_;
  forOthers(&DirectReduce::acknowledge);
  sendToAll();
}

// By rank, as the exchange of small data does, so that both give the same bits.
void DirectReduce::combine(const Shares& shares, Range range) {
  MutableBytes own = bytesOf(range);
  std::vector<const std::byte*> members;
  for (const Buffer& share : shares.data) members.push_back(share.data);
  members[self()] = own.data();
  reduceAtOnce(description().dataType, description().reduceOp, members, range.count(), own.data());
}

void DirectReduce::acknowledge(int member) {
  if (ended()) return;
  Peer& from = peer(member);
  const uint64_t done = from.results + complete_;
  // As in a ring: not for each chunk of a large window, and not for the last chunks.
  const bool due = done - from.acknowledged >= std::max<uint64_t>(1, window_ / 2) && done < 2 * segments_.chunks();
  if (!due) return;
  from.acknowledged = done;
  sendAck(member, done);
}

void DirectReduce::onAck(int member, uint64_t positions) {
  Peer& to = peer(member);
  if (positions <= to.acked || positions > to.sent())
    return violated(member, "an acknowledgement of what was not sent");
  to.acked = positions;
  sendTo(member);
}

// Starts at the right neighbour, so that the members do not all send to the same one first.
void DirectReduce::forOthers(void (DirectReduce::*f)(int member)) {
  for (int step = 1; step < link().size(); ++step) (this->*f)((link().self() + step) % link().size());
}

void DirectReduce::sendTo(int member) {
  Peer& to = peer(member);
  while (maySendTo(member) && to.sent() - to.acked < window_) {
    const bool isResult = to.resultsSent < complete_;
    if (!isResult && to.sharesSent == segments_.chunks()) return;
    const uint64_t next = isResult ? to.resultsSent++ : to.sharesSent++;
    sendChunk(member, next + (isResult ? segments_.chunks() : 0),
              segments_.chunk(isResult ? self() : static_cast<uint64_t>(member), next));
    done();
  }
}

// One more chunk was sent or received.
void DirectReduce::done() {
  if (--left_ == 0) finish({});
}

// The member that is furthest behind.
std::string DirectReduce::waitsFor() const {
  const uint64_t all = 2 * segments_.chunks();
  int slowest = link().right();
  const auto progress = [&](int member) {
    const Peer& of = peers_[static_cast<size_t>(member)];
    return std::pair(of.taken(), of.acked);
  };
  for (int member = 0; member < link().size(); ++member)
    if (member != link().self() && progress(member) < progress(slowest)) slowest = member;
  const auto [taken, acked] = progress(slowest);
  if (taken < all)
    return std::to_string(taken) + " of " + std::to_string(all) + " chunks have come from " + link().nameOf(slowest);
  return link().nameOf(slowest) + " has taken " + std::to_string(acked) + " of " + std::to_string(all) + " chunks";
}

}  // namespace treadle::group
