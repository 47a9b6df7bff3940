#include "treadle/core/group/choice.h"

#include <algorithm>
#include <initializer_list>

#include "treadle/core/group/circulant.h"
#include "treadle/core/group/direct.h"
#include "treadle/core/group/ring.h"
#include "treadle/core/group/tree.h"

namespace treadle::group {
namespace {

// With more members the many small steps of a ring cost more than the bytes.
constexpr int kMostAroundARing = 16;

// Partial sums travel around a ring, in rounds and along a tree, so each member would round.
bool sumsInParts(const Description& what) {
  return what.operation == OperationKind::kAllReduce && !reducesAtOnce(what.dataType, what.reduceOp);
}

bool isOneOf(OperationKind kind, std::initializer_list<OperationKind> kinds) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

Algorithm preferred(const Description& what, int size, SumOrder order) {
  const auto can = [&](Algorithm algorithm) { return serves(algorithm, what, size, order); };
  for (Algorithm small : {Algorithm::kExchange, Algorithm::kTree})
    if (can(small)) return small;
  const bool isSmallInTree = what.small() && size > kMostAllToAll;
  if (isSmallInTree && can(Algorithm::kRoot)) return Algorithm::kRoot;
  if (size > kMostAroundARing && can(Algorithm::kCirculant)) return Algorithm::kCirculant;
  return can(Algorithm::kRing) ? Algorithm::kRing : Algorithm::kDirect;
}

Plan directPlan(OperationKind operation, const Shape& shape) {
  switch (operation) {
    case OperationKind::kAllReduce: return directAllReduce(shape);
    case OperationKind::kReduce: return directReduce(shape);
    case OperationKind::kReduceScatter: return directReduceScatter(shape);
    case OperationKind::kAllGather: return directAllGather(shape);
    case OperationKind::kGather: return directGather(shape);
    case OperationKind::kScatter: return directScatter(shape);
    case OperationKind::kAllToAll: return directAllToAll(shape);
    case OperationKind::kBroadcast:
    case OperationKind::kSend:
    case OperationKind::kSparseAllReduce:
    case OperationKind::kBarrier: break;
  }
  return {};
}

Plan exchangePlan(OperationKind operation, const Shape& shape) {
  switch (operation) {
    case OperationKind::kAllReduce: return exchangeAllReduce(shape);
    case OperationKind::kBroadcast:
    case OperationKind::kSend: return exchangeBroadcast(shape);
    case OperationKind::kReduce: return exchangeReduce(shape);
    default: return directPlan(operation, shape);
  }
}

Plan treePlan(OperationKind operation, const Shape& shape) {
  switch (operation) {
    case OperationKind::kAllReduce: return treeAllReduce(shape);
    case OperationKind::kBroadcast: return treeBroadcast(shape);
    default: return {};
  }
}

Plan withStarts(Plan plan) {
  plan.withStarts = true;
  return plan;
}

}  // namespace

Agreement::Kind agreementOf(const Description& description, int size) {
  const bool allToAll = size <= kMostAllToAll || description.sizesVary();
  return allToAll ? Agreement::Kind::kAllToAll : Agreement::Kind::kTree;
}

std::string_view obstacleTo(Algorithm algorithm, const Description& what, int size, SumOrder order) {
  using enum OperationKind;
  constexpr std::string_view kOther = "it does other operations", kRounds = "each member would round its 16-bit floats",
                             kLarge = "its data is above smallBytes", kOrder = "it does not add in the order of ranks";
  const bool isReduction = isOneOf(what.operation, {kAllReduce, kReduce});
  const bool isCopyOfOne = isOneOf(what.operation, {kBroadcast, kSend});
  const bool anyOrder = order == SumOrder::kAny;
  const std::string_view inParts = sumsInParts(what)              ? anyOrder ? "" : kOrder
                                   : what.operation == kAllReduce ? kRounds
                                                                  : kOther;
  switch (algorithm) {
    case Algorithm::kExchange:
      if (size > kMostAllToAll) return "the group has more than 16 members";
      return what.sizesVary() ? kOther : what.small() ? "" : kLarge;
    case Algorithm::kTree:
      if (size <= kMostAllToAll) return "the group has at most 16 members";
      if (!isOneOf(what.operation, {kBroadcast, kBarrier}) && !inParts.empty()) return inParts;
      return what.small() ? "" : kLarge;
    case Algorithm::kRoot: return isReduction ? "" : kOther;
    case Algorithm::kRing: return isCopyOfOne ? "" : inParts;
    case Algorithm::kCirculant: return inParts;
    case Algorithm::kDirect: return isCopyOfOne || what.operation == kBarrier ? kOther : "";
    case Algorithm::kAutomatic: break;
  }
  return "it is none";
}

Result<Algorithm> choose(const GroupOptions& options, const Description& what, int size) {
  const Algorithm wanted = options.algorithm;
  const bool hasNoChoice = isOneOf(what.operation, {OperationKind::kBarrier, OperationKind::kSend});
  if (wanted == Algorithm::kAutomatic || hasNoChoice) return preferred(what, size, options.sumOrder);
  const std::string obstacle(obstacleTo(wanted, what, size, options.sumOrder));
  if (obstacle.empty()) return wanted;
  std::string others;
  for (uint8_t value = 0; value < UINT8_MAX; ++value)
    if (const auto other = static_cast<Algorithm>(value);
        isAlgorithm(value) && serves(other, what, size, options.sumOrder))
      others += (others.empty() ? "" : ", ") + std::string(nameOf(other));
  return invalidArgument("the algorithm '" + std::string(nameOf(wanted)) + "' cannot do " + describe(what) + " among " +
                         std::to_string(size) + " members: " + obstacle + "; these can: " + others);
}

Plan planOf(const Call& call, int size, int self) {
  const Description& what = call.description;
  const Shape shape{size, self, static_cast<int>(what.root), what.count, call.counts, call.incoming};
  switch (what.algorithm) {
    case Algorithm::kExchange: return withStarts(exchangePlan(what.operation, shape));
    case Algorithm::kTree: return withStarts(treePlan(what.operation, shape));
    case Algorithm::kRoot:
      return what.operation == OperationKind::kReduce ? exchangeReduce(shape) : rootAllReduce(shape);
    case Algorithm::kRing:
      return what.operation == OperationKind::kAllReduce ? ringAllReduce(shape) : ringBroadcast(shape);
    case Algorithm::kCirculant: return circulantAllReduce(shape);
    case Algorithm::kDirect: return directPlan(what.operation, shape);
    case Algorithm::kAutomatic: break;
  }
  return {};
}

}  // namespace treadle::group
