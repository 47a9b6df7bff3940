#pragma once
// What `treadle run` prepares for a job before its workers start: the port of the master, the key, the
// variables of each worker. Free functions; one thread.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/core/io/fd.h"

namespace treadle::cli {

// A TCP port of 127.0.0.1 that is ours until the socket is closed. See Note [Master port].
struct ReservedPort {
  io::Fd socket;
  uint16_t port = 0;
};

// `wanted`, or any free port for 0. FailedPrecondition when `wanted` is in use.
Result<ReservedPort> reservePort(uint16_t wanted);

// 32 random bytes from the kernel, in hexadecimal, as a file without a name that workers inherit.
struct JobKey {
  std::string key;
  io::Fd file;
  std::string text;  // for cluster::kJobKeyDescriptor
};
Result<JobKey> makeJobKey();

struct WorkerPlace {
  int rank = 0, worldSize = 1, servers = 0;
  uint16_t masterPort = 0;
  std::string jobKey;        // "descriptor:inode", see cluster/job_key.h
  std::string statusSocket;  // "descriptor:inode", see cluster/status_socket.h
  bool terminal = false;     // what it writes to standard output is shown on a terminal
  size_t columns = 0;        // how wide a line may be there
};

// Where rank 0 listens, as host:port.
std::string masterAt(uint16_t port);

std::vector<std::pair<std::string, std::string>> environmentOf(const WorkerPlace& place);

}  // namespace treadle::cli
