#pragma once
// A connected stream socket as links use it: read and written as it is, or through TLS. Movable, one owner. One thread
// may read while another writes; moving and closing are for a thread that is alone with it.

#include <sys/uio.h>

#include <memory>
#include <span>

#include "treadle/core/base/clock.h"
#include "treadle/core/io/fd.h"
#include "treadle/core/io/tls.h"

namespace treadle::io {

class Stream {
 public:
  Stream() = default;
  // In clear.
  Stream(Fd fd);  // NOLINT(google-explicit-constructor): a socket is a stream
  // After the handshake of TLS, or to go through it by `tls()`.
  Stream(Fd fd, std::unique_ptr<Tls> tls);
  Stream(Stream&& other) noexcept = default;
  Stream& operator=(Stream&& other) noexcept = default;

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  bool isUnix() const { return unix_; }
  Tls* tls() const { return tls_.get(); }
  // Whether damage on the way is noticed, or cannot be, without checksums of one's own: TLS, and UNIX sockets.
  bool guardsItsBytes() const { return unix_ || tls_ != nullptr; }

  // As recvmsg(2) and sendmsg(2) without control data. Why it failed, if it did: `broken`.
  ssize_t read(std::span<const iovec> parts, int flags);
  ssize_t read(MutableBytes room, int flags);
  ssize_t write(std::span<const iovec> parts, int flags);
  // Bytes that were read from the socket and not yet handed out, or 1 for a failure: nobody is told of them, so read
  // on. As many can be read without a look at the socket.
  size_t pending() const { return tls_ ? tls_->pending() : 0; }
  // Whether all that was written is with the socket. The rest goes with the next write, which may be an empty one.
  bool flushed() const { return !tls_ || tls_->flushed(); }
  // `what` broke by this errno: PeerLost, or what TLS says.
  Status broken(int error, const std::string& what) const;
  // No more comes from this side.
  void closeWrite();

 private:
  Fd fd_;
  std::unique_ptr<Tls> tls_;
  bool unix_ = false;
};

// Write all, or read exactly as much as there is room, on a non-blocking stream. PeerLost at its end.
Status writeAll(Stream& stream, Bytes bytes, TimePoint deadline);
Status readAll(Stream& stream, MutableBytes bytes, TimePoint deadline);

// Connects TLS as the dialer and shakes hands; what Tls::shakeHands says, and DeadlineExceeded.
Result<Stream> startTls(Fd fd, std::shared_ptr<const TlsContext> context, TimePoint deadline);

}  // namespace treadle::io
