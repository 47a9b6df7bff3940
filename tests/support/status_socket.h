#pragma once
// The socket between `treadle run` and a worker (cluster/status_socket.h), held at both ends by a test.

#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <string>

#include "gtest/gtest.h"
#include "treadle/core/io/fd.h"

namespace treadle::test {

class StatusSocket {
 public:
  StatusSocket() {
    std::array<int, 2> ends{};
    EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends.data()));
    launcher_ = io::Fd(ends[0]);
    worker_ = io::Fd(ends[1]);
  }

  // The value of kStatusVariable that names the descriptor; `more` makes the inode a wrong one.
  static std::string variableOf(int fd, ino_t more = 0) {
    struct stat info{};
    ::fstat(fd, &info);
    return std::to_string(fd) + ":" + std::to_string(info.st_ino + more);
  }
  int worker() const { return worker_.get(); }
  void closeLauncher() { launcher_ = io::Fd(); }

  // The launcher's next message; empty when there is none.
  std::string received() {
    std::array<char, 1000> bytes;
    const ssize_t size = ::recv(launcher_.get(), bytes.data(), bytes.size(), 0);
    return size > 0 ? std::string(bytes.data(), static_cast<size_t>(size)) : "";
  }
  // A message of the launcher's.
  void send(const std::string& message) {
    EXPECT_EQ(static_cast<ssize_t>(message.size()), ::send(launcher_.get(), message.data(), message.size(), 0));
  }

 private:
  io::Fd launcher_, worker_;
};

}  // namespace treadle::test
