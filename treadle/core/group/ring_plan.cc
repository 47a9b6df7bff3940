#include "treadle/core/group/ring_plan.h"

#include <algorithm>

namespace treadle::group {

RingPlan::RingPlan(const Description& description, int size, int self)
    : reduce_(description.operation == OperationKind::kAllReduce),
      average_(reduce_ && description.reduceOp == ReduceOp::kAverage),
      size_(static_cast<uint64_t>(size)),
      self_(static_cast<uint64_t>(self)),
      segments_(description, reduce_ ? size_ : 1) {
  const uint64_t chunks = segments_.chunks();
  if (reduce_) {
    sends_ = receives_ = 2 * (size_ - 1) * chunks;
    ahead_ = chunks;
    return;
  }
  uint64_t fromRoot = (self_ + size_ - description.root) % size_;
  sends_ = fromRoot + 1 < size_ ? chunks : 0;
  receives_ = fromRoot > 0 ? chunks : 0;
  ahead_ = fromRoot == 0 ? chunks : 0;
}

uint64_t RingPlan::sendable(uint64_t received) const { return std::min(sends_, received + ahead_); }

RingPlan::Action RingPlan::action(uint64_t position) const {
  uint64_t step = position / segments_.chunks();
  if (!reduce_ || step + 1 >= size_) return Action::kReplace;
  // The last addition makes the sum whole; from then on it is copied, so that all get the same bits.
  return average_ && step + 2 == size_ ? Action::kAddAndAverage : Action::kAdd;
}

Range RingPlan::range(uint64_t position, uint64_t stepsBehind) const {
  uint64_t step = position / segments_.chunks(), chunk = position % segments_.chunks();
  return segments_.chunk(reduce_ ? (self_ + 2 * size_ - step - stepsBehind) % size_ : 0, chunk);
}

}  // namespace treadle::group
