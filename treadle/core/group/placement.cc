#include "treadle/core/group/placement.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace treadle::group {

Placement Placement::spread(int members, int hosts) {
  std::vector<int> all;
  for (int rank = 0; rank < members; ++rank) all.push_back(static_cast<int>(int64_t{rank} * hosts / members));
  return Placement(std::move(all));
}

Placement::Placement(std::vector<int> hosts) : hosts_(std::move(hosts)) {
  std::map<int, int> together, atBorder;
  for (size_t rank = 0; rank < hosts_.size(); ++rank) {
    const int host = hosts_[rank], next = hosts_[(rank + 1) % hosts_.size()];
    mostTogether_ = std::max(mostTogether_, ++together[host]);
    if (next != host) mostAtBorder_ = std::max(mostAtBorder_, ++atBorder[host]);
  }
  hostCount_ = static_cast<int>(together.size());
}

std::vector<std::vector<int>> Placement::ranksByHost() const {
  std::map<int, size_t> places;
  std::vector<std::vector<int>> ranks;
  for (size_t rank = 0; rank < hosts_.size(); ++rank) {
    const size_t place = places.emplace(hosts_[rank], ranks.size()).first->second;
    if (place == ranks.size()) ranks.emplace_back();
    ranks[place].push_back(static_cast<int>(rank));
  }
  return ranks;
}

Placement Placement::pair(int first, int second) const {
  return Placement({hosts_[static_cast<size_t>(first)], hosts_[static_cast<size_t>(second)]});
}

}  // namespace treadle::group
