#include "treadle/core/group/choice.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "treadle/core/group/circulant.h"
#include "treadle/core/group/direct.h"
#include "treadle/core/group/hierarchical.h"
#include "treadle/core/group/prediction.h"
#include "treadle/core/group/ring.h"
#include "treadle/core/group/tree.h"

namespace treadle::group {
namespace {

bool isOneOf(OperationKind kind, std::initializer_list<OperationKind> kinds) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

// Why the operation's partial sums cannot travel, as they do around a ring, in rounds and along a tree. Empty for
// operations that have none.
std::string_view obstacleToParts(const Description& what, SumOrder order) {
  if (!isOneOf(what.operation,
               {OperationKind::kAllReduce, OperationKind::kReduceScatter, OperationKind::kSparseAllReduce}))
    return "";
  return order == SumOrder::kAny ? "" : "it does not add in the order of ranks";
}

// What goes along the tree travels with starts.
bool fitsIntoStarts(const Description& what) {
  return what.small() && what.count <= what.smallBytes / sizeOf(what.movedBy(Algorithm::kTree));
}

// Calls `use` with each algorithm that serves, in the order of their numbers.
template <class Use>
void forEachThatServes(const Description& what, const Placement& placement, SumOrder order, Use use) {
  for (uint8_t value = 1; isAlgorithm(value); ++value)
    if (const auto algorithm = static_cast<Algorithm>(value); serves(algorithm, what, placement, order)) use(algorithm);
}

// Times that differ by less than 3% are equal: the model is not that exact. It knows no congestion, so of a ring and of
// direct blocks between many hosts the ring is the better one, where each member receives from one other only.
constexpr double kSame = 0.97;

Algorithm fastest(const Description& what, SumOrder order, const Surroundings& surroundings) {
  Algorithm best = Algorithm::kAutomatic;
  double least = std::numeric_limits<double>::infinity();
  forEachThatServes(what, surroundings.placement, order, [&](Algorithm algorithm) {
    const double time = timeOf(algorithm, what, surroundings.placement, surroundings.costs);
    if (best != Algorithm::kAutomatic && !(time < least * kSame)) return;
    best = algorithm;
    least = time;
  });
  return best;
}

Plan directPlan(OperationKind operation, const Shape& shape) {
  switch (operation) {
    case OperationKind::kAllReduce: return directAllReduce(shape);
    case OperationKind::kReduce: return directReduce(shape);
    case OperationKind::kReduceScatter: return directReduceScatter(shape);
    case OperationKind::kAllGather: return directAllGather(shape);
    case OperationKind::kGather: return directGather(shape);
    case OperationKind::kScatter: return directScatter(shape);
    case OperationKind::kAllToAll:
    case OperationKind::kAllToAllV: return directAllToAll(shape);
    case OperationKind::kBroadcast:
    case OperationKind::kSend:
    case OperationKind::kSparseAllReduce:
    case OperationKind::kBarrier: break;
  }
  return {};
}

Plan circulantPlan(OperationKind operation, const Shape& shape) {
  switch (operation) {
    case OperationKind::kAllReduce: return circulantAllReduce(shape);
    case OperationKind::kReduceScatter: return circulantReduceScatter(shape);
    case OperationKind::kAllGather: return circulantAllGather(shape);
    default: return {};
  }
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
  const bool areRowsDealt =
      description.operation == OperationKind::kSparseAllReduce && description.algorithm != Algorithm::kTree;
  const bool allToAll = size <= kMostAllToAll || areRowsDealt;
  return allToAll ? Agreement::Kind::kAllToAll : Agreement::Kind::kTree;
}

std::string_view obstacleTo(Algorithm algorithm, const Description& what, const Placement& placement, SumOrder order) {
  using enum OperationKind;
  constexpr std::string_view kOther = "it does other operations", kLarge = "its data is above smallBytes",
                             kLargeAsFloats = "its data is above smallBytes as float32";
  const bool isCopyOfOne = isOneOf(what.operation, {kBroadcast, kSend});
  const std::string_view parts = obstacleToParts(what, order);
  const bool isLargeGroup = placement.members() > kMostAllToAll;
  switch (algorithm) {
    case Algorithm::kExchange:
      if (isLargeGroup) return "the group has more than 16 members";
      return what.sizesVary() ? kOther : what.small() ? "" : kLarge;
    case Algorithm::kTree:
      if (!isLargeGroup) return "the group has at most 16 members";
      if (!isOneOf(what.operation, {kAllReduce, kBroadcast, kBarrier, kSparseAllReduce})) return kOther;
      if (what.operation == kSparseAllReduce) return parts;
      if (!parts.empty()) return parts;
      return fitsIntoStarts(what) ? "" : what.small() ? kLargeAsFloats : kLarge;
    case Algorithm::kRoot: return isOneOf(what.operation, {kAllReduce, kReduce}) ? "" : kOther;
    case Algorithm::kRing: return isCopyOfOne || what.operation == kAllReduce ? parts : kOther;
    case Algorithm::kCirculant:
      return isOneOf(what.operation, {kAllReduce, kReduceScatter, kAllGather}) ? parts : kOther;
    case Algorithm::kDirect: return isCopyOfOne || what.operation == kBarrier ? kOther : "";
    case Algorithm::kHierarchical:
      if (what.operation != kAllReduce) return kOther;
      return !parts.empty() ? parts : obstacleToHierarchy(placement);
    case Algorithm::kAutomatic: break;
  }
  return "it is none";
}

Result<Algorithm> choose(const GroupOptions& options, const Description& what, const Surroundings& surroundings) {
  const Algorithm wanted = options.algorithm;
  const Placement& placement = surroundings.placement;
  const bool isNotForced = isOneOf(what.operation, {OperationKind::kBarrier, OperationKind::kSend});
  // Its time depends on rows that nobody knows.
  if (wanted == Algorithm::kAutomatic && what.operation == OperationKind::kSparseAllReduce)
    return serves(Algorithm::kTree, what, placement, options.sumOrder) ? Algorithm::kTree : Algorithm::kDirect;
  if (wanted == Algorithm::kAutomatic || isNotForced) return fastest(what, options.sumOrder, surroundings);
  const std::string obstacle(obstacleTo(wanted, what, placement, options.sumOrder));
  if (obstacle.empty()) return wanted;
  std::string others;
  forEachThatServes(what, placement, options.sumOrder,
                    [&](Algorithm other) { others += (others.empty() ? "" : ", ") + std::string(nameOf(other)); });
  return invalidArgument("the algorithm '" + std::string(nameOf(wanted)) + "' cannot do " + describe(what) + " among " +
                         std::to_string(placement.members()) + " members: " + obstacle + "; these can: " + others);
}

Plan planOf(const Call& call, const Placement& placement, int self) {
  const Description& what = call.description;
  const Shape shape{placement.members(), self, static_cast<int>(what.root), what.count, call.counts, call.incoming};
  switch (what.algorithm) {
    case Algorithm::kExchange: return withStarts(exchangePlan(what.operation, shape));
    case Algorithm::kTree: return withStarts(treePlan(what.operation, shape));
    case Algorithm::kRoot:
      return what.operation == OperationKind::kReduce ? exchangeReduce(shape) : rootAllReduce(shape);
    case Algorithm::kRing:
      return what.operation == OperationKind::kAllReduce ? ringAllReduce(shape) : ringBroadcast(shape);
    case Algorithm::kCirculant: return circulantPlan(what.operation, shape);
    case Algorithm::kDirect: return directPlan(what.operation, shape);
    case Algorithm::kHierarchical: return hierarchicalAllReduce(shape, placement);
    case Algorithm::kAutomatic: break;
  }
  return {};
}

}  // namespace treadle::group
