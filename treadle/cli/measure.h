#pragma once
// `treadle plan --measure`: what the links of a job cost, as its rank 0 measures it while the workers meet.

#include "treadle/core/cluster/launch.h"
#include "treadle/core/group/choice.h"

namespace treadle::cli {

// Meets the other workers of the job, each of which calls this. Returns the hosts that they are on and the measured
// costs. Throws what Worker::join does.
group::Surroundings measuredIn(const Launch& launch);

}  // namespace treadle::cli
