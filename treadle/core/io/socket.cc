#include "treadle/core/io/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <fstream>
#include <string>

#include "treadle/core/io/interruption.h"

namespace treadle::io {
namespace {

constexpr int kProbes = 2;
constexpr int kMostProbeSeconds = 32'767;  // that the kernel takes (man 7 tcp)

Result<Fd> makeSocket(const Address& address) {
  Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errnoStatus(Code::kResourceExhausted, "no socket can be made", errno);
  return fd;
}

// In a user namespace, all users without a number there show as one (man 7 user_namespaces).
bool mayBeSeveralUsers(uid_t uid) {
  constexpr uint64_t kAllNumbers = 4'294'967'295;
  uint64_t first = 0, outside = 0, count = 0;
  if (std::ifstream("/proc/self/uid_map") >> first >> outside >> count && count == kAllNumbers) return false;
  uid_t others = 65'534;
  std::ifstream("/proc/sys/kernel/overflowuid") >> others;
  return uid == others;
}

void sendAtOnce(int fd) {
  int one = 1;  // fails on UNIX sockets, which need it not
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

Status connectFailure(const Address& address, int error) {
  return errnoStatus(Code::kPeerLost, "cannot connect to " + address.toString(), error);
}

}  // namespace

Result<Fd> listenOn(const Address& address) {
  Result<Fd> fd = makeSocket(address);
  if (!fd.ok()) return fd;
  int one = 1;
  if (!address.isUnix()) (void)::setsockopt(fd->get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (::bind(fd->get(), address.get(), address.size()) != 0 || ::listen(fd->get(), SOMAXCONN) != 0) {
    int error = errno;
    std::string what = error == EADDRINUSE ? address.toString() + " is in use by another program"
                                           : "cannot listen on " + address.toString();
    return errnoStatus(Code::kFailedPrecondition, what, error);
  }
  return fd;
}

Result<Fd> listenOnFirst(const std::vector<Address>& addresses) {
  Result<Fd> listener = invalidArgument("there is no address to listen at");
  for (const Address& address : addresses)
    if (listener = listenOn(address); listener.ok()) break;
  return listener;
}

Result<Fd> connectTo(const Address& address, TimePoint deadline) {
  Result<Fd> fd = makeSocket(address);
  if (!fd.ok()) return fd;
  if (::connect(fd->get(), address.get(), address.size()) != 0) {
    // A UNIX socket whose backlog is full says EAGAIN and cannot be waited for: to the caller it is one failed try.
    if (errno != EINPROGRESS) return connectFailure(address, errno);
    if (!waitFor(fd->get(), POLLOUT, deadline))
      return deadlineExceeded("no answer from " + address.toString() + " before the deadline");
    int error = 0;
    socklen_t size = sizeof error;
    (void)::getsockopt(fd->get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return connectFailure(address, error);
  }
  sendAtOnce(fd->get());
  return fd;
}

Result<Fd> acceptFrom(int listener) {
  Fd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid()) {
    sendAtOnce(fd.get());
    return fd;
  }
  bool noneNow = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
  if (noneNow) return Fd();
  return errnoStatus(Code::kResourceExhausted, "a connection cannot be accepted", errno);
}

bool isUnixSocket(int fd) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

bool isLocal(int fd) {
  if (isUnixSocket(fd)) return true;
  Result<Address> own = Address::ofSocket(fd);
  return own.ok() && own->isLoopback();
}

void setBufferSizes(int fd, int sizeBytes) {
  (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sizeBytes, sizeof sizeBytes);
  (void)::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &sizeBytes, sizeof sizeBytes);
}

void probeWhileIdle(int fd, Duration limit) {
  if (isUnixSocket(fd)) return;
  auto set = [fd](int level, int option, int value) { (void)::setsockopt(fd, level, option, &value, sizeof value); };
  // The first after a third of it, the last two thirds after that.
  const auto third = std::chrono::ceil<std::chrono::seconds>(limit / (kProbes + 1)).count();
  const int seconds = static_cast<int>(std::clamp<decltype(third)>(third, 1, kMostProbeSeconds));
  set(IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, seconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
}

Status makeBlocking(int fd, Duration look) {
  auto seconds = std::chrono::duration_cast<std::chrono::seconds>(look);
  auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(look - seconds);
  timeval limit{seconds.count(), microseconds.count()};
  int flags = ::fcntl(fd, F_GETFL);
  bool done = flags >= 0 && ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0 &&
              ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 &&
              ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0;
  return done ? Status() : errnoStatus(Code::kInternal, "a socket cannot be made to wait", errno);
}

bool peerIsSameUser(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid() &&
         !mayBeSeveralUsers(peer.uid);
}

int millisecondsUntil(TimePoint deadline) {
  if (deadline == kNever) return -1;
  auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<decltype(left)>(left, 0, INT_MAX));
}

bool waitFor(int fd, short events, TimePoint deadline) {
  Interruption* interruption = Interruption::here();
  std::array<pollfd, 2> waited = {pollfd{fd, events, 0}, pollfd{-1, POLLIN, 0}};
  for (;;) {
    if (interruption != nullptr) waited[1].fd = interruption->fd();
    int ready = ::poll(waited.data(), waited.size(), millisecondsUntil(deadline));
    if (ready > 0 && waited[0].revents != 0) return true;
    if (ready > 0 && waited[1].revents != 0 && interruption->look()) return false;
    if (ready == 0 && Clock::now() >= deadline) return false;
  }
}

// Blocking forms for handshakes, where no reactor reads yet. An error of the socket is told as the peer's
// loss: which of the two ends failed, the kernel does not say.
Status writeAll(int fd, Bytes bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    ssize_t written = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (written > 0) {
      bytes = bytes.subspan(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      if (!waitFor(fd, POLLOUT, deadline)) return deadlineExceeded("the peer takes no bytes");
    } else if (errno != EINTR) {
      return errnoStatus(Code::kPeerLost, "the connection broke while writing", errno);
    }
  }
  return {};
}

Status readAll(int fd, MutableBytes bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return Status(Code::kPeerLost, "the peer closed the connection");
    } else if (errno == EAGAIN) {
      if (!waitFor(fd, POLLIN, deadline)) return deadlineExceeded("the peer sends nothing");
    } else if (errno != EINTR) {
      return errnoStatus(Code::kPeerLost, "the connection broke while reading", errno);
    }
  }
  return {};
}

}  // namespace treadle::io
