#include "treadle/train/ddp/ddp_state.h"

#include "treadle/core/group/group_core.h"

namespace treadle::ddp {

DdpState stateOf(const ProcessGroup& group) {
  const Status failure = group.core().failure();
  if (failure.ok()) return {};
  return {.condition = DdpCondition::kGroupLost,
          .reason = failure.message(),
          .lostWorker = failure.code() == Code::kPeerLost ? failure.worker() : std::string()};
}

}  // namespace treadle::ddp
