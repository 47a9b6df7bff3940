#pragma once
// The operations of a group that a pass has begun, in their order. Functions without state; any thread.

#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/core/io/future.h"

namespace treadle::ddp {

using Operations = std::vector<Future<void>>;

// Blocks until each has ended, well or badly; the group's timeout limits each. Not OK: this thread must not wait.
Status waitForEnd(const Operations& operations);
// All have ended.
Status firstFailure(const Operations& operations);

}  // namespace treadle::ddp
