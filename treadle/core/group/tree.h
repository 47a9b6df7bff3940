#pragma once
// Small data along the binomial tree (binomial_tree.h), for groups in which not every member talks to every other.

#include "treadle/core/group/plan.h"
#include "treadle/core/group/shape.h"

namespace treadle::group {

// The first two need starts along the tree, so more than 16 members (kMostAllToAll), and data of at most
// GroupOptions::smallBytes.

// Each member adds the sums of its children to its own elements, in the order of ranks, and sends them to its parent.
// The sums of rank 0 go down to all. The data travels with the starts, which take the same course. Not for reductions
// in the order of ranks.
Plan treeAllReduce(const Shape& shape);

// The elements of `root` go up to rank 0 and from each member down to its children, with the starts.
Plan treeBroadcast(const Shape& shape);

// For groups and data of any size: rank 0 combines the elements of all members, by rank, and the result goes down to
// all.
Plan rootAllReduce(const Shape& shape);

}  // namespace treadle::group
