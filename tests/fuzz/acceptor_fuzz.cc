// The acceptor's side of the handshake (link/handshake.h), with a peer that may know the key and do all in its order,
// or neither: it gets in when it has proved to know the key, and is else told to go.

#include <sys/socket.h>

#include "tests/fuzz/polled.h"
#include "tests/fuzz/silent_member.h"
#include "treadle/core/link/handshake_messages.h"

namespace treadle::fuzz::acceptor_fuzz {
namespace {

const std::string kKey = "the key of this job";

// A listening socket and who sits behind it: one for each input, as it remembers whom it has refused.
class Door {
 public:
  Door()
      : reactor_(valueOrThrow(io::Reactor::make())),
        address_(valueOrThrow(io::Address::unixAbstract("treadle-fuzz-" + std::to_string(::getpid())))) {
    link::Acceptor::Host host;
    host.check = [](const link::Hello& hello) {
      return hello.worker.rank >= 0 ? Status() : invalidArgument("a rank below 0");
    };
    host.accept = [this](io::Stream, const link::Hello& hello) { accepted_ = hello; };
    acceptor_ = valueOrThrow(link::Acceptor::start(*reactor_, valueOrThrow(io::listenOn(address_)),
                                                   {kKey, {link::Purpose::kPeer, {"w0", 0}}}, std::move(host)));
  }
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  io::Fd knock() { return valueOrThrow(io::connectTo(address_, deadlineAfter(std::chrono::seconds(60)))); }
  void poll() { pollAll(*reactor_); }
  const std::optional<link::Hello>& accepted() const { return accepted_; }

 private:
  std::unique_ptr<io::Reactor> reactor_;
  const io::Address address_;
  std::optional<link::Hello> accepted_;
  std::unique_ptr<link::Acceptor> acceptor_;
};

class Visitor {
 public:
  explicit Visitor(Bytes input) : choices_(input), stream_(door_.knock()) {}

  void play() {
    while (choices_.any() && !ended_) {
      act();
      door_.poll();
      hear();
    }
    const std::optional<link::Hello>& accepted = door_.accepted();
    if (accepted) promise(proved_ && accepted->worker == greeting_.worker, "only who proves to know the key gets in");
    if (proved_ && !disturbed_ && greeting_.worker.rank >= 0) promise(accepted.has_value(), "and who does, gets in");
    stream_ = io::Stream();
    door_.poll();
  }

 private:
  void act() {
    switch (choices_.below(6)) {
      case 0: return sayHello();
      case 1: return sayProof(kKey);
      case 2: return sayProof("another key that is long enough");
      case 3: return disturb(link::handshakeFrame(choices_.bytes(choices_.below(80))));
      case 4: return disturb({});
      default:
        return disturb(wire::frameFront(wire::FrameKind{static_cast<uint8_t>(1 + choices_.below(11))}, 0,
                                        choices_.bytes(choices_.below(40))));
    }
  }
  void write(Bytes bytes) { (void)::send(stream_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT); }
  void sayHello() {
    if (!hello_.empty()) disturbed_ = true;
    link::Greeting greeting;
    if (choices_.below(8) == 7) greeting.version = choices_.number<uint16_t>();
    if (greeting.version != link::kProtocolVersion) disturbed_ = true;
    greeting.purpose = link::Purpose{static_cast<uint8_t>(1 + choices_.below(5))};
    if (greeting.purpose == link::Purpose::kSummation) greeting.number = choices_.number<uint64_t>();
    greeting.worker = {choices_.text(choices_.below(128)), static_cast<int8_t>(choices_.number<uint8_t>())};
    std::vector<std::byte> hello = link::encodeGreeting(link::Step::kHello, greeting);
    if (hello_.empty()) {
      greeting_ = greeting;
      hello_ = hello;
    }
    write(link::handshakeFrame(hello));
  }
  void sayProof(const std::string& key) {
    link::Proof proof = link::proofOf(key, "dialer", hello_, challenge_);
    if (proved_ || challenge_.empty() || key != kKey) disturbed_ = true;
    if (key == kKey && !challenge_.empty() && !disturbed_) proved_ = true;
    write(link::handshakeFrame(link::encodeStep(link::Step::kProof, proof)));
  }
  void disturb(const std::vector<std::byte>& bytes) {
    Bytes raw = bytes.empty() ? choices_.bytes(choices_.below(64)) : Bytes(bytes);
    if (raw.empty()) return;
    disturbed_ = true;
    write(raw);
  }
  void hear() {
    UniqueFunction<void(link::Frame)> onFrame = [this](const link::Frame& frame) {
      Result<link::Incoming> incoming = link::parseHandshake(frame);
      promise(incoming.ok(), "what an acceptor says is a message of the handshake");
      if (incoming->step == link::Step::kChallenge) challenge_ = incoming->greetingBytes;
      if (incoming->step == link::Step::kReject) promise(disturbed_ || proved_, "who does no wrong is not refused");
    };
    for (Result<bool> more = true; more.ok() && *more;) {
      more = reader_.readFrom(stream_, onFrame);
      if (!more.ok()) ended_ = true;
    }
  }

  Choices choices_;
  Door door_;
  io::Stream stream_;
  link::FrameReader reader_{link::handshakeLimits()};
  link::Greeting greeting_;
  std::vector<std::byte> hello_, challenge_;
  bool disturbed_ = false, proved_ = false, ended_ = false;
};

void feed(Bytes input) { Visitor(input).play(); }

Inputs seeds() {
  return {row({0, 0, 1, 2, 'w', '1', 1, 1}),    row({0, 0, 1, 2, 'w', '1', 1, 2}),
          row({0, 0, 0, 2, 'w', '1', 1, 1, 1}), row({1}),
          row({0, 7, 1, 0, 1, 1, 'w', 1}),      row({3, 40, 1, 2, 3, 4}),
          row({0, 0, 1, 1, 'w', 255, 1}),       row({5, 2, 0}),
          row({0, 0, 1, 1, 'w', 1, 0, 0, 1})};
}

const Fuzzer kAcceptor("acceptor", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::acceptor_fuzz
