#pragma once
// Large data around a ring: each member sends to its right neighbour and receives from its left one. Pure functions.

#include "treadle/core/group/shape.h"

namespace treadle::group {

// Both need at least two members. Not for reductions in the order of ranks: each member adds to what has come to it.

// All-reduce in place, in the output (P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", 2009). The data is cut into as many blocks as there are members. In step s of the first n-1 member r
// sends block r-s and reduces what it receives with block r-s-1, after which it has the whole of block r+1; in n-1
// more steps the whole blocks go around, so that all members get the same bits. Chunks of one step are on their way
// while others are still being reduced. Each member sends 2 (n-1)/n times the data.
Plan ringAllReduce(const Shape& shape);

// Broadcast of the root's input into the outputs of the others, from the root around the ring up to its left neighbour.
// Each member but the last sends the data once.
Plan ringBroadcast(const Shape& shape);

}  // namespace treadle::group
