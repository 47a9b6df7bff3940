#include "treadle/train/ddp/operations.h"

#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/core/group/group_core.h"

namespace treadle::ddp {

Status waitForEnd(const Operations& operations) {
  for (const Future<void>& operation : operations)
    TREADLE_RETURN_IF_ERROR(sharedStateOf(operation)->waitUntil(kNever).status());
  return {};
}

Status firstFailure(const Operations& operations) {
  for (const Future<void>& operation : operations) TREADLE_RETURN_IF_ERROR(sharedStateOf(operation)->result().status());
  return {};
}

void keepFirst(Status& failure, Status another) {
  if (failure.ok()) failure = std::move(another);
}

void abandonGroup(const ProcessGroup& group, const std::string& why, const Status& cause) {
  group::GroupCore& core = group.core();
  std::string text = core.link().nameOf(group.rank()) + " " + why + ", so " + core.text() +
                     " is of no use any more, and ranks may be one step apart: make a new group and call rebind() of "
                     "DistributedDataParallel with it, or load the last checkpoint, on all ranks";
  core.abandon(cause.code() == Code::kPeerLost ? peerLost(cause.worker(), std::move(text))
                                               : failedPrecondition(std::move(text)));
}

}  // namespace treadle::ddp
