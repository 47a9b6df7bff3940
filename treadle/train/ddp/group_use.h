#pragma once
// A group is for one averaged pass at a time. Members match the operations of a group by their number, kind and size,
// so where two passes run at once, and begin theirs in another order on another rank, each module would get averages of
// the other. A function without state of its own; any thread.

#include <memory>

#include "treadle/core/group/group.h"

namespace treadle::ddp {

// The group is in use as long as the result lives. StateError: it is in use in this process already.
std::shared_ptr<void> useGroup(const ProcessGroup& group);

}  // namespace treadle::ddp
