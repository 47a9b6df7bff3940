#pragma once
// The options of a worker, given when it joins a job. Plain values with defaults; call `validate` before use.

#include <optional>
#include <string>

#include "treadle/core/cluster/launch.h"
#include "treadle/core/cluster/membership.h"
#include "treadle/core/link/channels.h"
#include "treadle/core/rpc/functions.h"

namespace treadle {

// Which TCP links use TLS 1.3. Applies when there is a job key or there are certificates.
enum class TlsUse {
  kBeyondLoopback,  // links to addresses beyond this host's loopback, unless `allowPlaintext`
  kAlways,          // all TCP links
};

// PEM files. Both ends of a link present their certificates and verify them; names in certificates are not compared.
struct Certificates {
  std::string certificate;  // this worker's, then its issuers'; an extended key usage must allow client and server
  std::string privateKey;
  std::string authority;  // issuer of all workers' certificates
};

struct JoinOptions {
  // Unique in the job; [A-Za-z0-9_.:-], at most 127 characters. Default: "worker", or "server" for a server, and the
  // rank, such as "worker0". A worker of an open job has no rank yet and needs a name.
  std::string name = {};
  Functions functions = {};                          // functions offered to peers, and names of functions called there
  std::optional<Launch> launch = {};                 // default: Launch::detect()
  Duration rpcTimeout = std::chrono::seconds(60);    // default limit of a call, from its start to its answer
  Duration joinTimeout = std::chrono::seconds(300);  // until all workers have joined
  // A peer that is silent for this long counts as lost; 100 ms to 24 h. All workers of a job should use the same value:
  // a worker sends 5 heartbeats per its own `heartbeatTimeout`. A killed process is noticed at once, by its sockets.
  Duration heartbeatTimeout = std::chrono::seconds(5);
  // Links to addresses beyond this host's loopback are not encrypted: anyone on the network path can read and change
  // every byte. A job key is still required (TREADLE_JOB_KEY) and keeps strangers out. Use the same value in the whole
  // job, as for `tls`.
  bool allowPlaintext = false;
  // Default: TREADLE_TLS from the environment ("always"), else kBeyondLoopback.
  std::optional<TlsUse> tls = {};
  // Workers prove their identity by these in TLS, in place of the job key. If there is a job key too, both are
  // required. Default: the files that TREADLE_TLS_CERTIFICATE, TREADLE_TLS_PRIVATE_KEY and TREADLE_TLS_AUTHORITY name,
  // if any.
  std::optional<Certificates> certificates = {};
  // Where this worker listens: "tcp://10.0.0.7:0", "unix:name". Beyond the loopback it requires a job key or
  // certificates. Default: a UNIX socket, and TCP on the loopback or, if the master is beyond it, at the address by
  std::optional<std::string> listenAddress = {};  // which this host reaches the master. A meeting file: the loopback
  // The address that peers dial in place of the TCP address above, such as "tcp://203.0.113.5:4000": for a container's
  // mapped port, a router or a proxy that forwards to this worker. `listenAddress` may then be any address of this host
  // ("tcp://0.0.0.0:4000"). Numeric; the rules for `listenAddress` beyond the loopback apply to it too.
  std::optional<std::string> announceAddress = {};
  // The channels that this worker may use to its peers. Default: TREADLE_CHANNELS from the environment ("tcp,lanes"),
  // else all. Workers of one job may differ.
  std::optional<Channels> channels = {};
  int maxConcurrentHandlers = 0;      // handlers that run at the same time; 0: number of cores, at least 2
  int maxBlockedHandlers = 1024;      // handlers that wait at the same time; each costs a thread
  size_t maxQueuedBytes = 64U << 20;  // queued for a peer that reads slowly
  // Bytes of unanswered requests per peer. Over this limit, calls to that peer wait, and requests from it are rejected.
  // Use the same value in the whole job. Requests that are still being received are not counted: usually one message,
  // at most the limit once more and one message.
  size_t maxInFlightBytes = size_t{1} << 30;
  // References to this worker's values that each peer may hold. Requests and answers that would create more fail with
  // ResourceExhausted; a peer that holds more than twice as many is disconnected. So is a peer when more than one and a
  // half times as many references to other workers' values, given by it, are held here. A reference takes about 200
  // bytes.
  size_t referenceLimit = size_t{1} << 22;
  wire::FrameLimits messageLimits = {};  // limits of one message; same in the whole job
  // Memory for tensors that the first worker of a process faults in ahead, in the background, so that the first tensors
  // travel as fast as later ones. Default: 64 MiB for a worker with tensors (treadle::join), else none.
  std::optional<size_t> prefaultBytes = {};
  // Keeps the memory of libtorch's CPU tensors of 64 KiB and more when they are freed, within `memoryLimitBytes`: fresh
  // memory costs more than most operations on it. Memory that is unused for 10 s returns to the system. Applies to the
  // whole process, from the join of its first worker that sets it. Other threads should not make tensors at that
  // moment, because libtorch does not lock its allocator. Default: true for a worker with tensors (treadle::join).
  std::optional<bool> warmMemory = {};
  // Limit of this process's blocks for tensors that travel and of its warm memory together, in use and kept for later;
  // the lowest limit of its workers applies, for good. Beyond it tensors travel through sockets and ordinary memory.
  // Default: half of the machine's memory, or of the container's.
  std::optional<size_t> memoryLimitBytes = {};
  // How long a waiting caller polls for its answer, yielding, before it sleeps; it does not poll while all cores are
  // busy. If this is not 0, a worker also polls for up to 1 ms when its peer announces that it is copying a message of
  // 512 KiB to 8 MiB.
  Duration spinTimeout = std::chrono::microseconds(50);
  // The same for the thread that waits for requests, counted from the last event on its sockets. It keeps a core busy
  // for that long, and saves the next caller the wake-up time. For servers on dedicated cores.
  Duration serverSpinTimeout = Duration::zero();

  // InvalidArgument naming the option and its value.
  Status validate() const;
  // `channels`, or its default. InvalidArgument when Channels::parse rejects TREADLE_CHANNELS.
  Result<Channels> channelsToUse() const;
  // The same for `tls`. InvalidArgument when TREADLE_TLS is neither "always" nor "auto".
  Result<TlsUse> tlsToUse() const;
  std::optional<Certificates> certificatesToUse() const;
};

// Options of a graceful shutdown. No time limit by default: a job is over when the slowest worker is done, and the loss
// of a worker ends the wait anyway.
struct ShutdownOptions {
  Duration timeout = kNoTimeout;
};

}  // namespace treadle
