#pragma once
// What a group needs to see of a job. The worker implements it, so that this room does not need the worker's; any
// thread may call it, for as long as the job lives.

namespace treadle::group {

class GroupService;

class Job {
 public:
  virtual ~Job() = default;
  virtual GroupService& groups() = 0;  // this worker's service; lives as long as the job
};

}  // namespace treadle::group
