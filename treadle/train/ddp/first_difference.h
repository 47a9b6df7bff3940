#pragma once
// Finds the first line of a list that is not the same on all members of a group. A function without state; used as the
// group is.

#include <optional>
#include <string>
#include <vector>

#include "treadle/core/group/group.h"

namespace treadle::ddp {

// Every member calls it, with its own lines. Nothing if all have the same. Otherwise the text, which is the same on all
// members, says which ranks have which line there: "rank 0 has A; ranks 1, 2 have B".
//
// Sends a hash of 24 bytes to each member. If these differ, the members halve the list until they have found the line:
// 16 bytes each time, and the first 480 bytes of the line with its hash at the end. Throws what the group's operations
// throw.
std::optional<std::string> firstDifference(const ProcessGroup& group, const std::vector<std::string>& lines);

}  // namespace treadle::ddp
