#include "treadle/core/group/algorithm.h"

#include "treadle/core/group/direct.h"
#include "treadle/core/group/ring.h"

namespace treadle::group {
namespace {

Plan planOfAllReduce(const Description& description, const Shape& shape) {
  if (description.small()) return exchangeAllReduce(shape);
  // Around a ring each member would round.
  if (reducesAtOnce(description.dataType, description.reduceOp)) return directAllReduce(shape);
  return ringAllReduce(shape);
}

}  // namespace

Plan planOf(const Description& description, int size, int self) {
  const Shape shape{size, self, static_cast<int>(description.root), description.count};
  switch (description.operation) {
    case OperationKind::kAllReduce: return planOfAllReduce(description, shape);
    case OperationKind::kBroadcast: return description.small() ? exchangeBroadcast(shape) : ringBroadcast(shape);
    case OperationKind::kBarrier: break;
  }
  return {};
}

}  // namespace treadle::group
