#pragma once
// Direct exchange: each member sends to each other one, in one or two steps. Pure functions.

#include "treadle/core/group/shape.h"

namespace treadle::group {

// All-reduce in two steps (reduce-scatter and all-gather by direct exchange: E. Chan et al., "Collective communication:
// theory, practice, and experience", 2007). Each member combines one block: all others send it their elements of the
// block, and it sends them the result. That moves as many bytes as a ring, 2 (n-1)/n times the data, and brings the
// values of all members to one place. There they are reduced by rank, so that the bits depend neither on how data is
// cut nor on who was first. A member keeps at most a window of chunks from each other one.
Plan directAllReduce(const Shape& shape);

// Small data in one step, which sends (n-1) times the data: the one chunk of each channel travels with the start of the
// operation, before anything is taken.
Plan exchangeAllReduce(const Shape& shape);  // reduced by rank, as above
Plan exchangeBroadcast(const Shape& shape);

}  // namespace treadle::group
