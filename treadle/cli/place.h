#pragma once
// Where `treadle doctor`, `treadle bench` and `treadle plan --measure` take part: in the job that a launcher's
// variables describe, or in one of two processes on this machine, the other of which is started here and ends with this
// one. One thread.

#include <optional>
#include <string>
#include <vector>

#include "treadle/cli/worker_environment.h"
#include "treadle/core/base/clock.h"
#include "treadle/core/cluster/launch.h"
#include "treadle/core/io/process.h"

namespace treadle::cli {

class Place {
 public:
  // `arguments`: those with which this program does the same as a worker of a job.
  static Result<Place> find(const std::vector<std::string>& arguments);

  const Launch& launch() const { return launch_; }
  bool startedOther() const { return other_.has_value(); }
  // Waits until the process that was started here has ended, at most until the deadline; the rest is killed when this
  // object goes. What it wrote to standard error meanwhile: its own words on why it failed.
  std::string awaitOther(TimePoint deadline);

 private:
  Launch launch_;
  ReservedPort port_;
  std::optional<io::Process> other_;
};

}  // namespace treadle::cli
