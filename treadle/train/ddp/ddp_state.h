#pragma once
// What is left of data-parallel training after a failure: what DistributedDataParallel::state() returns. A value; any
// thread.
//
// Note [After a failed pass]
// On the rank where an averaged pass fails, whether a worker was lost or something else has gone wrong:
// * the parameters, and with them the state of the optimizer, are those before the pass, as averaging changes none;
// * `.grad`, or the context, has what was there before and, added to it, this rank's own gradients, as far as the pass
//   came. It has averages where the failure comes after these were put, from CommHook::passAveraged or from another
//   callback of the pass;
// * buffers are this rank's own, and what a hook holds back is what it was before the pass;
// * the module is usable: forward, passes under noSync(), saving its parameters.
// Other ranks may have got the averages of that pass and stepped, so ranks may be one step apart.

#include <string>

#include "treadle/core/group/group.h"

namespace treadle {

enum class DdpCondition {
  kUsable,  // passes are averaged
  // The group has failed for good: a worker was lost, or a rank could not end an averaged pass. Averaged passes throw;
  // DistributedDataParallel::rebind goes on with another group.
  kGroupLost,
};

struct DdpState {
  DdpCondition condition = DdpCondition::kUsable;
  std::string reason = {};      // of kGroupLost, in one sentence
  std::string lostWorker = {};  // its name, if the group has failed because a worker was lost
};

}  // namespace treadle

namespace treadle::ddp {

// As far as this worker knows now. Sends nothing.
DdpState stateOf(const ProcessGroup& group);

}  // namespace treadle::ddp
