#include "treadle/core/cluster/rendezvous_messages.h"

#include "tests/support/seeds.h"
#include "treadle/core/cluster/launch.h"

namespace treadle::cluster::rendezvous_messages_test {
namespace {

using namespace std::chrono_literals;

Roster someRoster() {
  return {{{"ps", 0}, {"unix:a", "tcp://127.0.0.1:1"}}, {{"trainer", 1}, {}}, {{"x", 2}, {"unix:c"}}};
}

TEST(RendezvousMessages, comeBackAsTheyWereMade) {
  Result<RendezvousMessage> registration =
      parseRendezvous(encodeRegistration({{4, 1}, {"unix:a", "tcp://127.0.0.1:1"}, 1500ms}));
  ASSERT_TRUE(registration.ok());
  EXPECT_EQ(Step::kRegister, registration->step);
  EXPECT_EQ((World{4, 1}), registration->registration.world);
  EXPECT_EQ(1500ms, registration->registration.timeLeft);
  EXPECT_EQ((std::vector<std::string>{"unix:a", "tcp://127.0.0.1:1"}), registration->registration.addresses);
  Result<RendezvousMessage> roster = parseRendezvous(encodeRoster(someRoster()));
  ASSERT_TRUE(roster.ok());
  ASSERT_EQ(3U, roster->roster.size());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(someRoster()[i].worker, roster->roster[i].worker);
    EXPECT_EQ(someRoster()[i].addresses, roster->roster[i].addresses);
  }
  EXPECT_EQ(Step::kReady, parseRendezvous(encodeStep(Step::kReady))->step);
  EXPECT_EQ(Step::kGo, parseRendezvous(encodeStep(Step::kGo))->step);
  Result<RendezvousMessage> failure = parseRendezvous(encodeFailure(peerLost("ps", "it died")));
  EXPECT_EQ("PeerLost: it died", failure->failure.toString());
  EXPECT_EQ("ps", failure->failure.worker());
  EXPECT_EQ(7U, parseRendezvous(encodeEcho(7))->number);
  for (size_t sizeBytes : {size_t{0}, size_t{1}, size_t{1} << 20}) {
    const std::vector<std::byte> probe = encodeProbe(9, sizeBytes);
    EXPECT_EQ(5 + sizeBytes, probe.size());
    EXPECT_EQ(Step::kProbe, parseRendezvous(probe)->step);
    EXPECT_EQ(9U, parseRendezvous(probe)->number);
  }
}

TEST(RendezvousMessages, areRefusedWhenCutAnywhereOrTooLong) {
  for (std::vector<std::byte> whole : {encodeRegistration({4, {"unix:a"}}), encodeRoster(someRoster()),
                                       encodeStep(Step::kGo), encodeFailure(internalError("why")), encodeEcho(1)}) {
    for (size_t cut = 0; cut < whole.size(); ++cut)
      EXPECT_EQ(Code::kDataLoss, parseRendezvous(Bytes(whole).first(cut)).status().code()) << cut;
    whole.push_back({});
    EXPECT_EQ(Code::kDataLoss, parseRendezvous(whole).status().code());
  }
  EXPECT_FALSE(parseRendezvous(encodeStep(static_cast<Step>(6))).ok());
  EXPECT_FALSE(parseRendezvous(encodeStep(static_cast<Step>(0))).ok());
  EXPECT_FALSE(parseRendezvous(encodeRegistration({4, std::vector<std::string>(17, "unix:a")})).ok());
  EXPECT_FALSE(parseRendezvous(encodeRegistration({4, {std::string(257, 'a')}})).ok());
  EXPECT_FALSE(parseRendezvous(encodeRoster({{{std::string(128, 'n'), 0}, {}}})).ok());
  EXPECT_TRUE(parseRendezvous(encodeRoster(Roster(kMaxWorldSize))).ok());
  EXPECT_FALSE(parseRendezvous(encodeRoster(Roster(kMaxWorldSize + 1))).ok()) << "no job has so many workers";
}

TEST(RendezvousMessages, surviveAHundredThousandMutations) {
  test::Random random(1);
  std::vector<std::vector<std::byte>> wholes = {encodeRegistration({4, {"unix:a", "unix:b"}}),
                                                encodeRoster(someRoster()), encodeFailure(peerLost("ps", "it died"))};
  for (int i = 0; i < 100'000; ++i) {
    std::vector<std::byte> message = wholes[test::pick(random, wholes.size())];
    message.resize(test::pick(random, message.size() + 3));
    for (uint64_t left = test::pick(random, 5); left > 0 && !message.empty(); --left)
      message[test::pick(random, message.size())] = static_cast<std::byte>(test::pick(random, 3) == 0 ? 0 : random());
    Result<RendezvousMessage> parsed = parseRendezvous(message);
    if (!parsed.ok()) continue;
    ASSERT_LE(parsed->roster.size(), message.size());
    if (parsed->step == Step::kFail) {
      ASSERT_FALSE(parsed->failure.ok());
    }
  }
}

}  // namespace
}  // namespace treadle::cluster::rendezvous_messages_test
