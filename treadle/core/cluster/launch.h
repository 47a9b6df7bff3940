#pragma once
// The values that the launcher passes to a worker: its rank, the number of workers, where to meet, and the job's
// secret. A plain value, read once at the start of a program; any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "treadle/core/base/status.h"

namespace treadle::cluster {

// kOpenWorld: the world has no fixed size. kAnyRank: the job assigns the rank.
inline constexpr int kOpenWorld = -1, kAnyRank = -1;

// A plain value; `Worker::join` validates it. Set it by hand (JoinOptions::launch) to put several workers into one
// process or to start them in your own way.
struct Launch {
  int rank = 0;
  // kOpenWorld: workers join and leave at run time. The first one has rank 0, the others kAnyRank.
  int worldSize = 1;
  std::string masterAddress;  // host name or IP address of the worker with rank 0
  uint16_t masterPort = 0;    // where rank 0 listens for the others
  std::string jobKey;         // the job's secret; empty: none. Never log it, never put it in an error
  // Distinguishes this job from others of its launcher, which gave it no port of its own. Another program may then use
  // masterPort, and rank 0 listens at one of a few ports derived from this name. Empty: at masterPort.
  std::string job = {};

  // A file that all workers can read and write: rank 0 writes the address where it listens, in place of `masterAddress`
  // and `masterPort`. Absolute path; the file need not exist yet. Empty: none.
  std::string meetingFile = {};

  // The number of summation servers, which have the highest ranks. An open job has none.
  int servers = 0;

  bool open() const { return worldSize == kOpenWorld; }
  int workers() const { return worldSize - servers; }  // that are no servers; of a fixed number of ranks
  bool isServer() const { return !open() && rank >= workers(); }

  // Reads the environment: the variables of `treadle run` (TREADLE_RANK, TREADLE_WORLD_SIZE, TREADLE_MASTER=host:port
  // or file:///path; in an open job the world size is "open", and the rank is "any" except for the first worker), or
  // those of torchrun, Slurm, Open MPI, MPICH and others (launchers.h). Where workers share a secret, also
  // TREADLE_JOB_KEY_FD, TREADLE_JOB_KEY_FILE or TREADLE_JOB_KEY (job_key.h),
  // and where ranks are servers, TREADLE_SERVERS. FailedPrecondition when there is no
  // launcher or a variable is missing, InvalidArgument naming variable and value.
  static Result<Launch> detect();

  // InvalidArgument for impossible values: a rank outside the world, no worker but servers, no address, port 0, a key
  // that is too short or long.
  Status validate() const;

  // The ports at which rank 0 may listen; it takes the first free one. Other programs may listen at the rest: a dialer
  // checks the job by its secret. 0 means any port; with a meeting file, rank 0 writes the port there.
  std::vector<uint16_t> meetingPorts() const;
  // A short text that no other job on this host has.
  std::string meetingName() const;
  // The secret that workers prove to know: the key, made specific to this job. Empty without a key.
  std::string secret() const;
};

// Limits of accepted values: far above any real job, far below what would do harm.
inline constexpr int kMaxWorldSize = 65'536;
inline constexpr size_t kMinJobKeyLength = 16, kMaxJobKeyLength = 1'024;

}  // namespace treadle::cluster

namespace treadle {
using cluster::kAnyRank;
using cluster::kOpenWorld;
using cluster::Launch;
}  // namespace treadle
