#pragma once
// The process group of a job in which all workers do the same.

#include <treadle/group.h>

namespace example {

// All workers of the job, in the order of their ranks. Every worker calls it.
treadle::ProcessGroup groupOfAll(treadle::Worker& worker);

}  // namespace example
