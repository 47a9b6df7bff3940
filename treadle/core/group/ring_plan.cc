#include "treadle/core/group/ring_plan.h"

#include <algorithm>

namespace treadle::group {
namespace {

uint64_t dividedUp(uint64_t value, uint64_t by) { return value / by + (value % by != 0 ? 1 : 0); }

}  // namespace

RingPlan::RingPlan(const Description& description, int size, int self)
    : reduce_(description.operation == OperationKind::kAllReduce),
      average_(reduce_ && description.reduceOp == ReduceOp::kAverage),
      count_(description.count),
      size_(static_cast<uint64_t>(size)),
      self_(static_cast<uint64_t>(self)),
      chunkElements_(std::max<uint64_t>(1, description.chunkBytes / sizeOf(description.dataType))) {
  uint64_t largestSegment = reduce_ ? dividedUp(count_, size_) : count_;
  chunksPerStep_ = std::max<uint64_t>(1, dividedUp(largestSegment, chunkElements_));
  if (reduce_) {
    sends_ = receives_ = 2 * (size_ - 1) * chunksPerStep_;
    ahead_ = chunksPerStep_;
    return;
  }
  uint64_t fromRoot = (self_ + size_ - description.root) % size_;
  sends_ = fromRoot + 1 < size_ ? chunksPerStep_ : 0;
  receives_ = fromRoot > 0 ? chunksPerStep_ : 0;
  ahead_ = fromRoot == 0 ? chunksPerStep_ : 0;
}

uint64_t RingPlan::sendable(uint64_t received) const { return std::min(sends_, received + ahead_); }

RingPlan::Action RingPlan::action(uint64_t position) const {
  uint64_t step = position / chunksPerStep_;
  if (!reduce_ || step + 1 >= size_) return Action::kReplace;
  // The last addition makes the sum whole; from then on it is copied, so that all get the same bits.
  return average_ && step + 2 == size_ ? Action::kAddAndAverage : Action::kAdd;
}

Range RingPlan::range(uint64_t position, uint64_t stepsBehind) const {
  uint64_t step = position / chunksPerStep_, chunk = position % chunksPerStep_;
  Range segment{0, count_};
  if (reduce_) {
    uint64_t index = (self_ + 2 * size_ - step - stepsBehind) % size_;
    // The first `longer` segments have one element more than the rest.
    uint64_t even = count_ / size_, longer = count_ % size_;
    segment.begin = index * even + std::min(index, longer);
    segment.end = segment.begin + even + (index < longer ? 1 : 0);
  }
  uint64_t begin = std::min(segment.end, segment.begin + chunk * chunkElements_);
  return {begin, std::min(segment.end, begin + chunkElements_)};
}

}  // namespace treadle::group
