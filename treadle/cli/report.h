#pragma once
// Who failed first, and how to say it. Pure functions over what the launcher saw of each worker.
//
// A lost worker takes the others with it: they end with errors of their own within seconds. So the launcher's
// last line names the worker that failed first, and its exit code is that worker's.

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>

#include "treadle/core/base/clock.h"
#include "treadle/core/io/process.h"

namespace treadle::cli {

struct WorkerRecord {
  struct Stop {
    TimePoint at;
    int signal = 0;
  };

  int rank = 0;
  bool isServer = false;  // the others go on without it, once they have begun
  pid_t pid = -1;
  std::string name;                   // as it told; may be empty
  std::optional<io::ProcessEnd> end;  // nothing while it runs
  TimePoint endedAt;
  std::optional<TimePoint> toldFailureAt;  // when it said that it fails by itself, and not over the loss of another
  bool gaveUp = false;                     // it said that it ends because of another worker
  std::optional<Stop> stop;                // since when it has been stopped, or was when it ended
  int sentSignal = 0;                      // the signal by which the launcher asked it to end, if it did before the end
};

// The index of the worker that failed first; nothing when none failed by itself. See Note [First failure].
std::optional<size_t> firstFailure(std::span<const WorkerRecord> workers);

// "rank 2 (trainer0, pid 1234)"
std::string identify(const WorkerRecord& worker);

// "was killed by SIGKILL", "ended with exit code 1 because of another worker", "was stopped by SIGSTOP"
std::string howItEnded(const WorkerRecord& worker);
// The end of its process alone: "ended with exit code 1".
std::string endOf(const WorkerRecord& worker);

// "rank 2 (trainer0, pid 1234) was killed by SIGKILL first; ranks 0, 1 and 3 then ended with exit code 1"
std::string describeFailure(std::span<const WorkerRecord> workers, size_t first);

// As a shell reports it: the exit code, or 128 + the signal.
int exitCodeOf(const WorkerRecord& worker);

// "rank 3", "ranks 0, 1 and 3"; runs of four and more as "0-5".
std::string rankList(const std::vector<int>& ranks);

}  // namespace treadle::cli
