#include "treadle/train/ddp/arrival_order.h"

#include <algorithm>

#include "treadle/train/ddp/bucket_plan.h"

namespace treadle::ddp {

void ArrivalOrder::clear() {
  cameAt_.assign(cameAt_.size(), 0);
  count_ = 0;
}

std::vector<size_t> ArrivalOrder::order() const {
  std::vector<size_t> order = reverseOrder(cameAt_.size());
  // 0 - 1 is the largest number.
  std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) { return cameAt_[a] - 1 < cameAt_[b] - 1; });
  return order;
}

}  // namespace treadle::ddp
