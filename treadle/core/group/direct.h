#pragma once
// Direct exchange: members send to each other without going through a third, in one or two steps. Pure functions.

#include "treadle/core/group/shape.h"

namespace treadle::group {

// All need at least two members. All reductions are by rank, and those of 16-bit floats are rounded once.

// Chunks that may be under way on each channel: twice a ring's for all others together. So what is under way, and kept,
// grows with the group only above 17 members.
uint64_t directWindow(int size);

// All-reduce in two steps (reduce-scatter and all-gather by direct exchange: E. Chan et al., "Collective communication:
// theory, practice, and experience", 2007). Each member combines one block: all others send it their elements of the
// block, and it sends them the result. That moves as many bytes as a ring, 2 (n-1)/n times the data, and brings the
// values of all members to one place. There they are reduced by rank, so that the bits depend neither on how data is
// cut nor on who was first. A member keeps at most a window of chunks from each other one.
Plan directAllReduce(const Shape& shape);

// The same, but only the root gets the results, in its output. Each member sends its data once, the root (n-1)/n of it.
Plan directReduce(const Shape& shape);

// The first step alone: the output is this member's block. Each member sends (n-1)/n of its data.
Plan directReduceScatter(const Shape& shape);

// The second step alone: the input is this member's block, the output all blocks. Each member sends its block n-1
// times.
Plan directAllGather(const Shape& shape);

// The root's output gets the blocks that are the others' inputs; the root's input is cut into the others' outputs.
Plan directGather(const Shape& shape);
Plan directScatter(const Shape& shape);

// Block m of the input goes to the member m, into the block of its output that is this member's.
Plan directAllToAll(const Shape& shape);

// Small data in one step, which sends (n-1) times the data: the one chunk of each channel travels with the start of the
// operation, before anything is taken. Needs starts from each to each, so at most 16 members (kMostAllToAll), and data
// of at most GroupOptions::smallBytes. So do gather, scatter, all-gather, reduce-scatter and all-to-all by exchange,
// whose plans are the direct ones.
Plan exchangeAllReduce(const Shape& shape);  // reduced by rank, as above
Plan exchangeReduce(const Shape& shape);
Plan exchangeBroadcast(const Shape& shape);

}  // namespace treadle::group
