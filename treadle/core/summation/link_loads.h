#pragma once
// What the links of a machine carry in the steps of a plan. Pure.

#include <vector>

#include "treadle/core/summation/local_plan.h"

namespace treadle::summation {

// In the order of `LocalWay::links`.
std::vector<LinkLoad> loadsOf(const Topology& topology, const std::vector<LocalStep>& steps);

}  // namespace treadle::summation
