#pragma once
// How long an operation of a group is going to take, by what the job has measured: for those that choose how much they
// give to one operation. Equal on all members.

#include <cstdint>

#include "treadle/core/group/group.h"

namespace treadle::group {

// Seconds, at least, of the all-reduce (average) of so many bytes of float32 by the algorithm that the group would
// choose (prediction.h). 0 in a group of one, and where GroupOptions::algorithm cannot do it.
double expectedAllReduceTime(const ProcessGroup& group, uint64_t bytes);

}  // namespace treadle::group
