#pragma once
// A process of another user at a UNIX socket: for tests that run as root, who alone can become another.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "treadle/core/base/error.h"
#include "treadle/core/io/socket.h"

#define TREADLE_SKIP_WITHOUT_OTHER_USERS() \
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user"

namespace treadle::test {

class OtherUser {
 public:
  // Connects to `address` and reads until it ends.
  static int bytesHeardFrom(const io::Address& address) {
    OtherUser stranger([&] {
      const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
      if (::connect(fd, address.get(), address.size()) != 0) return kFailed;
      char room[64];
      const ssize_t got = ::read(fd, room, sizeof room);
      return got > 0 ? static_cast<int>(got) : 0;
    });
    int status = 0;
    EXPECT_EQ(stranger.pid_, ::waitpid(stranger.pid_, &status, 0));
    stranger.pid_ = -1;
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_NE(kFailed, WEXITSTATUS(status)) << "it could not become another user, or not connect";
    return WEXITSTATUS(status);
  }
  // Listens at `address` until this object goes.
  static OtherUser listeningAt(const io::Address& address) {
    int ready[2];
    EXPECT_EQ(0, ::pipe(ready));
    OtherUser impostor([&] {
      const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
      if (::bind(fd, address.get(), address.size()) != 0 || ::listen(fd, 8) != 0 || ::write(ready[1], "", 1) != 1)
        return kFailed;
      ::pause();
      return 0;
    });
    ::close(ready[1]);
    char sign;
    EXPECT_EQ(1, ::read(ready[0], &sign, 1)) << "it could not become another user, or not listen";
    ::close(ready[0]);
    return impostor;
  }

  OtherUser(OtherUser&& from) noexcept : pid_(std::exchange(from.pid_, -1)) {}
  ~OtherUser() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  static constexpr int kFailed = 99;
  static constexpr uid_t kNobody = 65534;

  // After a fork of a program with threads there are system calls, and nothing else.
  template <class Body>
  explicit OtherUser(const Body& body) : pid_(::fork()) {
    if (pid_ == 0) ::_exit(::setuid(kNobody) == 0 ? body() : kFailed);
  }

  pid_t pid_;
};

}  // namespace treadle::test
