#pragma once
// A file descriptor that is closed when its owner goes. Not shared between threads while it is moved or reset.

#include <unistd.h>

#include <string>
#include <utility>

#include "treadle/core/base/status.h"

namespace treadle::io {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// The failure that errno tells, as "what: text".
Status errnoStatus(Code code, const std::string& what, int error);

}  // namespace treadle::io
