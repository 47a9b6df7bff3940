#pragma once
// Two connections over a socket pair, each with a sink that keeps what it was told.

#include <sys/socket.h>

#include "tests/support/bytes.h"
#include "tests/support/gate.h"
#include "tests/support/reactor_thread.h"
#include "tests/support/readable.h"
#include "tests/support/stream_on.h"
#include "treadle/core/base/error.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/link/connection.h"

namespace treadle::link {

class Recorder final : public ConnectionSink {
 public:
  void onMessage(Connection& from, Message message) override {
    if (answer) answer(from, message);
    auto arrival = std::move(message.arrival);
    if (!arrival) return keep(std::move(message));
    heralded.add();
    auto held = std::make_shared<Message>(std::move(message));
    arrival->whenWhole([this, held](const Status& whole) {
      if (whole.ok()) return keep(std::move(*held));
      failed.add();
    });
  }
  void onLeave(Connection&, std::string reason) override {
    EXPECT_EQ(0, closed.count()) << "a farewell after the end";
    MutexLock lock(mutex_);
    leaveReason_ = std::move(reason);
  }
  void onClosed(Connection&, const Status& why) override {
    {
      MutexLock lock(mutex_);
      closedWith_ = why;
    }
    closed.add();
  }

  void onClosing(Connection&, const Status& why) override {
    EXPECT_EQ(0, closed.count()) << "it comes before the end";
    if (closing) closing(why);
  }

  std::vector<Message> messages() const {
    MutexLock lock(mutex_);
    return messages_;
  }
  std::optional<std::string> leaveReason() const {
    MutexLock lock(mutex_);
    return leaveReason_;
  }
  Status closedWith() {
    closed.waitFor(1);
    MutexLock lock(mutex_);
    return closedWith_;
  }

  Result<io::Stream> dialLane(Connection&, TimePoint) override {
    return dial ? dial() : Result<io::Stream>(failedPrecondition("this test has no lanes"));
  }

  std::function<void(Connection&, const Message&)> answer;  // set before the first message
  std::function<Result<io::Stream>()> dial;                 // likewise
  std::function<void(const Status&)> closing;               // set before the end
  test::Counter arrived, closed;
  test::Counter heralded, failed;  // messages that came ahead of their bytes, and those of them that never came whole

 private:
  void keep(Message message) {
    {
      MutexLock lock(mutex_);
      messages_.push_back(std::move(message));
    }
    arrived.add();
  }

  mutable Mutex mutex_;
  std::vector<Message> messages_;
  std::optional<std::string> leaveReason_;
  Status closedWith_;
};

// A connection, its sink and the thread that polls for it.
class End {
 public:
  End(io::Stream stream, Connection::Kind kind, const ConnectionOptions& options = {},
      std::function<void(Connection&, const Message&)> answer = {}, std::shared_ptr<PeerMemory> memory = nullptr) {
    sink.answer = std::move(answer);
    connection_ = valueOrThrow(Connection::start(*reactor, std::move(stream), kind, options, sink, std::move(memory)));
  }
  ~End() {
    connection_->close(cancelled("the test is over"));
    reactor.stop();
    connection_->awaitReader();         // it may still tell the sink
    EXPECT_EQ(1, sink.closed.count());  // exactly once, whatever happened
  }

  Connection* operator->() { return connection_.get(); }
  const std::shared_ptr<Connection>& share() const { return connection_; }

  // Returns when the reactor has been polled anew.
  void waitForAPoll() {
    for (int i = 0; i < 2; ++i) {
      test::Gate polled;
      reactor->at(Clock::now(), [&] { polled.open(); });
      polled.wait();
    }
  }

  Recorder sink;
  test::ReactorThread reactor;

 private:
  std::shared_ptr<Connection> connection_;
};

struct Sockets {
  Sockets() {
    int ends[2];
    EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
    a = io::Fd(ends[0]);
    b = io::Fd(ends[1]);
  }
  Sockets(io::Fd a, io::Fd b) : a(std::move(a)), b(std::move(b)) {}
  io::Fd a, b;
};

// The same over TCP on the loopback.
inline Sockets tcpSockets() {
  io::Fd listener = valueOrThrow(io::listenOn(valueOrThrow(io::Address::parse("tcp://127.0.0.1:0"))));
  io::Address address = valueOrThrow(io::Address::ofSocket(listener.get()));
  io::Fd dialed = valueOrThrow(io::connectTo(address, test::patience()));
  EXPECT_TRUE(test::readable(listener.get(), "a connection"));
  return {std::move(dialed), valueOrThrow(io::acceptFrom(listener.get()))};
}

struct Streams {
  Streams(Sockets sockets) : a(std::move(sockets.a)), b(std::move(sockets.b)) {}
  Streams(io::Stream a, io::Stream b) : a(std::move(a)), b(std::move(b)) {}
  io::Stream a, b;
};

// Through TLS, with a key; `rekeyBytes` as in TlsOptions.
inline Streams tlsStreams(uint64_t rekeyBytes = uint64_t{1} << 36, Sockets sockets = tcpSockets()) {
  io::TlsOptions options;
  options.key = "the key of this job";
  options.rekeyBytes = rekeyBytes;
  auto context = valueOrThrow(io::TlsContext::make(options));
  auto dialer = valueOrThrow(io::Tls::make(context, sockets.a.get(), io::Tls::Role::kDialer));
  auto acceptor = valueOrThrow(io::Tls::make(context, sockets.b.get(), io::Tls::Role::kAcceptor));
  for (bool dialed = false, accepted = false; !dialed || !accepted;) {
    if (!dialed) dialed = valueOrThrow(dialer->shakeHands());
    if (!accepted) accepted = valueOrThrow(acceptor->shakeHands());
  }
  return {io::Stream(std::move(sockets.a), std::move(dialer)), io::Stream(std::move(sockets.b), std::move(acceptor))};
}

inline std::vector<std::byte> filled(size_t size, int value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

// A buffer of its own, every byte `value`.
inline Buffer filledBuffer(size_t size, int value) {
  Buffer buffer = allocateBuffer(size);
  std::memset(buffer.data, value, size);
  return buffer;
}

using test::allBytesAre;

}  // namespace treadle::link
