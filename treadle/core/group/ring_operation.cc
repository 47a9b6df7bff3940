// Budget per chunk: one encoded message of 25 bytes and one system call to send it, every fourth time another pair
// for the acknowledgement; no copy but the kernel's, unless the socket does not take it all at once.

#include "treadle/core/group/ring_operation.h"

#include <cstring>

namespace treadle::group {

void RingOperation::onChunk(int member, uint64_t position, Buffer data) {
  bool due = member == link().left() && position == received_ && position < plan_.receives();
  if (!due) return violated(member, "a chunk where none was due");
  Range range = plan_.received(position);
  if (data.sizeBytes != bytesOf(range).size()) return violated(member, "a chunk of the wrong size");
  take(range, plan_.action(position), data);
  ++received_;
  acknowledge();
  sendChunks();
}

void RingOperation::take(Range range, RingPlan::Action action, const Buffer& data) {
  MutableBytes own = bytesOf(range);
  if (own.empty()) return;
  if (action == RingPlan::Action::kReplace) {
    std::memcpy(own.data(), data.data, own.size());
    return;
  }
  DataType type = description().dataType;
  reduceInto(type, description().reduceOp, own.data(), data.data, range.count());
  if (action == RingPlan::Action::kAddAndAverage) divide(type, own.data(), range.count(), link().size());
}

void RingOperation::acknowledge() {
  // The sender needs no word about the last chunks, and about the others not one for each.
  bool due = received_ - acknowledged_ >= kWindow / 2 && received_ < plan_.receives();
  if (!due) return;
  acknowledged_ = received_;
  sendAck(link().left(), received_);
}

void RingOperation::onAck(int member, uint64_t positions) {
  bool sane = member == link().right() && positions > acked_ && positions <= sent_;
  if (!sane) return violated(member, "an acknowledgement of what was not sent");
  acked_ = positions;
  sendChunks();
}

void RingOperation::sendChunks() {
  while (maySendTo(link().right()) && sent_ < plan_.sendable(received_) && sent_ - acked_ < kWindow) {
    const uint64_t position = sent_++;
    sendChunk(link().right(), position, plan_.sent(position));
  }
  if (begun() && allStarted() && sent_ == plan_.sends() && received_ == plan_.receives()) finish({});
}

std::string RingOperation::waitsFor() const {
  if (received_ < plan_.receives())
    return std::to_string(received_) + " of " + std::to_string(plan_.receives()) + " chunks have come from " +
           link().nameOf(link().left());
  return link().nameOf(link().right()) + " has taken " + std::to_string(acked_) + " of " +
         std::to_string(plan_.sends()) + " chunks";
}

}  // namespace treadle::group
