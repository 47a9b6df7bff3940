#pragma once
// Which algorithm does an operation. Pure function: all members choose the same one.

#include "treadle/core/group/messages.h"
#include "treadle/core/group/plan.h"

namespace treadle::group {

// The plan of the member `self` of `size`, at least 2.
Plan planOf(const Description& description, int size, int self);

}  // namespace treadle::group
