#pragma once
// How an average of a group is going to be made, and how long it is going to take, by what the job has measured: for
// those that choose how much they give to one operation. Equal on all members.

#include <cstdint>

#include "treadle/core/group/group.h"

namespace treadle::group {

// The algorithm of the all-reduce (average) of so many bytes of float32; kAutomatic in a group of one. InvalidArgument:
// the one that the group forces cannot do it.
Result<Algorithm> algorithmOfAverage(const ProcessGroup& group, uint64_t bytes);

// Seconds, at least, of that all-reduce (prediction.h). 0 in a group of one, and where the algorithm cannot do it.
double expectedAllReduceTime(const ProcessGroup& group, uint64_t bytes);

}  // namespace treadle::group
