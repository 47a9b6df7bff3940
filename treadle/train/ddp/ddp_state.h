#pragma once
// What is left of data-parallel training after a failure: what DistributedDataParallel::state() returns. A value; any
// thread.
//
// Note [After a failed pass]
// On the rank where an averaged pass fails, whether a worker was lost or something else has gone wrong:
// * the parameters, and with them the state of the optimizer, are those before the pass, as averaging changes none.
//   DdpOptions::optimizerInBackward may have stepped some of them already (kTorn);
// * `.grad` has what was there before and, added to it, this rank's own gradients, as far as the pass came. It has
//   averages where the failure comes after these were put, from CommHook::passAveraged or from another callback of the
//   pass. After a distributed pass, `.grad` and the context have what was there before;
// * buffers are this rank's own, and what a hook holds back is what it was before the pass;
// * the module is usable: forward, passes under noSync(), saving its parameters.
// Other ranks may have got the averages of that pass and stepped, so ranks may be one step apart. Then the next
// averaged pass fails with StateError on all ranks, and names the one that is behind (kApart).

#include <string>

namespace treadle {

enum class DdpCondition {
  kUsable,  // passes are averaged
  // The group has failed for good: a worker was lost, this one has left, or a rank could not end an averaged pass.
  // Averaged passes throw; DistributedDataParallel::rebind goes on with another group.
  kGroupLost,
  // The same, and DdpOptions::optimizerInBackward has stepped some parameters of this rank, and others not. rebind
  // takes the values of a rank that is not torn.
  kTorn,
  // Averaged passes have failed on some ranks and gone well on others, so some have made a step more. Averaged passes
  // throw, on all ranks; DistributedDataParallel::rebind gives all the values of one, and goes on with a new group.
  kApart,
};

struct DdpState {
  DdpCondition condition = DdpCondition::kUsable;
  std::string reason = {};      // unless it is usable: one sentence
  std::string lostWorker = {};  // the first one, if the group has failed because workers were lost
};

}  // namespace treadle
