#pragma once
// The other side of a handshake made by hand, byte by byte where a test wants it wrong.

#include "tests/support/gate.h"
#include "tests/support/readable.h"
#include "tests/support/stream_on.h"
#include "treadle/core/base/error.h"
#include "treadle/core/link/handshake_messages.h"

namespace treadle::link {

using test::patience;

inline Credentials credentialsOf(const std::string& name, int rank, const std::string& key = "the key of this job") {
  return {key, {Purpose::kPeer, {name, rank}}};
}

class RawPeer {
 public:
  explicit RawPeer(io::Fd fd) : fd_(std::move(fd)) {}
  explicit RawPeer(const io::Address& address) : fd_(valueOrThrow(io::connectTo(address, patience()))) {}

  void write(Bytes bytes) { io::writeAll(fd_.get(), bytes, patience()).ignore(); }  // it may have been dropped
  void say(Bytes message) { write(handshakeFrame(message)); }
  void sayHello(const Greeting& greeting) {
    hello_ = encodeGreeting(Step::kHello, greeting);
    say(hello_);
  }

  // The next handshake message; why there is none.
  Result<Incoming> hear() {
    std::optional<Frame> frame;
    UniqueFunction<void(Frame)> onFrame = [&](Frame got) { frame = std::move(got); };
    while (!frame) {
      io::Stream stream = test::streamOn(fd_.get());
      Result<bool> got = reader_.readFrom(stream, onFrame);
      if (!got.ok()) return got.status();
      if (*got) continue;
      if (auto more = test::readable(fd_.get(), "the next handshake message"); !more) {
        ADD_FAILURE() << more.message();
        return deadlineExceeded("it says nothing");
      }
    }
    return parseHandshake(*frame);
  }
  // Reads until the other side closes; what it said last if that was a rejection.
  Status heardRejection() {
    Status rejection;
    for (;;) {
      Result<Incoming> incoming = hear();
      if (!incoming.ok()) return rejection;
      if (incoming->step == Step::kReject) rejection = incoming->reason;
    }
  }
  io::Fd& fd() { return fd_; }
  Bytes hello() const { return hello_; }

 private:
  io::Fd fd_;
  FrameReader reader_{handshakeLimits()};
  std::vector<std::byte> hello_;
};

}  // namespace treadle::link
