#pragma once
// All-reduce over hosts with the same number of members: the members of a host reduce-scatter among themselves, the
// members with the same place on each host all-reduce what they then have, and the members of a host all-gather the
// result (M. Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy",
// 2019). Each of the three goes in rounds (circle.h). With h hosts, 2 (h-1) / h of the data leaves each host and comes
// to it, which is the least. Around a ring of n members it is 2 (n-1) / n: nearly twice as much with many members on
// two hosts.

#include <string_view>

#include "treadle/core/group/placement.h"
#include "treadle/core/group/shape.h"

namespace treadle::group {

// Why it cannot be done; empty when it can.
std::string_view obstacleToHierarchy(const Placement& placement);

// In place. At least two hosts, with at least two members each.
Plan hierarchicalAllReduce(const Shape& shape, const Placement& placement);

}  // namespace treadle::group
