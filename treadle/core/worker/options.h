#pragma once
// What a program says when it joins a job. Plain values with defaults; `validate` before use.

#include <optional>
#include <string>

#include "treadle/core/cluster/launch.h"
#include "treadle/core/cluster/membership.h"
#include "treadle/core/link/channels.h"
#include "treadle/core/rpc/functions.h"

namespace treadle {

// Which TCP links are TLS 1.3, once there is a job key or there are certificates.
enum class TlsUse {
  kBeyondLoopback,  // those to addresses that are not of this host's loopback, unless `insecure`
  kAlways,          // all
};

// PEM files. Both ends of a link show each other theirs and check them; names in them are not compared with anything.
struct Certificates {
  std::string certificate;  // this worker's, and those it was issued by; for clients and servers if it says for whom
  std::string privateKey;
  std::string authority;  // that all workers' certificates come from
};

struct JoinOptions {
  // Unique in the job; [A-Za-z0-9_.:-], at most 127 characters. Default: "worker" and the rank, "worker0"; a worker of
  // an open job has no rank yet and needs a name.
  std::string name = {};
  Functions functions = {};                          // what peers may call here, and the names of what is called there
  std::optional<Launch> launch = {};                 // default: Launch::detect()
  Duration rpcTimeout = std::chrono::seconds(60);    // of a call that says nothing else, from its start to its answer
  Duration joinTimeout = std::chrono::seconds(300);  // for all workers to come
  // A peer of whom nothing is heard for so long is lost; at least 100 ms. All workers of a job should have the
  // same: a worker sends heartbeats five times in its own `lostAfter`. A killed process is noticed at once, by its
  // sockets.
  Duration lostAfter = std::chrono::seconds(5);
  // Links to addresses beyond this host's loopback in clear text: who is on the way reads and changes every byte. The
  // job key still keeps strangers out, and has to be given (TREADLE_JOB_KEY). The same in the whole job, as `tls`.
  bool insecure = false;
  // Default: what TREADLE_TLS in the environment says ("always"), else beyond the loopback.
  std::optional<TlsUse> tls = {};
  // What workers prove themselves with in TLS, in place of the job key, which is asked for besides if there is one.
  // Default: the files that TREADLE_TLS_CERTIFICATE, TREADLE_TLS_PRIVATE_KEY and TREADLE_TLS_AUTHORITY name, if any.
  std::optional<Certificates> certificates = {};
  // Where the others reach this worker. Beyond the loopback a job key or certificates are needed, and for a master's
  // address there this option is.
  std::optional<std::string> listenAddress = {};  // "tcp://127.0.0.1:0", "unix:name"; default: both, peers prefer UNIX
  // What the others are told to connect to in place of the TCP address above, "tcp://203.0.113.5:4000": where a
  // container's mapped port, a router or a proxy leads from there to here. Then `listenAddress` may be any of this
  // host's ("tcp://0.0.0.0:4000"). In numbers; what holds of `listenAddress` beyond the loopback
  // holds of it.
  std::optional<std::string> announceAddress = {};
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
  // References to values of this worker that each of the others may hold; requests and answers that make more of them
  // fail with ResourceExhausted, and a peer that goes on to twice as many is cut off. So is one that has given this
  // worker half as many again, of anybody's values, which are held here. Each takes about 200 bytes.
  size_t referenceLimit = size_t{1} << 22;
  wire::FrameLimits messageLimits = {};  // what one message may hold; the same in the whole job
  // Memory for tensors that is faulted in ahead, in the background, by the first worker of a process, so that the first
  // tensors travel as fast as later ones. Default: 64 MiB for a worker with tensors (treadle::join), else none.
  std::optional<size_t> prefaultBytes = {};
  // libtorch's CPU tensors of 64 KiB and more lie in memory that is kept when they are freed, within
  // `memoryLimitBytes`, and returned to the system when nobody has needed it for 10 s: fresh memory costs more than
  // most operations on it. For the whole process, from the join of its first worker that wants it: other threads should
  // not make tensors at that moment, as libtorch does not lock its allocator. Default: true for a worker with tensors
  // (treadle::join).
  std::optional<bool> warmMemory = {};
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
  // Likewise. InvalidArgument for a TREADLE_TLS that is neither "always" nor "auto".
  Result<TlsUse> tlsToUse() const;
  std::optional<Certificates> certificatesToUse() const;
};

// What limits a graceful shutdown besides the life of the peers.
// No limit by default: a job is over when the slowest worker is done, and one that dies ends the wait anyway.
struct ShutdownOptions {
  Duration timeout = kWhilePeerLives;
};

}  // namespace treadle
