#pragma once
// The operations of a group that a pass has begun, in their order, and the end of a group whose ranks are not in step
// any more. Functions without state; any thread.

#include <string>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/core/group/group.h"
#include "treadle/core/io/future.h"

namespace treadle::ddp {

using Operations = std::vector<Future<void>>;

// Blocks until each has ended, well or badly; the group's timeout limits each. Not OK: this thread must not wait.
Status waitForEnd(const Operations& operations);
// All have ended.
Status firstFailure(const Operations& operations);
// A failure that is there stays.
void keepFirst(Status& failure, Status another);

// Fails all operations of the group on all ranks, with the reason and the remedy: "worker 'rank1' <why>, so group ...
// is of no use any more ...". It is a StateError, or a PeerLostError if that was the cause: an operation may notice a
// loss before the group does, and all ranks learn which worker it was.
void abandonGroup(const ProcessGroup& group, const std::string& why, const Status& cause = {});

}  // namespace treadle::ddp
