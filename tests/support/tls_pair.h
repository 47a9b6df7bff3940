#pragma once
// Two ends of a TCP connection on the loopback, and the same with TLS.

#include <thread>

#include "tests/support/readable.h"
#include "treadle/core/base/error.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/io/stream.h"

namespace treadle::test {

struct TcpPair {
  TcpPair() {
    io::Fd listener = valueOrThrow(io::listenOn(valueOrThrow(io::Address::parse("tcp://127.0.0.1:0"))));
    dialer = valueOrThrow(io::connectTo(valueOrThrow(io::Address::ofSocket(listener.get())), deadlineAfter(kHangs)));
    EXPECT_TRUE(readable(listener.get(), "a connection"));
    acceptor = valueOrThrow(io::acceptFrom(listener.get()));
  }
  io::Fd dialer, acceptor;
};

inline io::TlsOptions tlsByKey(const std::string& key = "a key of both") {
  io::TlsOptions options;
  options.key = key;
  return options;
}

// And how their handshakes went.
struct TlsPair {
  TlsPair(const io::TlsOptions& dialing, const io::TlsOptions& accepting) {
    TcpPair ends;
    std::thread accept([&] { accepted = shake(std::move(ends.acceptor), accepting, io::Tls::Role::kAcceptor, b); });
    dialed = shake(std::move(ends.dialer), dialing, io::Tls::Role::kDialer, a);
    accept.join();
  }
  TlsPair() : TlsPair(tlsByKey(), tlsByKey()) {}
  static Status shake(io::Fd fd, const io::TlsOptions& options, io::Tls::Role role, io::Stream& stream) {
    auto tls = valueOrThrow(io::Tls::make(valueOrThrow(io::TlsContext::make(options)), fd.get(), role));
    stream = io::Stream(std::move(fd), std::move(tls));
    for (;;) {
      Result<bool> done = stream.tls()->shakeHands();
      if (!done.ok() || *done) return done.ok() ? Status() : done.status();
      const auto more = readable(stream.fd(), "the peer's part of the handshake");
      EXPECT_TRUE(more);
      if (!more) return deadlineExceeded("the handshake did not end in time");
    }
  }

  io::Stream a, b;
  Status dialed, accepted;
};

}  // namespace treadle::test
