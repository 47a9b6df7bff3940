#include "treadle/core/link/handshake_messages.h"

#include <fstream>
#include <iterator>

#include "tests/support/places.h"
#include "tests/support/seeds.h"

namespace treadle::link::handshake_messages_test {
namespace {

using test::sourcePath;

Nonce nonceOf(int value) {
  Nonce nonce;
  nonce.fill(static_cast<std::byte>(value));
  return nonce;
}

Greeting greetingOf(std::string name, int rank) {
  return {kProtocolVersion, Purpose::kPeer, {std::move(name), rank}, nonceOf(7)};
}

Result<Incoming> parse(std::vector<std::byte> payload, wire::FrameKind kind = wire::FrameKind::kHandshake) {
  Frame frame;
  frame.header.kind = kind;
  frame.payload = std::move(payload);
  return parseHandshake(frame);
}

std::vector<std::byte> challengeOf(const Greeting& greeting, const Proof& proof) {
  std::vector<std::byte> message = encodeGreeting(Step::kChallenge, greeting);
  message.insert(message.end(), proof.begin(), proof.end());
  return message;
}

TEST(HandshakeMessages, comeBackAsTheyWereMade) {
  Greeting greeting = greetingOf(std::string(kNameBytes, 'n'), 65'535);
  Result<Incoming> hello = parse(encodeGreeting(Step::kHello, greeting));
  ASSERT_TRUE(hello.ok()) << hello.status().toString();
  EXPECT_EQ(Step::kHello, hello->step);
  EXPECT_EQ(greeting.worker, hello->greeting.worker);
  EXPECT_EQ(greeting.nonce, hello->greeting.nonce);
  EXPECT_EQ(encodeGreeting(Step::kHello, greeting), hello->greetingBytes);
  Proof proof = proofOf("key", "acceptor", {}, {});
  Result<Incoming> challenge = parse(challengeOf(greeting, proof));
  ASSERT_TRUE(challenge.ok());
  EXPECT_EQ(proof, challenge->proof);
  EXPECT_EQ(encodeGreeting(Step::kChallenge, greeting), challenge->greetingBytes);
  EXPECT_EQ(proof, parse(encodeStep(Step::kProof, proof))->proof);
  EXPECT_EQ(Step::kWelcome, parse(encodeStep(Step::kWelcome, {}))->step);
  Result<Incoming> reject = parse(encodeReject(unauthenticated("another key")));
  EXPECT_EQ("Unauthenticated: another key", reject->reason.toString());
}

TEST(HandshakeMessages, areRefusedWhenCutAnywhereOrTooLong) {
  for (std::vector<std::byte> whole :
       {encodeGreeting(Step::kHello, greetingOf("worker", 3)), challengeOf(greetingOf("worker", 3), Proof{}),
        encodeStep(Step::kProof, Proof{}), encodeStep(Step::kWelcome, {}), encodeReject(internalError("why"))}) {
    for (size_t cut = 0; cut < whole.size(); ++cut)
      EXPECT_EQ(Code::kDataLoss, parse({whole.begin(), whole.begin() + static_cast<long>(cut)}).status().code());
    whole.push_back({});
    EXPECT_EQ(Code::kDataLoss, parse(whole).status().code());
  }
}

TEST(HandshakeMessages, areRefusedWithValuesOutOfRange) {
  EXPECT_FALSE(parse(encodeGreeting(Step::kHello, greetingOf(std::string(kNameBytes + 1, 'n'), 0))).ok());
  Greeting purpose = greetingOf("w", 0);
  for (int value : {0, 6, 255}) {
    purpose.purpose = static_cast<Purpose>(value);
    EXPECT_FALSE(parse(encodeGreeting(Step::kHello, purpose)).ok());
  }
  // Only a summation service has a number.
  for (const Purpose other : {Purpose::kRendezvous, Purpose::kPeer, Purpose::kRequestLane, Purpose::kAnswerLane}) {
    Greeting numbered = greetingOf("w", 0);
    numbered.purpose = other;
    numbered.number = 1;
    EXPECT_FALSE(parse(encodeGreeting(Step::kHello, numbered)).ok());
  }
  for (int step : {0, 6, 255}) EXPECT_FALSE(parse(encodeStep(static_cast<Step>(step), {})).ok());
  EXPECT_FALSE(parse(encodeReject(Status(static_cast<Code>(11), "no such code"))).ok());
  // A rejection for no reason is none.
  std::vector<std::byte> ok = encodeReject(internalError(""));
  ok[1] = std::byte{0};
  EXPECT_FALSE(parse(ok).ok());
  EXPECT_EQ(Code::kDataLoss, parse(encodeStep(Step::kWelcome, {}), wire::FrameKind::kMessage).status().code());
}

TEST(HandshakeMessages, mayNotComeWithBuffers) {
  Frame frame;
  frame.header.kind = wire::FrameKind::kHandshake;
  frame.payload = encodeStep(Step::kWelcome, {});
  frame.buffers.resize(1);
  EXPECT_EQ(Code::kDataLoss, parseHandshake(frame).status().code());
}

// Whatever another version's greeting looks like behind its version, the message is about the version.
TEST(HandshakeMessages, ofAnotherVersionNameBothVersions) {
  for (uint16_t version : {uint16_t{0}, uint16_t{kProtocolVersion + 1}, uint16_t{65'535}}) {
    Greeting other = greetingOf("w", 0);
    other.version = version;
    for (size_t size : {size_t{3}, size_t{20}, size_t{2000}}) {
      std::vector<std::byte> message = encodeGreeting(Step::kHello, other);
      message.resize(size, std::byte{0xFF});
      Status status = parse(message).status();
      EXPECT_EQ(Code::kFailedPrecondition, status.code());
      EXPECT_NE(std::string::npos, status.message().find("version " + std::to_string(version)));
      EXPECT_NE(std::string::npos, status.message().find("version " + std::to_string(kProtocolVersion)));
    }
  }
}

// The pages of the protocol are those of this version, and say what it changed.
TEST(ProtocolVersion, isTheOneThatThePagesDescribe) {
  std::ifstream file(sourcePath("docs/protocol/README.md"));
  const std::string page{std::istreambuf_iterator<char>(file), {}}, version = std::to_string(kProtocolVersion);
  EXPECT_NE(std::string::npos, page.find("These pages describe version " + version + " ("));
  EXPECT_NE(std::string::npos, page.find("\n| " + version + " | "));
  EXPECT_EQ(std::string::npos, page.find("\n| " + std::to_string(kProtocolVersion + 1) + " | "));
}

TEST(HandshakeMessages, surviveAHundredThousandMutations) {
  test::Random random(1);
  std::vector<std::vector<std::byte>> wholes = {
      encodeGreeting(Step::kHello, greetingOf("worker", 3)), challengeOf(greetingOf("worker", 3), Proof{}),
      encodeStep(Step::kProof, Proof{}), encodeReject(internalError("a reason"))};
  for (int i = 0; i < 100'000; ++i) {
    std::vector<std::byte> message = wholes[test::pick(random, wholes.size())];
    message.resize(test::pick(random, message.size() + 3));
    for (uint64_t left = test::pick(random, 5); left > 0 && !message.empty(); --left)
      message[test::pick(random, std::min<size_t>(message.size(), 20))] = static_cast<std::byte>(random());
    Result<Incoming> incoming = parse(message);
    if (!incoming.ok()) continue;
    ASSERT_LE(incoming->greeting.worker.name.size(), kNameBytes);
    ASSERT_LE(incoming->reason.message().size(), message.size());
  }
}

// A proof must not serve for anything but its own role, key and greetings.
TEST(HandshakeProofs, dependOnKeyRoleAndBothGreetings) {
  std::vector<std::byte> a = encodeGreeting(Step::kHello, greetingOf("a", 0));
  std::vector<std::byte> b = encodeGreeting(Step::kChallenge, greetingOf("b", 1));
  Proof proof = proofOf("key", "dialer", a, b);
  EXPECT_TRUE(sameProof(proof, proofOf("key", "dialer", a, b)));
  EXPECT_FALSE(sameProof(proof, proofOf("kez", "dialer", a, b)));
  EXPECT_FALSE(sameProof(proof, proofOf("key", "acceptor", a, b)));
  EXPECT_FALSE(sameProof(proof, proofOf("key", "dialer", b, a)));
  EXPECT_FALSE(sameProof(proof, proofOf("key", "dialer", a, a)));
  EXPECT_NE(randomNonce(), randomNonce());
}

Credentials thatMeet(const std::string& key) {
  Credentials made{key, {}};
  made.unixSockets = true;
  return made;
}

// Computed by Python's hmac, from docs/protocol/rendezvous.md.
TEST(MeetingSocket, hasTheNameThatThePeersOfTheProtocolComeTo) {
  const Credentials known = thatMeet("the key of this job");
  const std::pair<const char*, const char*> cases[] = {
      {"tcp://127.0.0.1:29500", "unix:treadle-meet-0d0387560e9edf025d7afcdd2ea2bdf8"},
      {"tcp://[::1]:29500", "unix:treadle-meet-c8c35a0603b4dc81e9efb70074d3076c"},
  };
  for (const auto& [port, name] : cases) EXPECT_EQ(name, known.meetingSocket(*io::Address::parse(port))->toString());
}

TEST(MeetingSocket, isNotThereForThosePortsThatOtherHostsReachOrWithoutAKey) {
  const io::Address loopback = *io::Address::tcp("127.0.0.1", 29500), beyond = *io::Address::tcp("10.0.0.7", 29500);
  EXPECT_TRUE(thatMeet("key").meetingSocket(loopback));
  EXPECT_FALSE(thatMeet("key").meetingSocket(beyond));
  EXPECT_FALSE(thatMeet("").meetingSocket(loopback));
  EXPECT_FALSE((Credentials{"key", {}}.meetingSocket(loopback))) << "sockets are not allowed";
}

}  // namespace
}  // namespace treadle::link::handshake_messages_test
