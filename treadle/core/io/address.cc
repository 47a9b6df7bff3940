#include "treadle/core/io/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <charconv>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>

#include "treadle/core/io/fd.h"

namespace treadle::io {
namespace {

constexpr std::string_view kTcp = "tcp://", kUnix = "unix:";

template <class T>
const T& as(const sockaddr_storage& storage) {
  return reinterpret_cast<const T&>(storage);
}

}  // namespace

// The first answer is taken: for a loopback or numeric address there is one.
Result<Address> Address::tcp(const std::string& host, uint16_t port) { return resolve(host, port, 0); }

Result<Address> Address::resolve(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return notFound("host '" + host + "' has no address: " + ::gai_strerror(error));
  std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  Address address;
  std::memcpy(&address.storage_, found->ai_addr, found->ai_addrlen);
  address.size_ = found->ai_addrlen;
  return address;
}

Result<Address> Address::unixAbstract(const std::string& name) {
  sockaddr_un un{};
  un.sun_family = AF_UNIX;
  // The name follows a leading zero byte, which marks the abstract namespace (man 7 unix).
  if (name.empty() || name.size() > sizeof(un.sun_path) - 1)
    return invalidArgument("the UNIX socket name '" + name + "' is empty or longer than 107 bytes");
  std::memcpy(un.sun_path + 1, name.data(), name.size());
  Address address;
  std::memcpy(&address.storage_, &un, sizeof un);
  address.size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<Address> Address::parse(const std::string& text) {
  std::string_view view = text;
  if (view.starts_with(kUnix)) return unixAbstract(text.substr(kUnix.size()));
  size_t colon = view.rfind(':');
  if (!view.starts_with(kTcp) || colon == std::string_view::npos || colon < kTcp.size())
    return invalidArgument("'" + text + "' is no address: write tcp://host:port or unix:name");
  std::string host = text.substr(kTcp.size(), colon - kTcp.size());
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  uint16_t port = 0;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc() || stop != end) return invalidArgument("'" + text + "' has no port between 0 and 65535");
  return resolve(host, port, AI_NUMERICHOST);
}

// To connect a datagram socket chooses the route, and with it the source address (man 7 ip).
Result<Address> Address::towards(const Address& target) {
  if (target.isUnix()) return invalidArgument(target.toString() + " is on this host, and no route leads to it");
  const Fd socket(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() || ::connect(socket.get(), target.get(), target.size()) != 0)
    return errnoStatus(Code::kFailedPrecondition, "this host has no route to " + target.host(), errno);
  Result<Address> own = ofSocket(socket.get());
  return own.ok() ? Result(own->withPort(0)) : std::move(own);
}

Result<Address> Address::ofSocket(int fd) { return ofEnd(fd, &::getsockname, "the socket"); }

Result<Address> Address::ofPeer(int fd) { return ofEnd(fd, &::getpeername, "the other end"); }

Result<Address> Address::ofEnd(int fd, int (*nameOf)(int, sockaddr*, socklen_t*), const std::string& whose) {
  Address address;
  address.size_ = sizeof address.storage_;
  if (nameOf(fd, reinterpret_cast<sockaddr*>(&address.storage_), &address.size_) != 0)
    return errnoStatus(Code::kFailedPrecondition, "the address of " + whose + " cannot be read", errno);
  return address;
}

std::string Address::host() const {
  if (isUnix()) return "this host";
  std::string text = toString();
  return text.substr(kTcp.size(), text.rfind(':') - kTcp.size());
}

std::string Address::network() const {
  if (family() != AF_INET6) return host();
  Address first = *this;
  auto& bytes = reinterpret_cast<sockaddr_in6&>(first.storage_).sin6_addr.s6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&as<sockaddr_in6>(storage_).sin6_addr)) return host();
  std::fill(std::begin(bytes) + 8, std::end(bytes), 0);
  return first.host() + "/64";
}

bool Address::isLoopback() const {
  if (family() == AF_INET) return (ntohl(as<sockaddr_in>(storage_).sin_addr.s_addr) >> 24) == 127;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&as<sockaddr_in6>(storage_).sin6_addr);
}

bool Address::isAny() const {
  if (family() == AF_INET) return as<sockaddr_in>(storage_).sin_addr.s_addr == INADDR_ANY;
  return family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&as<sockaddr_in6>(storage_).sin6_addr);
}

Address Address::withPort(uint16_t port) const {
  Address address = *this;
  if (family() == AF_INET) reinterpret_cast<sockaddr_in&>(address.storage_).sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6&>(address.storage_).sin6_port = htons(port);
  return address;
}

uint16_t Address::port() const {
  if (family() == AF_INET) return ntohs(as<sockaddr_in>(storage_).sin_port);
  return family() == AF_INET6 ? ntohs(as<sockaddr_in6>(storage_).sin6_port) : uint16_t{0};
}

std::string Address::toString() const {
  if (isUnix()) {
    constexpr size_t kPrefix = offsetof(sockaddr_un, sun_path) + 1;
    size_t length = size_ > kPrefix ? size_ - kPrefix : 0;
    return std::string(kUnix) + std::string(as<sockaddr_un>(storage_).sun_path + 1, length);
  }
  char text[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET) {
    ::inet_ntop(AF_INET, &as<sockaddr_in>(storage_).sin_addr, text, sizeof text);
    return std::string(kTcp) + text + ":" + std::to_string(port());
  }
  ::inet_ntop(AF_INET6, &as<sockaddr_in6>(storage_).sin6_addr, text, sizeof text);
  return std::string(kTcp) + "[" + text + "]:" + std::to_string(port());
}

}  // namespace treadle::io
