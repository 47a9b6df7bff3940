#pragma once
// What a program says when it joins a job. Plain values with defaults; `validate` before use.

#include <optional>
#include <string>

#include "treadle/core/cluster/launch.h"
#include "treadle/core/cluster/membership.h"
#include "treadle/core/link/channels.h"
#include "treadle/core/rpc/functions.h"

namespace treadle {

struct JoinOptions {
  std::string name = {};                             // unique in the job; [A-Za-z0-9_.:-], at most 127 characters
  Functions functions = {};                          // what peers may call here, and the names of what is called there
  std::optional<Launch> launch = {};                 // default: Launch::detect()
  Duration rpcTimeout = std::chrono::seconds(60);    // of a call that says nothing else, from its start to its answer
  Duration joinTimeout = std::chrono::seconds(300);  // for all workers to come
  // A peer of whom nothing is heard for so long is lost; at least 100 ms. All workers of a job should have the
  // same: a worker sends heartbeats five times in its own `lostAfter`. A killed process is noticed at once, by its
  // sockets.
  Duration lostAfter = std::chrono::seconds(5);
  // Allows addresses beyond this host's loopback, for the master's address and for `listenAddress`, which is to be one
  // of this host's that the others reach. Links are not encrypted yet: who is on the way reads and changes every byte.
  // The job key still keeps strangers out, and has to be given (TREADLE_JOB_KEY).
  bool insecure = false;
  // Loopback and UNIX addresses only, unless `insecure`.
  std::optional<std::string> listenAddress = {};  // "tcp://127.0.0.1:0", "unix:name"; default: both, peers prefer UNIX
  // What may be used of the ways to the peers. Default: what TREADLE_CHANNELS in the environment says ("tcp,lanes"),
  // else all. Workers of one job may differ.
  std::optional<Channels> channels = {};
  int maxRunning = 0;                 // handlers that run at a time; 0: as many as there are cores, at least 2
  int maxBlocked = 1024;              // handlers that wait at a time; each costs a thread
  size_t sendLimitBytes = 64U << 20;  // queued for a peer that reads slowly
  // Requests to one peer that it has not answered: calls beyond it wait. As much is taken of one peer, and what is
  // beyond that refused. The same in the whole job. What is still on its way comes on top: one message as a rule, at
  // most as much again and one message.
  size_t unansweredLimitBytes = size_t{1} << 30;
  wire::FrameLimits messageLimits = {};  // what one message may hold; the same in the whole job
  // Memory for tensors that is faulted in ahead, in the background, by the first worker of a process, so that the first
  // tensors travel as fast as later ones. Default: 64 MiB for a worker with tensors (treadle::join), else none.
  std::optional<size_t> prefaultBytes = {};
  // Blocks for tensors that this process has, in use and kept for later; the lowest that any of its workers asked for
  // counts, for good. Beyond it tensors travel through sockets and ordinary memory. Default: half of the machine's
  // memory, or the container's.
  std::optional<size_t> memoryLimitBytes = {};
  // How long a waiting caller looks for its answer, yielding, before it sleeps; not at all while all cores are busy.
  // Unless it is 0, a worker that is told that a message of 512 KiB to 8 MiB is being copied looks for it for up to 1
  // ms.
  Duration spin = std::chrono::microseconds(50);
  // The same for the thread that waits for requests, from the last one on: it keeps a core busy for that long, and
  // saves the next caller the time that waking it takes. For servers on cores of their own.
  Duration busyPoll = Duration::zero();

  // InvalidArgument naming the option and its value.
  Status validate() const;
  // `channels`, or its default. InvalidArgument for a TREADLE_CHANNELS that names others.
  Result<Channels> channelsToUse() const;
};

// What limits a graceful shutdown besides the life of the peers.
// No limit by default: a job is over when the slowest worker is done, and one that dies ends the wait anyway.
struct ShutdownOptions {
  Duration timeout = kWhilePeerLives;
};

}  // namespace treadle
