#pragma once
// The socket between `treadle run` and each worker that it starts (docs/protocol/rendezvous.md, "The status socket"). A
// worker reports its name and why it ends; the launcher reports which worker of the job ended first, so that those that
// still join do not wait for it. Free functions and plain values; any thread. Nothing here waits or fails: under
// another launcher, or when the other end is gone, the functions do nothing.

#include <optional>
#include <string>
#include <string_view>

#include "treadle/core/cluster/launch.h"

namespace treadle::cluster {

// The variable through which the launcher hands over the socket: its descriptor and its inode ("7:88231"), so that a
// descriptor that came to mean something else is left alone.
inline constexpr const char* kStatusVariable = "TREADLE_STATUS_FD";
inline constexpr size_t kMaxNameLength = 127;  // the longest name that a worker may have

// ---- from a worker to the launcher

// Reports the worker's name, so that the launcher can name it when it is lost.
void tellLauncher(const std::string& name);
// Reports that this worker ends the job by a failure of its own, before the others can end over that: the order of the
// ends alone does not show which worker failed first.
void tellLauncherOfFailure();
// Reports that this worker ends because of another one: its end is never the first failure of the job.
void tellLauncherOfGivingUp();

// The launcher's side: whether a message reports the one or the other, else the name in it, or nothing when it is not
// one that a worker may have.
bool tellsFailure(std::string_view message);
bool tellsGivingUp(std::string_view message);
std::string nameFromMessage(std::string_view message);

// ---- from the launcher to a worker

// Which worker of a job ended first, and how. The reader's rank, the world size and the master say which job: a process
// may take part in others too.
struct FirstEnd {
  int reader = 0, worldSize = 1;
  std::string master;  // host:port
  int rank = 0;
  std::string name;  // empty: not known
  std::string how;   // "was killed by SIGKILL"

  bool operator==(const FirstEnd&) const = default;
};
std::string encodeFirstEnd(const FirstEnd& end);
// Nothing for a message that no launcher writes.
std::optional<FirstEnd> parseFirstEnd(std::string_view message);

// Whether the end of another worker may be what is behind this failure of a join.
bool mayBeConsequence(const Status& why);

// What the launcher reports to a worker that joins. The report stays in the socket: a second join of the process, which
// cannot succeed either, finds it there.
class LauncherWatch {
 public:
  explicit LauncherWatch(const Launch& launch);

  // Can be read when the launcher may have reported; -1 when no launcher does.
  int fd() const { return fd_; }
  // Whether the launcher has reported that a worker of this job ended.
  bool ended() const { return firstEnd().has_value(); }
  // `why`; or PeerLost naming the worker that ended first, if that may be behind it.
  Status causeOf(const Status& why) const;

 private:
  std::optional<FirstEnd> firstEnd() const;

  const int rank_, worldSize_;
  const std::string master_;
  const int fd_;
};

}  // namespace treadle::cluster
