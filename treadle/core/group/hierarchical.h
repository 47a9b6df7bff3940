#pragma once
// All-reduce over hosts that have as many members each: the members of a host reduce-scatter among themselves, the
// members with the same place on each host all-reduce what they then have, and the members of a host all-gather the
// result. Each of the three goes in rounds (circulant.h). With h hosts, 2 (h-1) / h of the data leaves each host and
// comes to it, which is the least; around a ring of n members it is 2 (n-1) / n, nearly twice as much with two hosts
// (N. Dryden et al., "Aluminum: an asynchronous, GPU-aware communication library", 2018, compare such schemes).

#include <string_view>

#include "treadle/core/group/placement.h"
#include "treadle/core/group/shape.h"

namespace treadle::group {

// Why it cannot be done; empty when it can.
std::string_view obstacleToHierarchy(const Placement& placement);

// In place. At least two hosts, with at least two members each.
Plan hierarchicalAllReduce(const Shape& shape, const Placement& placement);

}  // namespace treadle::group
