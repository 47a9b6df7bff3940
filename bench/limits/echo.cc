#include "bench/limits/echo.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <system_error>

#include "bench/limits/self.h"

namespace bench {
namespace {

constexpr const char* kFlag = "--echo";
constexpr int kInherited = 3;

int checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

void unixPair(int ends[2]) { checked(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "socketpair"); }

void tcpPair(int ends[2]) {
  int listener = checked(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  checked(::bind(listener, generic, size), "bind");
  checked(::listen(listener, 1), "listen");
  checked(::getsockname(listener, generic, &size), "getsockname");
  ends[0] = checked(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  checked(::connect(ends[0], generic, size), "connect");
  ends[1] = checked(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC), "accept");
  ::close(listener);
  int one = 1;
  for (int i = 0; i < 2; ++i) checked(::setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), "TCP_NODELAY");
}

bool writeAll(int socket, const char* bytes, size_t size) {
  while (size > 0) {
    ssize_t done = ::write(socket, bytes, size);
    if (done <= 0) return false;
    bytes += done;
    size -= static_cast<size_t>(done);
  }
  return true;
}

bool readAll(int socket, char* bytes, size_t size) {
  while (size > 0) {
    ssize_t done = ::read(socket, bytes, size);
    if (done <= 0) return false;
    bytes += done;
    size -= static_cast<size_t>(done);
  }
  return true;
}

}  // namespace

Echo::Echo(Way way, size_t bytes) : answer_(bytes) {
  int ends[2] = {-1, -1};
  way == Way::kUnix ? unixPair(ends) : tcpPair(ends);
  socket_ = ends[0];
  other_ = startSelf({kFlag, std::to_string(bytes)}, {ends[1]});
  ::close(ends[1]);
}

Echo::~Echo() {
  ::close(socket_);
  ::waitpid(other_, nullptr, 0);
}

void Echo::roundTrip(const void* message) {
  if (!writeAll(socket_, static_cast<const char*>(message), answer_.size()) ||
      !readAll(socket_, answer_.data(), answer_.size()))
    throw std::system_error(ECONNRESET, std::generic_category(), "the echoing process is gone");
}

bool Echo::serve(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], kFlag) != 0) return false;
  std::vector<char> message(std::strtoull(argv[2], nullptr, 10));
  while (readAll(kInherited, message.data(), message.size()) && writeAll(kInherited, message.data(), message.size())) {}
  return true;
}

}  // namespace bench
