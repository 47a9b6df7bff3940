#include "treadle/train/ddp/ddp_state.h"

#include "treadle/core/group/group_core.h"
#include "treadle/train/ddp/reducer.h"

namespace treadle::ddp {

DdpState Reducer::state() {
  const Status failure = group_.core().failure();
  MutexLock lock(mutex_);
  if (failure.ok() && apart_.ok()) return {};
  if (failure.ok()) return {.condition = DdpCondition::kApart, .reason = apart_.message()};
  return {.condition = progress_.isTorn ? DdpCondition::kTorn : DdpCondition::kGroupLost,
          .reason = failure.message(),
          .lostWorker = failure.code() == Code::kPeerLost ? failure.worker() : std::string()};
}

}  // namespace treadle::ddp
