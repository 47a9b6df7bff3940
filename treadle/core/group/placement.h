#pragma once
// How the members of a group are spread over hosts, as all of them know it alike. Plain values.

#include <cstddef>
#include <vector>

namespace treadle::group {

class Placement {
 public:
  static Placement onOneHost(int members) { return Placement(std::vector<int>(static_cast<size_t>(members), 0)); }
  // So many hosts with the same number of members, or one more, whose ranks follow each other.
  static Placement spread(int members, int hosts);
  // By rank in the group: a number for its host.
  explicit Placement(std::vector<int> hosts);

  int members() const { return static_cast<int>(hosts_.size()); }
  int hosts() const { return hostCount_; }
  // Of the host that has most.
  int mostTogether() const { return mostTogether_; }
  // On how many members of one host, at most, the next rank is on another host.
  int mostAtBorder() const { return mostAtBorder_; }
  // The ranks of each host upwards, hosts in the order of their first ranks.
  std::vector<std::vector<int>> ranksByHost() const;
  // Of a group of these two.
  Placement pair(int first, int second) const;

 private:
  std::vector<int> hosts_;
  int hostCount_ = 0, mostTogether_ = 0, mostAtBorder_ = 0;
};

}  // namespace treadle::group
