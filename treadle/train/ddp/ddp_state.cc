#include "treadle/train/ddp/ddp_state.h"

#include "treadle/core/group/group_core.h"
#include "treadle/train/ddp/reducer.h"

namespace treadle::ddp {

DdpState Reducer::state() {
  const Status failure = group_.core().failure();
  if (failure.ok()) return {};
  MutexLock lock(mutex_);
  return {.condition = progress_.isTorn ? DdpCondition::kTorn : DdpCondition::kGroupLost,
          .reason = failure.message(),
          .lostWorker = failure.code() == Code::kPeerLost ? failure.worker() : std::string()};
}

}  // namespace treadle::ddp
