#pragma once
// Small data along the binomial tree (binomial_tree.h), for groups in which not every member talks to every other. It
// travels with the starts of an operation, which take the same way.

#include "treadle/core/group/plan.h"
#include "treadle/core/group/shape.h"

namespace treadle::group {

// Each member adds the sums of its children to its own elements, in the order of ranks, and sends them to its parent.
// The root's sums go down to all.
Plan treeAllReduce(const Shape& shape);

// The elements of `root` go up to rank 0 and from each member down to its children.
Plan treeBroadcast(const Shape& shape);

}  // namespace treadle::group
