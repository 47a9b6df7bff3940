#pragma once
// What a summation service needs to see of a job. The worker implements it; any thread may call it, for as long as the
// job lives.

#include "treadle/core/group/group.h"
#include "treadle/core/group/job.h"

namespace treadle::summation {

class Services;

class Job : public group::Job {
 public:
  virtual Services& services() = 0;  // of this worker; lives as long as the job
};

// The job of the group, which must still live. StateError: it has no summation services.
Job& jobOf(const group::ProcessGroup& group);

}  // namespace treadle::summation
