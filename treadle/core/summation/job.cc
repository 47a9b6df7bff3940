#include "treadle/core/summation/job.h"

#include "treadle/core/base/error.h"

namespace treadle::summation {

Job& jobOf(const group::ProcessGroup& group) {
  auto* job = dynamic_cast<Job*>(&group.job());
  if (job == nullptr) raise(failedPrecondition("the job of this group has no summation services"));
  return *job;
}

}  // namespace treadle::summation
