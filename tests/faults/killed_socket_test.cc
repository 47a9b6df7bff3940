// A peer that is killed while bytes of a large buffer are on their way through sockets: beside the message or on lanes.

#include <thread>

#include "tests/faults/survivor.h"

namespace treadle::killed_socket_test {
namespace {

using link::SendMode;
using test::Channel;
using test::Survivor;

constexpr size_t kLarge = 32 * test::kVictimBytes;  // more than any socket takes

Buffer filled(size_t sizeBytes) {
  Buffer buffer = allocateBuffer(sizeBytes);
  std::fill_n(buffer.data, sizeBytes, std::byte{3});
  return buffer;
}

std::string nameOf(const ::testing::TestParamInfo<Channel>& info) {
  constexpr std::array kNames = {"Unix", "Tcp", "LanesOverUnix", "LanesOverTcp"};
  return kNames[static_cast<size_t>(info.param)];
}

// ---- what the survivor sends

class KilledReceiver : public ::testing::TestWithParam<Channel> {
 protected:
  // A sender that stays with its bytes, and one whose bytes were captured.
  void killWhileItIsSentTo(const std::string& point) {
    Survivor survivor(GetParam());
    survivor.meet(point);
    Buffer owned = filled(kLarge), lent = filled(kLarge);
    Buffer borrowed = Buffer::borrow(lent.data, lent.sizeBytes);
    EXPECT_TRUE(survivor.send(test::kVictim, std::array{borrowed}, SendMode::kCapture).ok());
    Status stayed;
    std::thread sender([&] { stayed = survivor.send(test::kVictim, std::array{borrowed}, SendMode::kStay); });
    survivor.waitUntilThere();
    survivor.kill();
    sender.join();
    // Once a frame has begun it counts as sent; the loss is what tells.
    EXPECT_TRUE(stayed.ok() || stayed.code() == Code::kPeerLost) << stayed.toString();
    EXPECT_EQ(Code::kPeerLost, survivor.send(test::kVictim, std::array{owned}, SendMode::kStay).code());
    EXPECT_EQ("victim", survivor.send(test::kVictim, {}, SendMode::kCapture).worker());
    survivor.expectNothingLeft();
  }
};

TEST_P(KilledReceiver, thatReadNothing) { killWhileItIsSentTo("takesNothing"); }
TEST_P(KilledReceiver, thatReadTheFrontAlone) { killWhileItIsSentTo("takesTheFront"); }

// The survivor's bytes are on the connection itself, or on lanes that it has dialed.
TEST_P(KilledReceiver, thatReadHalf) {
  bool onLanes = GetParam() == Channel::kLanes || GetParam() == Channel::kTcpLanes;
  killWhileItIsSentTo(onLanes ? "takesHalfAPiece" : "takesHalfABuffer");
}

INSTANTIATE_TEST_SUITE_P(Ways, KilledReceiver,
                         ::testing::Values(Channel::kSocket, Channel::kTcpSocket, Channel::kLanes, Channel::kTcpLanes),
                         nameOf);

// ---- what the victim sends

class KilledSender : public ::testing::TestWithParam<Channel> {};

TEST_P(KilledSender, ofHalfAFront) {
  Survivor survivor(GetParam());
  survivor.meet("sendsHalfAFront");
  survivor.waitUntilThere();
  survivor.kill();
  EXPECT_EQ(0, survivor.mailbox.heralded.count());
  survivor.expectNothingLeft();
}

TEST_P(KilledSender, ofHalfABuffer) {
  Survivor survivor(GetParam());
  survivor.meet("sendsHalfABuffer");
  survivor.waitUntilThere();
  EXPECT_TRUE(test::eventually([&] { return survivor.pool->counters().usedBytes > 0; }));
  survivor.kill();
  survivor.expectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(Ways, KilledSender, ::testing::Values(Channel::kSocket, Channel::kTcpSocket), nameOf);

class KilledOnLanes : public ::testing::TestWithParam<Channel> {};

// The message is known of already, and told that it will never be whole.
void killInTheMiddle(Channel channel, const std::string& point) {
  Survivor survivor(channel);
  survivor.meet(point);
  survivor.giveLane();
  survivor.waitUntilThere();
  survivor.mailbox.heralded.waitFor(1);
  survivor.kill();
  survivor.mailbox.failed.waitFor(1);
  survivor.expectNothingLeft();
}

TEST_P(KilledOnLanes, inTheMiddleOfAPiece) { killInTheMiddle(GetParam(), "sendsHalfAPiece"); }
TEST_P(KilledOnLanes, inTheMiddleOfAPiecesFront) { killInTheMiddle(GetParam(), "sendsHalfAPiecesFront"); }

TEST_P(KilledOnLanes, thatNothingWasSentOn) {
  Survivor survivor(GetParam());
  survivor.meet("takesALane");
  survivor.giveLane();
  survivor.waitUntilThere();
  survivor.kill();
  survivor.expectNothingLeft();
}

TEST_P(KilledOnLanes, beforeItsMessageCame) {
  Survivor survivor(GetParam());
  survivor.meet("sendsAPieceOfNoMessage");
  survivor.giveLane();
  survivor.waitUntilThere();
  EXPECT_TRUE(test::eventually([&] { return survivor.pool->counters().usedBytes > 0; }));
  survivor.kill();
  EXPECT_EQ(0, survivor.mailbox.failed.count());
  survivor.expectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(Ways, KilledOnLanes, ::testing::Values(Channel::kLanes, Channel::kTcpLanes), nameOf);

}  // namespace
}  // namespace treadle::killed_socket_test
