#pragma once
// What a worker is told by whoever started it: its rank, how many workers there are, where to meet and the
// job's secret. A plain value, read once at the start of a program; any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "treadle/core/base/status.h"

namespace treadle::cluster {

// In place of the size of a world that has none, and of a rank that the job will give out.
inline constexpr int kOpenWorld = -1, kAnyRank = -1;

// A plain value; `Worker::join` validates it. Set it by hand (JoinOptions::launch) to put several workers
// into one process or to start them in a way of your own.
struct Launch {
  int rank = 0;
  // kOpenWorld: workers join and leave at run time, and who comes has kAnyRank or begins with rank 0.
  int worldSize = 1;
  std::string masterAddress;  // host name or IP address of the worker with rank 0
  uint16_t masterPort = 0;    // where rank 0 listens for the others
  std::string jobKey;  // secret that the job's workers share; empty: none. Never log it, never put it in an error
  // Tells this job from others of its launcher, which gave it no port of its own: then masterPort may be somebody
  // else's, and rank 0 listens at one of a few ports that follow from this name. Empty: at masterPort.
  std::string job = {};

  // Where all can read and write the same files: rank 0 writes here where it listens, in place of `masterAddress` and
  // `masterPort`. Absolute path of a file that need not be there; empty: none.
  std::string meetingFile = {};

  bool open() const { return worldSize == kOpenWorld; }

  // Reads the environment: the variables of `treadle run` (TREADLE_RANK, TREADLE_WORLD_SIZE,
  // TREADLE_MASTER=host:port or file:///path; for an open job "open" as the world size, and "any" as the rank of all
  // but the first), or of torchrun, Slurm, Open MPI, MPICH and others (launchers.h), and where workers share a secret
  // TREADLE_JOB_KEY_FD, TREADLE_JOB_KEY_FILE or TREADLE_JOB_KEY (job_key.h). FailedPrecondition when there is none or
  // one is missing, InvalidArgument naming variable and value.
  static Result<Launch> detect();

  // InvalidArgument for what no job can have: a rank outside of the world, no address, port 0, a short key.
  Status validate() const;

  // Where rank 0 listens, at the first of these that is free. Others may listen at the rest: whoever dials makes sure
  // of the job by its secret. 0, any port, where the meeting file tells the others.
  std::vector<uint16_t> meetingPorts() const;
  // A short text that no other job of this host has.
  std::string meetingName() const;
  // What the workers prove to know: the key, made this job's own. Empty without a key.
  std::string secret() const;
};

// Bounds of what is believed: far above any real job, far below what would hurt.
inline constexpr int kMaxWorldSize = 65'536;
inline constexpr size_t kMinJobKeyLength = 16, kMaxJobKeyLength = 1'024;

}  // namespace treadle::cluster

namespace treadle {
using cluster::kAnyRank;
using cluster::kOpenWorld;
using cluster::Launch;
}  // namespace treadle
