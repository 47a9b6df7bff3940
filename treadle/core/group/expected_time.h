#pragma once
// How an average of a group is going to be made, and how long it is going to take, by what the job has measured: for
// those that choose how much they give to one operation. Equal on all members.

#include <cstdint>

#include "treadle/core/group/data_type.h"
#include "treadle/core/group/group.h"

namespace treadle::group {

// The algorithm of the all-reduce (average) of so many bytes of that type; kAutomatic in a group of one.
// InvalidArgument: the type has no average, or the algorithm that the group forces cannot do it.
Result<Algorithm> algorithmOfAverage(const ProcessGroup& group, uint64_t bytes, DataType type);

// Seconds, at least, of that all-reduce of float32 (prediction.h). 0 in a group of one, and where the algorithm cannot
// do it.
double expectedAllReduceTime(const ProcessGroup& group, uint64_t bytes);

}  // namespace treadle::group
