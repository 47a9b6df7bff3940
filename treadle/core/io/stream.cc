#include "treadle/core/io/stream.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "treadle/core/io/socket.h"

namespace treadle::io {

Stream::Stream(Fd fd) : Stream(std::move(fd), nullptr) {}

Stream::Stream(Fd fd, std::unique_ptr<Tls> tls)
    : fd_(std::move(fd)), tls_(std::move(tls)), unix_(isUnixSocket(fd_.get())) {}

ssize_t Stream::read(std::span<const iovec> parts, int flags) {
  if (tls_) return tls_->read(parts, flags);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  return ::recvmsg(fd_.get(), &message, flags);
}

ssize_t Stream::read(MutableBytes room, int flags) {
  if (!tls_) return ::recv(fd_.get(), room.data(), room.size(), flags);
  return tls_->read(std::array{iovec{room.data(), room.size()}}, flags);
}

ssize_t Stream::write(std::span<const iovec> parts, int flags) {
  if (tls_) return tls_->write(parts, flags);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  return ::sendmsg(fd_.get(), &message, flags | MSG_NOSIGNAL);
}

Status Stream::broken(int error, const std::string& what) const {
  if (tls_ && error == EBADMSG) return tls_->failure();
  return errnoStatus(Code::kPeerLost, what, error);
}

void Stream::closeWrite() {
  if (tls_) tls_->closeWrite();
  (void)::shutdown(fd_.get(), SHUT_WR);
}

Status writeAll(Stream& stream, Bytes bytes, TimePoint deadline) {
  while (!bytes.empty() || !stream.flushed()) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    ssize_t written = stream.write(std::span(&part, 1), MSG_DONTWAIT);
    if (written > 0) {
      bytes = bytes.subspan(static_cast<size_t>(written));
    } else if (written == 0 || errno == EAGAIN) {
      if (!stream.flushed() || written < 0)
        if (!waitFor(stream.fd(), POLLOUT, deadline)) return deadlineExceeded("the peer takes no bytes");
    } else if (errno != EINTR) {
      return stream.broken(errno, "the connection broke while writing");
    }
  }
  return {};
}

Status readAll(Stream& stream, MutableBytes bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    ssize_t got = stream.read(bytes, MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return Status(Code::kPeerLost, "the peer closed the connection");
    } else if (errno == EAGAIN) {
      if (!waitFor(stream.fd(), POLLIN, deadline)) return deadlineExceeded("the peer sends nothing");
    } else if (errno != EINTR) {
      return stream.broken(errno, "the connection broke while reading");
    }
  }
  return {};
}

Result<Stream> startTls(Fd fd, std::shared_ptr<const TlsContext> context, TimePoint deadline) {
  Result<std::unique_ptr<Tls>> tls = Tls::make(std::move(context), fd.get(), Tls::Role::kDialer);
  if (!tls.ok()) return std::move(tls).status();
  for (;;) {
    Result<bool> done = (*tls)->shakeHands();
    if (!done.ok()) return std::move(done).status();
    if (*done) return Stream(std::move(fd), std::move(*tls));
    const short events = (*tls)->flushed() ? POLLIN : POLLIN | POLLOUT;
    if (!waitFor(fd.get(), events, deadline)) return deadlineExceeded("the peer does not answer the TLS handshake");
  }
}

}  // namespace treadle::io
