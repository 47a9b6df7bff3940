#include "treadle/core/link/handshake.h"

#include <poll.h>
#include <sys/resource.h>

#include <thread>

#include "tests/core/link/raw_peer.h"
#include "tests/support/bytes.h"
#include "tests/support/descriptors.h"
#include "tests/support/expect_error.h"
#include "tests/support/other_user.h"
#include "tests/support/reactor_thread.h"
#include "treadle/core/link/strangers.h"

namespace treadle::link::handshake_test {
namespace {

using namespace std::chrono_literals;

// An acceptor that keeps whom it welcomed.
class Door {
 public:
  explicit Door(const std::string& where = "tcp://127.0.0.1:0", Duration timeout = kHandshakeTimeout) {
    Acceptor::Host host;
    host.check = [](const Hello& hello) {
      return hello.worker.name == "unwanted" ? failedPrecondition("'unwanted' may not come in") : Status();
    };
    host.accept = [this](io::Stream stream, Hello hello) {
      EXPECT_TRUE(io::writeAll(stream, std::as_bytes(std::span(greeting)), patience()).ok());
      {
        MutexLock lock(mutex_);
        guests_.emplace_back(std::move(stream), std::move(hello));
      }
      arrived.add();
    };
    host.timeout = timeout;
    acceptor = valueOrThrow(Acceptor::start(*reactor, valueOrThrow(io::listenOn(*io::Address::parse(where))),
                                            credentialsOf("door", 0), std::move(host)));
  }
  ~Door() {
    acceptor.reset();
    reactor.stop();
  }
  const io::Address& address() const { return acceptor->address(); }
  std::vector<std::pair<io::Stream, Hello>> takeGuests() {
    MutexLock lock(mutex_);
    return std::move(guests_);
  }

  test::Counter arrived;
  std::string greeting;  // what is said to a guest at once
  test::ReactorThread reactor;
  std::unique_ptr<Acceptor> acceptor;

 private:
  Mutex mutex_;
  std::vector<std::pair<io::Stream, Hello>> guests_;
};

// From its proof on the acceptor counts on the dialer: rank 0 would take one that gives up then for a worker that is
// lost.
TEST(Handshake, isNotGivenUpWhereTheAcceptorIsSlowAfterItHasShownThatItKnowsTheKey) {
  constexpr Duration kDialersPatience = 2s;
  test::ReactorThread reactor;
  const TimePoint slowUntil = deadlineAfter(kDialersPatience + 100ms);
  Acceptor::Host host;
  host.check = [slowUntil](const Hello&) {
    std::this_thread::sleep_until(slowUntil);
    return Status();
  };
  host.accept = [](const io::Stream&, const Hello&) {};
  auto acceptor =
      valueOrThrow(Acceptor::start(*reactor, valueOrThrow(io::listenOn(*io::Address::parse("tcp://127.0.0.1:0"))),
                                   credentialsOf("door", 0), std::move(host)));
  const Result<Dialed> dialed = dial(acceptor->address(), credentialsOf("guest", 5), patience(), kDialersPatience);
  EXPECT_TRUE(dialed.ok()) << dialed.status().toString();
  EXPECT_GE(Clock::now(), slowUntil);
  acceptor.reset();
  reactor.stop();
}

TEST(Handshake, introducesBothSides) {
  for (const char* where : {"tcp://127.0.0.1:0", "unix:treadle-handshake-test"}) {
    Door door(where);
    Credentials guest = credentialsOf("guest", 5);
    guest.self.purpose = Purpose::kRendezvous;
    Result<Dialed> dialed = dial(door.address(), guest, patience());
    ASSERT_TRUE(dialed.ok()) << dialed.status().toString();
    EXPECT_EQ((WorkerInfo{"door", 0}), dialed->peer);
    door.arrived.waitFor(1);
    auto guests = door.takeGuests();
    EXPECT_EQ((WorkerInfo{"guest", 5}), guests.at(0).second.worker);
    EXPECT_EQ(Purpose::kRendezvous, guests.at(0).second.purpose);
  }
}

// The first words of the acceptor may come together with its welcome.
TEST(Handshake, losesNothingOfWhatFollowsTheWelcome) {
  Door door;
  door.greeting = "come in";
  for (int i = 0; i < 100; ++i) {
    Result<Dialed> dialed = dial(door.address(), credentialsOf("guest", 1), patience());
    ASSERT_TRUE(dialed.ok()) << dialed.status().toString();
    std::string heard(door.greeting.size(), ' ');
    ASSERT_TRUE(io::readAll(dialed->stream, std::as_writable_bytes(std::span(heard)), patience()).ok());
    EXPECT_EQ(door.greeting, heard);
  }
}

TEST(Handshake, losesNothingWhenWelcomeAndMoreAreOneWrite) {
  io::Fd listener = valueOrThrow(io::listenOn(*io::Address::parse("tcp://127.0.0.1:0")));
  std::thread acceptor([&] {
    ASSERT_TRUE(test::readable(listener.get(), "a connection"));
    RawPeer peer(valueOrThrow(io::acceptFrom(listener.get())));
    Result<Incoming> hello = peer.hear();
    Greeting greeting{kProtocolVersion, Purpose::kPeer, {"raw", 3}, randomNonce()};
    std::vector<std::byte> challenge = encodeGreeting(Step::kChallenge, greeting);
    Proof proof = proofOf("the key of this job", "acceptor", hello->greetingBytes, challenge);
    challenge.insert(challenge.end(), proof.begin(), proof.end());
    peer.say(challenge);
    ASSERT_EQ(Step::kProof, peer.hear()->step);
    std::vector<std::byte> both = handshakeFrame(encodeStep(Step::kWelcome, {}));
    both.resize(both.size() + 5, std::byte{42});
    peer.write(both);
  });
  Result<Dialed> dialed = dial(*io::Address::ofSocket(listener.get()), credentialsOf("guest", 1), patience());
  acceptor.join();
  ASSERT_TRUE(dialed.ok()) << dialed.status().toString();
  std::vector<std::byte> more(5);
  ASSERT_TRUE(io::readAll(dialed->stream, more, patience()).ok());
  EXPECT_EQ(std::vector<std::byte>(5, std::byte{42}), more);
}

// ---- another user of this host

TEST(Handshake, hasNoWordForAnotherUser) {
  TREADLE_SKIP_WITHOUT_OTHER_USERS();
  Door door("unix:treadle-handshake-of-one-user");
  EXPECT_EQ(0, test::OtherUser::bytesHeardFrom(door.address()));
  EXPECT_TRUE(dial(door.address(), credentialsOf("guest", 1), patience()).ok());
}

TEST(Handshake, doesNotGreetAnotherUser) {
  TREADLE_SKIP_WITHOUT_OTHER_USERS();
  const io::Address address = *io::Address::parse("unix:treadle-handshake-impostor");
  const auto impostor = test::OtherUser::listeningAt(address);
  Status refused = dial(address, credentialsOf("guest", 1), patience()).status();
  EXPECT_EQ(Code::kUnauthenticated, refused.code());
  EXPECT_TRUE(test::contains(refused.message(), "another user")) << refused.message();
}

// ---- who does not know the key

TEST(Handshake, aDialerWithAnotherKeyIsToldSoAndNotLetIn) {
  Door door;
  Status status = dial(door.address(), credentialsOf("guest", 1, "another key"), patience()).status();
  EXPECT_EQ(Code::kUnauthenticated, status.code());
  EXPECT_NE(std::string::npos, status.message().find("does not know this job's key")) << status.message();
  EXPECT_NE(std::string::npos, status.message().find(door.address().toString()));
  EXPECT_EQ(0, door.arrived.count());
}

// The dialer above gives up by itself. One that goes on all the same, with the proofs that it can make:
TEST(Handshake, aDialerThatCannotProveTheKeyIsRejected) {
  Door door;
  for (bool echo : {false, true}) {
    RawPeer peer(door.address());
    Greeting hello{kProtocolVersion, Purpose::kPeer, {"guest", 1}, randomNonce()};
    peer.sayHello(hello);
    Result<Incoming> challenge = peer.hear();
    ASSERT_TRUE(challenge.ok());
    // The acceptor's own proof, sent back, proves nothing: the roles differ.
    peer.say(encodeStep(Step::kProof, echo ? challenge->proof
                                           : proofOf("another key", "dialer", peer.hello(), challenge->greetingBytes)));
    EXPECT_EQ(Code::kUnauthenticated, peer.heardRejection().code());
  }
  EXPECT_EQ(0, door.arrived.count());
}

TEST(Handshake, aProofOfAnEarlierConnectionIsWorthNothing) {
  Door door;
  Greeting hello{kProtocolVersion, Purpose::kPeer, {"guest", 1}, randomNonce()};
  Proof overheard;
  {
    RawPeer honest(door.address());
    honest.sayHello(hello);
    overheard = proofOf("the key of this job", "dialer", honest.hello(), honest.hear()->greetingBytes);
    honest.say(encodeStep(Step::kProof, overheard));
    ASSERT_EQ(Step::kWelcome, honest.hear()->step);
  }
  RawPeer replay(door.address());
  replay.sayHello(hello);
  ASSERT_EQ(Step::kChallenge, replay.hear()->step);
  replay.say(encodeStep(Step::kProof, overheard));
  EXPECT_EQ(Code::kUnauthenticated, replay.heardRejection().code());
}

// ---- another protocol version

TEST(Handshake, anAcceptorTellsADialerOfAnotherVersion) {
  Door door;
  RawPeer peer(door.address());
  peer.sayHello({77, Purpose::kPeer, {"guest", 1}, randomNonce()});
  Status rejection = peer.heardRejection();
  EXPECT_EQ(Code::kFailedPrecondition, rejection.code());
  EXPECT_NE(std::string::npos, rejection.message().find("version 77")) << rejection.message();
  EXPECT_NE(std::string::npos, rejection.message().find("version " + std::to_string(kProtocolVersion)));
}

// What `dial` says when the other side answers its hello with `answer`.
Status dialAgainst(std::vector<std::byte> answer) {
  io::Fd listener = valueOrThrow(io::listenOn(*io::Address::parse("tcp://127.0.0.1:0")));
  std::thread acceptor([&] {
    ASSERT_TRUE(test::readable(listener.get(), "a connection"));
    RawPeer peer(valueOrThrow(io::acceptFrom(listener.get())));
    ASSERT_TRUE(peer.hear().ok());
    peer.write(answer);
    EXPECT_FALSE(peer.hear().ok());  // until the dialer goes
  });
  Status status = dial(*io::Address::ofSocket(listener.get()), credentialsOf("guest", 1), patience()).status();
  acceptor.join();
  return status;
}

TEST(Handshake, aDialerSaysThatTheAcceptorSpeaksAnotherVersion) {
  Greeting other{77, Purpose::kPeer, {"door", 0}, randomNonce()};
  Status status = dialAgainst(handshakeFrame(encodeGreeting(Step::kChallenge, other)));
  EXPECT_EQ(Code::kFailedPrecondition, status.code());
  EXPECT_NE(std::string::npos, status.message().find("version 77")) << status.message();
}

TEST(Handshake, theAcceptorsReasonReachesTheDialer) {
  Status status = dialAgainst(handshakeFrame(encodeReject(resourceExhausted("no room for you"))));
  EXPECT_EQ(Code::kResourceExhausted, status.code());
  EXPECT_NE(std::string::npos, status.message().find("no room for you"));
  Door door;
  Status unwanted = dial(door.address(), credentialsOf("unwanted", 1), patience()).status();
  EXPECT_EQ(Code::kFailedPrecondition, unwanted.code());
  EXPECT_NE(std::string::npos, unwanted.message().find("'unwanted' may not come in"));
  EXPECT_EQ(0, door.arrived.count());
}

TEST(Handshake, aDialerRefusesWhatIsNoAnswer) {
  std::string http = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
  auto text = std::as_bytes(std::span(http));
  EXPECT_EQ(Code::kDataLoss, dialAgainst({text.begin(), text.end()}).code());
  EXPECT_EQ(Code::kDataLoss, dialAgainst(handshakeFrame(encodeStep(Step::kWelcome, {}))).code());  // no proof
  EXPECT_EQ(Code::kDataLoss, dialAgainst(wire::frameFront(wire::FrameKind::kHeartbeat, 0, {}, {})).code());
  EXPECT_EQ(Code::kResourceExhausted,
            dialAgainst(wire::frameFront(wire::FrameKind::kHandshake, 0, std::vector<std::byte>(9000), {})).code());
}

// ---- strangers at the door

TEST(Handshake, garbageIsTurnedAwayAndHonestDialersStillComeIn) {
  Door door;
  test::forSeeds(100, [&](test::Random& random) {
    RawPeer stranger(door.address());
    std::vector<std::byte> bytes = test::randomBytes(random, test::pick(random, 2000));
    // Some of it looks like a frame, some like a hello.
    if (test::pick(random, 2) == 0) bytes = wire::frameFront(wire::FrameKind::kHandshake, 0, bytes, {});
    if (test::pick(random, 4) == 0)
      bytes = handshakeFrame(encodeGreeting(
          Step::kHello, {kProtocolVersion, Purpose::kPeer, {std::string(bytes.size() % 300, 'x'), -7}, {}}));
    stranger.write(bytes);
    if (test::pick(random, 2) == 0) stranger.write(bytes);
  });
  EXPECT_TRUE(dial(door.address(), credentialsOf("guest", 1), patience()).ok());
  door.arrived.waitFor(1);
  EXPECT_EQ(1, door.arrived.count());
}

TEST(Handshake, messagesOutOfTurnAreTurnedAway) {
  Door door;
  for (Step step : {Step::kProof, Step::kWelcome, Step::kChallenge}) {
    RawPeer peer(door.address());
    peer.say(step == Step::kChallenge ? encodeGreeting(step, {}) : encodeStep(step, Proof{}));
    EXPECT_EQ(Code::kDataLoss, peer.heardRejection().code());
  }
  RawPeer twice(door.address());
  twice.sayHello({kProtocolVersion, Purpose::kPeer, {"guest", 1}, {}});
  twice.sayHello({kProtocolVersion, Purpose::kPeer, {"guest", 1}, {}});
  EXPECT_EQ(Code::kDataLoss, twice.heardRejection().code());
  EXPECT_EQ(0, door.arrived.count());
}

TEST(Handshake, strangersInARowWaitForTheirTurn) {
  Door door;
  const TimePoint begin = Clock::now();
  for (int i = 0; i < Strangers::kAtOnce + Strangers::kPerSecond; ++i) {
    RawPeer stranger(door.address());
    stranger.say(encodeStep(Step::kProof, Proof{}));
    EXPECT_EQ(Code::kDataLoss, stranger.heardRejection().code());
  }
  EXPECT_GE(Clock::now() - begin, 500ms) << "a second's worth came beyond those that are let in at once";
  EXPECT_TRUE(dial(door.address(), credentialsOf("guest", 1), patience()).ok()) << "and so does who is honest";
}

// They are refused before any of them had to wait. Then the acceptor closes connections for a second.
TEST(Handshake, aFloodAtOnceDoesNotKeepOutWhoIsHonest) {
  if (!test::mayHaveDescriptors(8 * 500)) GTEST_SKIP() << "an acceptor here does not take so many at a time";
  Door door;
  std::vector<std::unique_ptr<RawPeer>> strangers;
  for (int i = 0; i < 400; ++i) strangers.push_back(std::make_unique<RawPeer>(door.address()));
  RawPeer last(door.address());
  last.sayHello({kProtocolVersion, Purpose::kPeer, {"last", 1}, {}});
  ASSERT_TRUE(last.hear().ok()) << "all have been accepted";
  for (auto& stranger : strangers) stranger->say(encodeStep(Step::kProof, Proof{}));
  for (auto& stranger : strangers) EXPECT_EQ(Code::kDataLoss, stranger->heardRejection().code());
  EXPECT_TRUE(dial(door.address(), credentialsOf("guest", 1), patience()).ok());
}

TEST(Handshake, whoSaysNothingOrDawdlesIsDroppedAtTheTimeout) {
  EXPECT_TRUE(test::withLongerLimits(1s, [](Duration limit) {
    Door door("tcp://127.0.0.1:0", limit);
    RawPeer silent(door.address()), slow(door.address());
    Greeting hello{kProtocolVersion, Purpose::kPeer, {"slow", 1}, randomNonce()};
    slow.sayHello(hello);
    Result<Incoming> challenge = slow.hear();
    if (!challenge.ok() || challenge->step != Step::kChallenge) return false;  // it was dropped before it was heard
    EXPECT_EQ(Code::kDeadlineExceeded, silent.heardRejection().code());
    EXPECT_EQ(Code::kDeadlineExceeded, slow.heardRejection().code());
    EXPECT_EQ(0, door.arrived.count());
    return true;
  }));
}

TEST(Handshake, aDialerWaitsForASilentAcceptorNoLongerThanItsDeadline) {
  io::Fd listener = valueOrThrow(io::listenOn(*io::Address::parse("tcp://127.0.0.1:0")));
  Status status = dial(*io::Address::ofSocket(listener.get()), credentialsOf("guest", 1), Clock::now() + 50ms).status();
  EXPECT_EQ(Code::kDeadlineExceeded, status.code());
}

TEST(Handshake, takesItsBytesOneByOne) {
  Door door;
  RawPeer peer(door.address());
  Greeting greeting{kProtocolVersion, Purpose::kPeer, {"slow", 1}, randomNonce()};
  std::vector<std::byte> hello = encodeGreeting(Step::kHello, greeting);
  for (std::byte byte : handshakeFrame(hello)) peer.write(Bytes(&byte, 1));
  Result<Incoming> challenge = peer.hear();
  ASSERT_TRUE(challenge.ok());
  Proof proof = proofOf("the key of this job", "dialer", hello, challenge->greetingBytes);
  for (std::byte byte : handshakeFrame(encodeStep(Step::kProof, proof))) peer.write(Bytes(&byte, 1));
  EXPECT_EQ(Step::kWelcome, peer.hear()->step);
}

TEST(Handshake, servesManyAtOnceWithSilentOnesAmongThem) {
  constexpr int kThreads = 8, kEach = 20;
  Door door("unix:treadle-handshake-test-many");
  std::vector<RawPeer> silent;
  for (int i = 0; i < 50; ++i) silent.emplace_back(door.address());
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        Result<Dialed> dialed = dial(door.address(), credentialsOf("guest", t * kEach + i), patience());
        EXPECT_TRUE(dialed.ok()) << dialed.status().toString();
      }
    });
  for (std::thread& thread : threads) thread.join();
  door.arrived.waitFor(kThreads * kEach);
  std::vector<bool> seen(kThreads * kEach);
  for (auto& [fd, hello] : door.takeGuests()) seen.at(static_cast<size_t>(hello.worker.rank)) = true;
  EXPECT_EQ(seen, std::vector<bool>(seen.size(), true));
}

// Who fills the acceptor with connections that say nothing does not keep others out.
TEST(Handshake, whoTakesAllPlacesGivesWay) {
  rlimit before{};
  ASSERT_EQ(0, ::getrlimit(RLIMIT_NOFILE, &before));
  const rlimit few{.rlim_cur = 1024, .rlim_max = before.rlim_max};  // of which strangers get an eighth
  ASSERT_EQ(0, ::setrlimit(RLIMIT_NOFILE, &few));
  {
    Door door;
    std::vector<RawPeer> silent;
    for (int i = 0; i < 200; ++i) silent.emplace_back(door.address());
    EXPECT_TRUE(dial(door.address(), credentialsOf("guest", 1), patience()).ok());
  }
  ASSERT_EQ(0, ::setrlimit(RLIMIT_NOFILE, &before));
}

// Passes bytes on between one who connects to it and `to`, until either closes.
class Relay {
 public:
  explicit Relay(const io::Address& to) {
    thread_ = std::thread([this, to] {
      EXPECT_TRUE(test::readable(listener_.get(), "a connection"));
      io::Fd from = valueOrThrow(io::acceptFrom(listener_.get())), on = valueOrThrow(io::connectTo(to, patience()));
      std::array<pollfd, 2> ends = {pollfd{from.get(), POLLIN, 0}, pollfd{on.get(), POLLIN, 0}};
      std::array<std::byte, 4096> bytes;
      for (;;) {
        if (::poll(ends.data(), ends.size(), io::millisecondsUntil(patience())) <= 0)
          FAIL() << test::waitedInVain("neither end said more, or closed").message();
        for (size_t i = 0; i < ends.size(); ++i) {
          if (ends[i].revents == 0) continue;
          const ssize_t got = ::recv(ends[i].fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
          if (got <= 0 || ::send(ends[1 - i].fd, bytes.data(), static_cast<size_t>(got), MSG_NOSIGNAL) != got) return;
        }
      }
    });
  }
  ~Relay() { thread_.join(); }
  io::Address address() const { return valueOrThrow(io::Address::ofSocket(listener_.get())); }

 private:
  const io::Fd listener_ = valueOrThrow(io::listenOn(*io::Address::parse("tcp://127.0.0.1:0")));
  std::thread thread_;
};

// A process of another user may listen at a port where workers look for the meeting before rank 0 does. Elsewhere a
// relay may stand between two workers: what they announce is theirs.
TEST(Handshake, nobodyStandsBetweenThoseThatMeet) {
  Door door;
  Credentials guest = credentialsOf("guest", 1);
  {
    Relay relay(door.address());
    EXPECT_TRUE(dial(relay.address(), guest, patience()).ok());
    door.arrived.waitFor(1);
    door.takeGuests();
  }
  guest.self.purpose = Purpose::kRendezvous;
  Relay relay(door.address());
  EXPECT_EQ(Code::kUnauthenticated, dial(relay.address(), guest, patience()).status().code());
}

TEST(Handshake, anAcceptorThatGoesDropsWhoIsStillAtTheDoor) {
  Door door;
  RawPeer peer(door.address());
  peer.sayHello({kProtocolVersion, Purpose::kPeer, {"guest", 1}, {}});
  ASSERT_EQ(Step::kChallenge, peer.hear()->step);
  io::Address address = door.address();
  door.acceptor.reset();
  EXPECT_FALSE(peer.hear().ok());
  EXPECT_EQ(Code::kPeerLost, dial(address, credentialsOf("guest", 1), patience()).status().code());
}

}  // namespace
}  // namespace treadle::link::handshake_test
