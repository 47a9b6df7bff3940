#pragma once
// Reduce-scatter and all-gather in log2 n rounds (rounded up), and all-reduce, which is one after the other. They move
// no more than direct blocks or a ring (J. L. Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms",
// 2024, arXiv 2410.14234). For many members: n-1 messages of each member would each move little. Pure functions.

#include "treadle/core/group/shape.h"

namespace treadle::group {

// All need at least two members; there may be any number. Blocks have any sizes, which all members know. They are
// numbered from the member's own on, around the ranks.

// A round sends the upper half of the blocks that the member still has sums of to one peer, and adds what comes from
// another peer to the lower blocks, until the member has the whole sum of its own block. The input is all blocks, the
// output this member's block. Partial sums lie in scratch memory, which has room for the blocks of half of the
// members, rounded up.
Plan circulantReduceScatter(const Shape& shape);

// The same rounds backwards: a round sends the lower blocks to the peer from which their sums would have come, and gets
// the upper ones. The input is this member's block, the output all blocks.
Plan circulantAllGather(const Shape& shape);

// In place. The partial sums lie in the output, which the second half fills.
Plan circulantAllReduce(const Shape& shape);

}  // namespace treadle::group
