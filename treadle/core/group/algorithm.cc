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
    case OperationKind::kBroadcast: return ringBroadcast(shape);
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

// For small data, which travels with the starts: those from each member to each, or those along the tree. Not every
// operation can be done along a tree.
Plan exchangePlan(const Description& what, const Shape& shape) {
  if (what.operation == OperationKind::kAllReduce) return exchangeAllReduce(shape);
  if (what.operation == OperationKind::kBroadcast) return exchangeBroadcast(shape);
  if (what.operation == OperationKind::kReduce) return exchangeReduce(shape);
  return dataPlan(what, shape);
}

std::optional<Plan> treePlan(const Description& what, const Shape& shape) {
  if (what.operation == OperationKind::kBarrier) return Plan();
  if (what.operation == OperationKind::kBroadcast) return treeBroadcast(shape);
  if (what.operation == OperationKind::kAllReduce && !mustReduceAtOnce(what)) return treeAllReduce(shape);
  return {};
}

}  // namespace

Agreement::Kind agreementOf(const Description& description, int size) {
  const bool allToAll = size <= kMostAllToAll || description.operation == OperationKind::kAllToAll;
  return allToAll ? Agreement::Kind::kAllToAll : Agreement::Kind::kTree;
}

Plan planOf(const Call& call, int size, int self) {
  const Description& what = call.description;
  const Shape shape{size, self, static_cast<int>(what.root), what.count, call.counts, call.incoming};
  if (what.small()) {
    const bool tree = agreementOf(what, size) == Agreement::Kind::kTree;
    if (std::optional<Plan> plan = tree ? treePlan(what, shape) : exchangePlan(what, shape)) {
      plan->withStarts = true;
      return *std::move(plan);
    }
  }
  return dataPlan(what, shape);
}

}  // namespace treadle::group
