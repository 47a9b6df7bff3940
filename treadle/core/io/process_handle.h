#pragma once
// A process, told apart from later ones that get its number (pidfd_open(2)). Plain value that is moved; any thread.

#include "treadle/core/io/fd.h"

namespace treadle::io {

class ProcessHandle {
 public:
  ProcessHandle() = default;  // none: not valid
  // Who is at the other end of a UNIX socket. Not valid when the system does not tell: another kind of socket, a
  // process of another PID namespace, a kernel before 5.3.
  static ProcessHandle ofPeer(int socket);

  bool valid() const { return fd_.valid(); }
  // Whether none of its threads runs any more. Only of a valid one. One system call.
  bool ended() const;

 private:
  explicit ProcessHandle(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
};

}  // namespace treadle::io
