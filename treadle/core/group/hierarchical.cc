#include "treadle/core/group/hierarchical.h"

#include <algorithm>

#include "treadle/core/group/circle.h"

namespace treadle::group {
namespace {

Place inOutput(const Range& elements, int /*left*/) { return {Area::kOutput, elements}; }

}  // namespace

std::string_view obstacleToHierarchy(const Placement& placement) {
  if (placement.hosts() == 1) return "all members are on one host";
  if (placement.mostTogether() == 1) return "no host has two members";
  const bool isEven = placement.mostTogether() * placement.hosts() == placement.members();
  return isEven ? "" : "hosts have different numbers of members";
}

Plan hierarchicalAllReduce(const Shape& shape, const Placement& placement) {
  const std::vector<std::vector<int>> hosts = placement.ranksByHost();
  const auto isMine = [&](const std::vector<int>& ranks) {
    return std::find(ranks.begin(), ranks.end(), shape.self) != ranks.end();
  };
  const auto mine = std::find_if(hosts.begin(), hosts.end(), isMine);
  const auto place = std::find(mine->begin(), mine->end(), shape.self) - mine->begin();
  std::vector<int> twins;  // with this place, by host
  for (const std::vector<int>& ranks : hosts) twins.push_back(ranks[static_cast<size_t>(place)]);

  const Circle host(*mine, static_cast<int>(place), Blocks(shape.count, static_cast<int>(mine->size())));
  const Range own = host.own();
  const Circle across(std::move(twins), static_cast<int>(mine - hosts.begin()), Blocks(own.count(), placement.hosts()),
                      own.begin);
  Plan plan;
  Received last = host.addReduceScatter(plan, {}, Action::kReduce, inOutput);
  last = across.addReduceScatter(plan, last, Action::kReduceLast, inOutput);
  last = across.addAllGather(plan, last);
  host.addAllGather(plan, last);
  return plan;
}

}  // namespace treadle::group
