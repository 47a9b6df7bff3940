#pragma once
// Collectives in a soak: one worker calls `takePart` on all members of a group, and each member calls the same
// operations, several at once on two groups of the same members. The arguments determine the operations and their
// results.

#include "tests/soak/handlers.h"

namespace treadle::soak {

// `members` in the order of their ranks in the first group; in the second one it is reversed. The groups are known by
// `name`: the caller ends one `takePart` of a name on all members before the next. Throws Wrong for a wrong result.
Task<void> takePart(CallContext& call, std::string name, std::vector<std::string> members, Number seed);

}  // namespace treadle::soak
