#pragma once
// Where a socket listens or connects to, as text that travels: "tcp://127.0.0.1:4000" (IPv4 or IPv6, in numbers) or
// "unix:name" for a UNIX socket in Linux's abstract namespace, which leaves no file behind. Plain values.

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "treadle/core/base/status.h"

namespace treadle::io {

class Address {
 public:
  // Host names are resolved (getaddrinfo, first answer), which may ask a name server and wait for it, with no limit of
  // ours. NotFound, naming the host.
  static Result<Address> tcp(const std::string& host, uint16_t port);
  // InvalidArgument for a name that is empty or longer than 107 bytes (man 7 unix).
  static Result<Address> unixAbstract(const std::string& name);
  // What `toString` writes; nobody is asked for names. InvalidArgument or NotFound for anything else.
  static Result<Address> parse(const std::string& text);
  // This host's address on the route to `target`, with port 0; nothing is sent there. FailedPrecondition when no route
  // leads to it. UNIX: InvalidArgument.
  static Result<Address> towards(const Address& target);
  // Of the socket's own end, or of the other one. FailedPrecondition when the kernel does not tell.
  static Result<Address> ofSocket(int fd);
  static Result<Address> ofPeer(int fd);

  bool isUnix() const { return storage_.ss_family == AF_UNIX; }
  bool isLoopback() const;                // a TCP address of this host alone
  bool isAny() const;                     // a TCP address that stands for all of a host's
  uint16_t port() const;                  // 0 for UNIX
  Address withPort(uint16_t port) const;  // the same with another port; UNIX ones have none
  std::string toString() const;
  std::string host() const;  // without the port; of a UNIX socket "this host"
  // Who has one address there has them all: `host`, but of IPv6 the network of 64 bits (RFC 4291 section 2.5.4).
  std::string network() const;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }
  int family() const { return storage_.ss_family; }

 private:
  static Result<Address> resolve(const std::string& host, uint16_t port, int flags);
  // `nameOf`: getsockname or getpeername; `whose`: what they name, for the error.
  static Result<Address> ofEnd(int fd, int (*nameOf)(int, sockaddr*, socklen_t*), const std::string& whose);

  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

}  // namespace treadle::io
