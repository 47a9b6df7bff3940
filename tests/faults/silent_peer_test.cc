// A peer that falls silent in the middle of a transfer and lives on, as a stopped process does: it is lost by the time
// limit, whatever its transfer waits for, and what it holds comes back when its process ends.

#include <thread>

#include "tests/faults/survivor.h"

namespace treadle::silent_peer_test {
namespace {

using test::Channel;

struct Silence {
  const char* name;
  Channel channel;
  const char* point;  // where it stops
};

std::ostream& operator<<(std::ostream& out, const Silence& silence) { return out << silence.name; }

class SilentPeer : public ::testing::TestWithParam<Silence> {
 protected:
  bool onLanes() const { return GetParam().channel == Channel::kLanes || GetParam().channel == Channel::kTcpLanes; }

  void meet() {
    survivor.meet(GetParam().point);
    if (onLanes()) survivor.giveLane();
    survivor.waitUntilThere();
    survivor.watch();
  }
  void expectThatItIsLostAndLeavesNothing() {
    EXPECT_TRUE(test::contains(survivor.loss().message(), "nothing was heard of it for"));
    survivor.transfer();
    survivor.endVictim();
    survivor.expectNothingLeft();
  }

  test::Survivor survivor{GetParam().channel, std::chrono::seconds(3)};
};

class SilentSender : public SilentPeer {};

TEST_P(SilentSender, isLostInTheMiddleOfWhatItSends) {
  meet();
  if (onLanes()) survivor.mailbox.heralded.waitFor(1);
  expectThatItIsLostAndLeavesNothing();
  if (onLanes()) survivor.mailbox.failed.waitFor(1);
}

INSTANTIATE_TEST_SUITE_P(Ways, SilentSender,
                         ::testing::Values(Silence{"Unix", Channel::kSocket, "sendsHalfABuffer"},
                                           Silence{"Tcp", Channel::kTcpSocket, "sendsHalfABuffer"},
                                           Silence{"LanesOverUnix", Channel::kLanes, "sendsHalfAPiece"},
                                           Silence{"LanesOverTcp", Channel::kTcpLanes, "sendsHalfAPiece"},
                                           Silence{"SharedMemory", Channel::kSharedMemory, "lendsABlock"}),
                         [](const auto& info) { return info.param.name; });

class SilentReceiver : public SilentPeer {};

TEST_P(SilentReceiver, isLostWhileASenderWaitsForIt) {
  survivor.meet(GetParam().point);
  survivor.watch();
  std::vector<std::byte> bytes(32 * test::kVictimBytes);  // more than any socket takes
  Buffer borrowed = Buffer::borrow(bytes.data(), bytes.size());
  Status sent;
  std::thread sender([&] { sent = survivor.send(test::kVictim, std::array{borrowed}, link::SendMode::kStay); });
  expectThatItIsLostAndLeavesNothing();
  sender.join();
  // Once a frame has begun it counts as sent; the loss is what tells.
  EXPECT_TRUE(sent.ok() || sent.code() == Code::kPeerLost) << sent.toString();
  EXPECT_EQ("victim", survivor.send(test::kVictim, {}, link::SendMode::kCapture).worker());
}

INSTANTIATE_TEST_SUITE_P(Ways, SilentReceiver,
                         ::testing::Values(Silence{"Unix", Channel::kSocket, "takesNothing"},
                                           Silence{"Tcp", Channel::kTcpSocket, "takesNothing"},
                                           Silence{"LanesOverTcp", Channel::kTcpLanes, "takesNothing"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace treadle::silent_peer_test
