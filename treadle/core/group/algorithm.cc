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

Plan planOf(const Call& call, int size, int self) {
  const Description& what = call.description;
  const Shape shape{size, self, static_cast<int>(what.root), what.count, call.counts, call.incoming};
  switch (what.operation) {
    case OperationKind::kAllReduce: return planOfAllReduce(what, shape);
    case OperationKind::kBroadcast: return what.small() ? exchangeBroadcast(shape) : ringBroadcast(shape);
    case OperationKind::kReduce: return what.small() ? exchangeReduce(shape) : directReduce(shape);
    case OperationKind::kReduceScatter: return directReduceScatter(shape);
    case OperationKind::kAllGather: return directAllGather(shape);
    case OperationKind::kGather: return directGather(shape);
    case OperationKind::kScatter: return directScatter(shape);
    case OperationKind::kAllToAll: return directAllToAll(shape);
    case OperationKind::kBarrier: break;
  }
  return {};
}

}  // namespace treadle::group
