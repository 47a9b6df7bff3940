#include "treadle/train/ddp/operations.h"

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

}  // namespace treadle::ddp
