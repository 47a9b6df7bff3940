#pragma once
// What an operation by one algorithm moves, counted from the plans of all members (prediction.h has closed forms).
// Pure; makes the plans of all members, so for tools and tests.

#include "treadle/core/group/messages.h"
#include "treadle/core/group/placement.h"

namespace treadle::group {

struct Cost {
  uint64_t messages = 0;  // starts and chunks, without acknowledgements: of the member that sends most
  uint64_t bytes = 0;     // of data: of the member that sends most
  uint64_t steps = 0;     // messages that wait for one another, in the longest such chain: agreement, then transfers
  uint64_t allMessages = 0, allBytes = 0;  // as above, of all members together
};

// With the algorithm in the description, which serves it, among at least 2 members. The elements of an all-to-all are
// those that one member sends in all. Blocks are as even as possible.
Cost costOf(const Description& what, const Placement& placement);

}  // namespace treadle::group
