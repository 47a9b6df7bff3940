// Sockets of a sender that decides late.

#include "treadle/core/io/late_sending.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "treadle/core/io/fd.h"

namespace treadle::io::late_sending_test {
namespace {

int optionOf(const Fd& socket, int level, int option) {
  int value = 0;
  socklen_t size = sizeof value;
  EXPECT_EQ(0, ::getsockopt(socket.get(), level, option, &value, &size));
  return value;
}

std::string congestionOf(const Fd& socket) {
  std::array<char, 16> name{};
  socklen_t size = name.size();
  EXPECT_EQ(0, ::getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &size));
  return name.data();
}

bool mayUseCubic() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
  for (std::string name; file >> name;)
    if (name == "cubic") return true;
  return false;
}

TEST(LateSending, LeavesATcpSocketLittleRoomAndItsRateToCubic) {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sendLate(socket.get(), 16 << 10, 128 << 10);
  EXPECT_EQ(16 << 10, optionOf(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT));
  // The kernel doubles what it is asked for, for its own records.
  EXPECT_LE(optionOf(socket, SOL_SOCKET, SO_SNDBUF), 256 << 10);
  if (mayUseCubic()) {
    EXPECT_EQ("cubic", congestionOf(socket));
  }
}

TEST(LateSending, LeavesAUnixSocketAlone) {
  const Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int before = optionOf(socket, SOL_SOCKET, SO_SNDBUF);
  sendLate(socket.get(), 16 << 10, 4096);
  EXPECT_EQ(before, optionOf(socket, SOL_SOCKET, SO_SNDBUF));
}

}  // namespace
}  // namespace treadle::io::late_sending_test
