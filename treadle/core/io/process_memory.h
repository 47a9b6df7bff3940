#pragma once
// The memory of another process on this host, to be read: cross-memory attach (process_vm_readv(2)). Plain value; any
// thread. Budget of a read: one system call, unless it is interrupted.

#include <sys/types.h>

#include <cstdint>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/status.h"

namespace treadle::io {

class ProcessMemory {
 public:
  explicit ProcessMemory(pid_t pid) : pid_(pid) {}
  // Of who is at the other end of a UNIX socket. FailedPrecondition when the system does not tell: a process of another
  // PID namespace.
  static Result<ProcessMemory> ofPeer(int socket);

  // Reads `to.size()` bytes from `address` on. FailedPrecondition when this process may not read that one, with what to
  // do about it; DataLoss when there is no memory there; PeerLost when there is no such process.
  Status read(uint64_t address, MutableBytes to) const;

 private:
  pid_t pid_;
};

}  // namespace treadle::io
