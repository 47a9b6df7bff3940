#include "treadle/core/group/algorithm.h"

#include "treadle/core/group/circulant.h"
#include "treadle/core/group/direct.h"
#include "treadle/core/group/ring.h"
#include "treadle/core/group/tree.h"

namespace treadle::group {
namespace {

// With more members the many small steps of a ring cost more than the bytes.
constexpr int kMostAroundARing = 16;

// In more steps than two each member would round.
bool mustReduceAtOnce(const Description& what) { return reducesAtOnce(what.dataType, what.reduceOp); }

Plan allReducePlan(const Description& what, const Shape& shape) {
  if (mustReduceAtOnce(what)) return directAllReduce(shape);
  return shape.size > kMostAroundARing ? circulantAllReduce(shape) : ringAllReduce(shape);
}

Plan dataPlan(const Description& what, const Shape& shape) {
  switch (what.operation) {
    case OperationKind::kAllReduce: return allReducePlan(what, shape);
    case OperationKind::kBroadcast:
    case OperationKind::kSend: return ringBroadcast(shape);
    case OperationKind::kReduce: return directReduce(shape);
    case OperationKind::kReduceScatter: return directReduceScatter(shape);
    case OperationKind::kAllGather: return directAllGather(shape);
    case OperationKind::kGather: return directGather(shape);
    case OperationKind::kScatter: return directScatter(shape);
    case OperationKind::kAllToAll: return directAllToAll(shape);
    case OperationKind::kBarrier: break;
  }
  return {};
}

Plan withStarts(Plan plan) {
  plan.withStarts = true;
  return plan;
}

// For small data, which travels with the starts from each member to each.
Plan exchangePlan(const Description& what, const Shape& shape) {
  switch (what.operation) {
    case OperationKind::kAllReduce: return exchangeAllReduce(shape);
    case OperationKind::kBroadcast: return exchangeBroadcast(shape);
    case OperationKind::kReduce: return exchangeReduce(shape);
    default: return dataPlan(what, shape);
  }
}

// Small data travels with the starts along the tree if the operation can be done so, and otherwise after them.
Plan treePlan(const Description& what, const Shape& shape) {
  switch (what.operation) {
    case OperationKind::kBarrier: return withStarts({});
    case OperationKind::kBroadcast: return withStarts(treeBroadcast(shape));
    case OperationKind::kAllReduce:
      return mustReduceAtOnce(what) ? rootAllReduce(shape) : withStarts(treeAllReduce(shape));
    case OperationKind::kReduce: return exchangeReduce(shape);
    default: return dataPlan(what, shape);
  }
}

}  // namespace

Agreement::Kind agreementOf(const Description& description, int size) {
  const bool allToAll = size <= kMostAllToAll || description.operation == OperationKind::kAllToAll;
  return allToAll ? Agreement::Kind::kAllToAll : Agreement::Kind::kTree;
}

Plan planOf(const Call& call, int size, int self) {
  const Description& what = call.description;
  const Shape shape{size, self, static_cast<int>(what.root), what.count, call.counts, call.incoming};
  if (!what.small()) return dataPlan(what, shape);
  if (agreementOf(what, size) == Agreement::Kind::kTree) return treePlan(what, shape);
  return withStarts(exchangePlan(what, shape));
}

}  // namespace treadle::group
