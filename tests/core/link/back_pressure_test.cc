// A peer that reads slowly or not at all holds up who sends to it, and costs a bounded amount of memory.
#include "tests/core/link/connected_pair.h"
#include "tests/support/readable.h"
#include "tests/support/seeds.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/link/frame_reader.h"

namespace treadle::link::back_pressure_test {
namespace {

using namespace std::chrono_literals;
using Kind = Connection::Kind;

using test::patience;

Status sendFilled(Connection& connection, size_t size, int value, TimePoint deadline,
                  SendMode mode = SendMode::kCapture) {
  Buffer buffer = filledBuffer(size, value);
  return connection.send(Subject::kRpc, filled(1, value), {&buffer, 1}, mode, deadline);
}

// The other end: reads nothing until told to, then checks that the stream is whole.
class SlowPeer {
 public:
  explicit SlowPeer(io::Fd fd) : fd_(std::move(fd)) {}

  // Reads `count` messages and checks each; the values that they carry.
  std::vector<int> read(size_t count) {
    std::vector<int> values;
    UniqueFunction<void(Frame)> onFrame = [&](Frame frame) {
      if (frame.header.kind != wire::FrameKind::kMessage) return;
      values.push_back(static_cast<int>(frame.payload.at(0)));
      EXPECT_TRUE(allBytesAre(frame.buffers.at(0).bytes(), values.back()));
    };
    while (values.size() < count) {
      io::Stream stream = test::streamOn(fd_.get());
      Result<bool> got = reader_.readFrom(stream, onFrame);
      const auto more =
          got.ok() && !*got ? test::readable(fd_.get(), "the next message") : ::testing::AssertionSuccess();
      EXPECT_TRUE(more);
      EXPECT_TRUE(got.ok()) << "the stream ended: " << got.status().toString();
      if (!got.ok() || !more) break;
    }
    return values;
  }
  void say(int value) {
    auto frame = wire::frameFront(wire::FrameKind::kMessage, static_cast<uint8_t>(Subject::kRpc), filled(1, value));
    io::writeAll(fd_.get(), frame, patience()).ignore();
  }
  bool nothingIsLeft() { return !io::waitFor(fd_.get(), POLLIN, Clock::now()); }
  void die() { fd_.reset(); }

 private:
  io::Fd fd_;
  FrameReader reader_{{}};
};

// The promise of 64 MiB per peer, as it is by default.
TEST(BackPressure, queuesAtMost64MiBForAPeerThatIsStopped) {
  constexpr size_t kMessage = 1 << 20, kLimit = 64 << 20;
  Sockets sockets;
  End sender(std::move(sockets.a), Kind::kServing);
  SlowPeer peer(std::move(sockets.b));
  std::vector<int> sent;
  Status status;
  while (status.ok() && sent.size() < 200) {
    int value = static_cast<int>(sent.size());
    status = sendFilled(*sender.share(), kMessage, value, Clock::now() + 50ms);
    if (status.ok()) sent.push_back(value);
    ASSERT_LE(sender->queuedBytes(), kLimit);
  }
  EXPECT_EQ(Code::kDeadlineExceeded, status.code());
  EXPECT_NE(std::string::npos, status.message().find("reads too slowly")) << status.message();
  EXPECT_GE(sent.size(), kLimit / kMessage - 1);
  // The refused one left nothing behind, and the stream goes on where it was.
  EXPECT_EQ(sent, peer.read(sent.size()));
  ASSERT_TRUE(sendFilled(*sender.share(), kMessage, 250, patience()).ok());
  EXPECT_EQ(std::vector<int>{250}, peer.read(1));
  EXPECT_TRUE(peer.nothingIsLeft());
}

// Also when many begin at the same moment: while one writes, others may queue only what leaves room for its rest.
TEST(BackPressure, holdsItsLimitAgainstManyThreads) {
  constexpr size_t kLimit = 1 << 20, kMessage = 1'000'000;
  for (int round = 0; round < 60; ++round) {
    Sockets sockets;
    End sender(std::move(sockets.a), Kind::kServing, {.maxQueuedBytes = kLimit, .limits = {}, .spinTimeout = {}});
    SlowPeer peer(std::move(sockets.b));
    test::Counter ready;
    std::atomic<size_t> accepted = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        ready.add();
        ready.waitFor(4);
        if (sendFilled(*sender.share(), kMessage, t, Clock::now() + 5ms).ok()) ++accepted;
      });
    for (std::thread& thread : threads) thread.join();
    ASSERT_LE(sender->queuedBytes(), kLimit);
    peer.read(accepted);
    EXPECT_TRUE(peer.nothingIsLeft());
  }
}

TEST(BackPressure, aWaitingSenderGoesOnWhenThePeerReads) {
  Sockets sockets;
  End sender(std::move(sockets.a), Kind::kServing, {.maxQueuedBytes = 1 << 20, .limits = {}, .spinTimeout = {}});
  SlowPeer peer(std::move(sockets.b));
  std::thread thread([&] {
    for (int i = 0; i < 40; ++i) ASSERT_TRUE(sendFilled(*sender.share(), 300'000, i, patience()).ok());
  });
  std::vector<int> values = peer.read(40);
  thread.join();
  for (int i = 0; i < 40; ++i) EXPECT_EQ(i, values[static_cast<size_t>(i)]);
}

TEST(BackPressure, urgentMessagesNeverWait) {
  Sockets sockets;
  End sender(std::move(sockets.a), Kind::kServing, {.maxQueuedBytes = 100'000, .limits = {}, .spinTimeout = {}});
  SlowPeer peer(std::move(sockets.b));
  size_t sent = 0;
  while (sendFilled(*sender.share(), 60'000, 1, Clock::now()).ok()) ++sent;
  ASSERT_TRUE(sendFilled(*sender.share(), 10, 2, kNever, SendMode::kUrgent).ok());
  // A heartbeat would tell the peer no more than what is queued does: it does not pile up.
  size_t queued = sender->queuedBytes();
  for (int i = 0; i < 1000; ++i) sender->sendHeartbeat();
  EXPECT_EQ(queued, sender->queuedBytes());
  EXPECT_EQ(2, peer.read(sent + 1).back());
}

TEST(BackPressure, urgentMessagesForAPeerThatReadsNothingEndTheConnection) {
  Sockets sockets;
  End sender(std::move(sockets.a), Kind::kServing,
             {.maxQueuedBytes = 100'000, .urgentLimitBytes = 200'000, .limits = {}, .spinTimeout = {}});
  Status sent;
  for (int i = 0; sent.ok() && i < 1000; ++i) sent = sendFilled(*sender.share(), 10'000, 1, kNever, SendMode::kUrgent);
  EXPECT_EQ(Code::kPeerLost, sent.code()) << sent.toString();
  sender.sink.closed.waitFor(1);
  EXPECT_EQ(Code::kResourceExhausted, sender.sink.closedWith().code()) << sender.sink.closedWith().toString();
  EXPECT_TRUE(test::eventually([&] { return sender->queuedBytes() == 0; }));  // counted after the write
}

// DeadlineExceeded means that nothing of the message went out. One that has begun is sent whole, for the stream's sake,
// and counts as sent: whoever made it relies on its arrival (the references in it, say).
TEST(BackPressure, aMessageThatHasBegunCountsAsSent) {
  constexpr size_t kLarge = 4 << 20;
  for (SendMode mode : {SendMode::kStay, SendMode::kCapture}) {
    Sockets sockets;
    End sender(std::move(sockets.a), Kind::kServing, {.maxQueuedBytes = 1 << 20, .limits = {}, .spinTimeout = {}});
    SlowPeer peer(std::move(sockets.b));
    auto memory = filled(kLarge, 1);
    Buffer borrowed = Buffer::borrow(memory.data(), memory.size());
    auto send = [&](Duration limit) {
      return sender->send(Subject::kRpc, filled(1, 1), {&borrowed, 1}, mode, Clock::now() + limit);
    };
    EXPECT_TRUE(send(500ms).ok());                             // it begins before it waits for anything
    EXPECT_EQ(Code::kDeadlineExceeded, send(20ms).code());     // the socket is full: this one did not begin
    std::fill(memory.begin(), memory.end(), std::byte{0xEE});  // the memory is the caller's again
    EXPECT_EQ(std::vector<int>{1}, peer.read(1));
    EXPECT_TRUE(peer.nothingIsLeft());
    EXPECT_TRUE(test::eventually([&] { return sender->queuedBytes() == 0; }));  // counted after the write
  }
}

TEST(BackPressure, closingFreesWhoeverWaits) {
  for (bool peerDies : {false, true})
    for (SendMode mode : {SendMode::kStay, SendMode::kCapture}) {
      Sockets sockets;
      End sender(std::move(sockets.a), Kind::kServing, {.maxQueuedBytes = 1 << 20, .limits = {}, .spinTimeout = {}});
      SlowPeer peer(std::move(sockets.b));
      ASSERT_TRUE(sendFilled(*sender.share(), 900'000, 1, patience()).ok());
      test::Counter begun;
      std::vector<std::thread> threads;
      for (int t = 0; t < 3; ++t)
        threads.emplace_back([&] {
          begun.add();
          EXPECT_FALSE(sendFilled(*sender.share(), 2 << 20, 1, patience(), mode).ok());
        });
      begun.waitFor(3);
      if (peerDies) {
        peer.die();
      } else {
        sender->close(failedPrecondition("enough"));
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_TRUE(test::eventually([&] { return sender->queuedBytes() == 0; }));  // counted after the write
      EXPECT_EQ(peerDies ? Code::kPeerLost : Code::kFailedPrecondition, sender.sink.closedWith().code());
    }
}

// ---- threads that poll or read: one of them flushes what others wait for

constexpr size_t kLimit = 1 << 20;

// A peer that reads nothing, and a queue that takes nothing more of threads that may wait.
struct FullLink {
  explicit FullLink(Kind kind = Kind::kServing)
      : sender(std::move(sockets.a), kind, {.maxQueuedBytes = kLimit, .limits = {}, .spinTimeout = {}}),
        peer(std::move(sockets.b)) {
    while (sendFilled(*sender.share(), 1000, 1, Clock::now()).ok()) ++sent;
  }
  // On the thread that polls.
  void poll(UniqueFunction<void()> work) {
    test::Gate done;
    sender.reactor->at(Clock::now(), [&] {
      work();
      done.open();
    });
    done.wait();
    if (!done.isOpen()) sender->close(cancelled("the polling thread waits"));  // it has this thread's gate
    done.wait();
  }

  Sockets sockets;
  End sender;
  SlowPeer peer;
  size_t sent = 0;
};

class FullLinkOf : public ::testing::TestWithParam<SendMode> {};

TEST_P(FullLinkOf, doesNotHoldUpThePollingThread) {
  FullLink link;
  Status status;
  link.poll([&] { status = sendFilled(*link.sender.share(), 2000, 2, kNever, GetParam()); });
  EXPECT_TRUE(status.ok()) << status.toString();
  EXPECT_EQ(2, link.peer.read(link.sent + 1).back());
}

TEST_P(FullLinkOf, doesNotHoldUpACallerThatReads) {
  FullLink link(Kind::kCalls);
  test::Gate answered;
  Status status;
  link.sender.sink.answer = [&](Connection& from, const Message&) {
    status = sendFilled(from, 2000, 2, kNever, GetParam());
    answered.open();
  };
  std::thread caller([&] { link.sender->readUntil([&] { return answered.isOpen(); }, patience()); });
  link.peer.say(1);
  answered.wait();
  if (!answered.isOpen()) link.sender->close(cancelled("the reading thread waits"));
  caller.join();
  EXPECT_TRUE(status.ok()) << status.toString();
  EXPECT_EQ(2, link.peer.read(link.sent + 1).back());
}

const char* nameOf(const ::testing::TestParamInfo<SendMode>& info) {
  constexpr const char* kNames[] = {"Capture", "Stay", "Urgent", "Lazy", "Batch"};
  return kNames[static_cast<size_t>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Modes, FullLinkOf,
                         ::testing::Values(SendMode::kCapture, SendMode::kStay, SendMode::kUrgent, SendMode::kLazy,
                                           SendMode::kBatch),
                         nameOf);

TEST(BackPressure, boundsWhatThePollingThreadQueues) {
  FullLink link;
  Status status;
  size_t more = 0;
  link.poll([&] {
    while (more < 10'000 && (status = sendFilled(*link.sender.share(), 1000, 2, kNever, SendMode::kLazy)).ok()) ++more;
  });
  EXPECT_EQ(Code::kResourceExhausted, status.code()) << status.toString();
  EXPECT_LE(link.sender->queuedBytes(), kLimit + SendQueue::kReserveBytes);
  EXPECT_GE(more, 200U) << "it has room where others have none";
  EXPECT_EQ(2, link.peer.read(link.sent + more).back());
  EXPECT_TRUE(link.peer.nothingIsLeft());
}

TEST(BackPressure, thePollingThreadWaitsForNoMessageLargerThanTheLimit) {
  constexpr size_t kLarge = 4 << 20;
  for (SendMode mode : {SendMode::kStay, SendMode::kCapture}) {
    Sockets sockets;
    End sender(std::move(sockets.a), Kind::kServing, {.maxQueuedBytes = kLimit, .limits = {}, .spinTimeout = {}});
    SlowPeer peer(std::move(sockets.b));
    Status begun, refused;
    test::Gate done;
    sender.reactor->at(Clock::now(), [&] {
      begun = sendFilled(*sender.share(), kLarge, 1, kNever, mode);    // the socket takes its beginning
      refused = sendFilled(*sender.share(), kLarge, 2, kNever, mode);  // and nothing of this one
      done.open();
    });
    done.wait();
    if (!done.isOpen()) sender->close(cancelled("the polling thread waits"));
    done.wait();
    EXPECT_TRUE(begun.ok()) << begun.toString();
    EXPECT_EQ(Code::kResourceExhausted, refused.code()) << refused.toString();
    EXPECT_EQ(std::vector<int>{1}, peer.read(1));
    EXPECT_TRUE(peer.nothingIsLeft());
  }
}

TEST(BackPressure, aFarewellIsBoundedByItsDeadline) {
  Sockets sockets;
  End sender(std::move(sockets.a), Kind::kServing);
  SlowPeer peer(std::move(sockets.b));
  ASSERT_TRUE(sendFilled(*sender.share(), 4 << 20, 1, patience()).ok());
  sender->leave("nobody listens", Clock::now() + 50ms);
  SUCCEED() << "it ends";
}

}  // namespace
}  // namespace treadle::link::back_pressure_test
