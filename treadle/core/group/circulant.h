#pragma once
// All-reduce in 2 log2 n rounds (rounded up) that moves no more than a ring (J. L. Träff, "Optimal, non-pipelined
// reduce-scatter and allreduce algorithms", 2024, arXiv 2410.14234). For many members: a ring's 2 (n-1) steps would
// each move little.

#include "treadle/core/group/plan.h"
#include "treadle/core/group/shape.h"

namespace treadle::group {

// Blocks are numbered from the member's own on, around the ranks. A round of the first half sends the upper half of the
// blocks that the member still has sums of to one peer, and adds what comes from another to its lower ones, until it
// has the whole sum of its own. The second half is the first one backwards: what was added up is given back.
Plan circulantAllReduce(const Shape& shape);

}  // namespace treadle::group
