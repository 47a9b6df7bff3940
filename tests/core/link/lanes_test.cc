// Lanes between two connections: what they promise beyond the contract of all channels.

#include <array>
#include <thread>

#include "tests/core/link/connected_pair.h"
#include "tests/core/link/raw_peer.h"
#include "treadle/core/wire/writer.h"

namespace treadle::link::lanes_test {
namespace {

constexpr size_t kMiB = 1U << 20;

// A sends to B; A's lanes end at sockets that the test has, and reads or gives to B when it likes.
struct LanesOfTheTest {
  explicit LanesOfTheTest(size_t maxQueuedBytes = ConnectionOptions().maxQueuedBytes)
      : options{.maxQueuedBytes = maxQueuedBytes, .limits = {}, .threads = &threads} {
    a.sink.dial = [this]() -> Result<io::Stream> {
      Sockets lane;
      MutexLock lock(mutex);
      farEnds.push_back(std::move(lane.b));
      return io::Stream(std::move(lane.a));
    };
  }
  ~LanesOfTheTest() {
    // Both at once, as a peer that goes would.
    a->close(cancelled("the test is over"));
  }

  Status send(size_t bytes, int value, SendMode mode = SendMode::kCapture, TimePoint deadline = patience()) {
    std::vector<Buffer> buffers;
    if (bytes > 0) buffers.push_back(filledBuffer(bytes, value));
    for (Buffer& buffer : buffers) kept.push_back(buffer);
    if (bytes > 0) buffers[0].owner = nullptr;  // borrowed
    return a->send(Subject::kRpc, filled(1, value), buffers, mode, deadline);
  }
  void giveLanesToB() {
    MutexLock lock(mutex);
    for (io::Fd& fd : farEnds) ASSERT_TRUE(b->addLane(std::move(fd)).ok());
    farEnds.clear();
  }

  Mutex mutex;
  std::vector<io::Fd> farEnds;
  std::vector<Buffer> kept;
  io::ThreadCache threads;
  ConnectionOptions options;
  Sockets sockets;
  End a{std::move(sockets.a), Connection::Kind::kCalls, options};
  End b{std::move(sockets.b), Connection::Kind::kServing, options};
};

// The bytes of a large message are nowhere to be seen: it is heard of all the same, and those behind it come.
TEST(Lanes, keepTheOrderOfMessagesAndHoldNobodyUp) {
  LanesOfTheTest pair;
  ASSERT_TRUE(pair.send(8 * kMiB, 1).ok());
  ASSERT_TRUE(pair.send(0, 2).ok());
  pair.b.sink.arrived.waitFor(1);
  EXPECT_EQ(1, pair.b.sink.heralded.count());
  EXPECT_EQ(filled(1, 2), pair.b.sink.messages()[0].payload);
  pair.giveLanesToB();
  pair.b.sink.arrived.waitFor(2);
  EXPECT_TRUE(allBytesAre(pair.b.sink.messages()[1].buffers[0].bytes(), 1));
}

// Who comes while another dials does not take the way that small messages go.
TEST(Lanes, areWaitedForWhileAnotherDials) {
  LanesOfTheTest pair;
  test::Gate dialing, dialed;
  auto dial = pair.a.sink.dial;
  pair.a.sink.dial = [&] {
    dialing.open();
    dialed.wait();
    return dial();
  };
  Buffer first = filledBuffer(8 * kMiB, 1), second = filledBuffer(8 * kMiB, 2);
  auto send = [&](const Buffer& buffer) {
    return pair.a->send(Subject::kRpc, {}, std::array{buffer}, SendMode::kCapture, patience());
  };
  std::thread one([&] { EXPECT_TRUE(send(first).ok()); });
  dialing.wait();
  std::thread other([&] { EXPECT_TRUE(send(second).ok()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that the other comes first, as a rule
  dialed.open();
  one.join();
  other.join();
  EXPECT_EQ(0U, pair.a->sentBytes(wire::Place::kInline));
  EXPECT_EQ(16 * kMiB, pair.a->sentBytes(wire::Place::kOnLanes));
}

// Neither for lanes to be dialed, nor for room or for the bytes to be with sockets that nobody reads.
TEST(Lanes, holdUpNoThreadThatPolls) {
  for (SendMode mode : {SendMode::kCapture, SendMode::kStay}) {
    LanesOfTheTest pair(4 * kMiB);
    Status undialed, captured, refused;
    test::Gate first, second;
    pair.a.reactor->at(Clock::now(), [&] {
      undialed = pair.send(kMiB, 1, mode, kNever);
      first.open();
    });
    first.wait();
    pair.b.sink.arrived.waitFor(1);
    EXPECT_EQ(kMiB, pair.a->sentBytes(wire::Place::kInline));
    ASSERT_TRUE(pair.send(kMiB, 2).ok());  // dials them
    pair.a.reactor->at(Clock::now(), [&] {
      captured = pair.send(2 * kMiB, 3, mode, kNever);
      refused = pair.send(5 * kMiB, 4, mode, kNever);
      second.open();
    });
    second.wait();
    if (!second.isOpen()) pair.a->close(cancelled("the polling thread waits"));
    second.wait();
    EXPECT_TRUE(undialed.ok()) << undialed.toString();
    EXPECT_TRUE(captured.ok()) << captured.toString();
    EXPECT_EQ(Code::kResourceExhausted, refused.code()) << refused.toString();
    pair.giveLanesToB();
    pair.b.sink.arrived.waitFor(3);
  }
}

// Nobody waits for lanes to a peer that is gone.
TEST(Lanes, areNotWaitedForOnceTheConnectionIsClosed) {
  LanesOfTheTest pair;
  test::Gate dialing, dialed;
  pair.a.sink.dial = [&]() -> Result<io::Stream> {
    dialing.open();
    dialed.wait();
    return cancelled("the test says so");
  };
  auto send = [&] { return pair.send(8 * kMiB, 1, SendMode::kStay, kNever); };
  std::thread one([&] { EXPECT_FALSE(send().ok()); });
  dialing.wait();
  std::atomic<bool> over = false;
  std::thread other([&] {
    Buffer buffer = filledBuffer(8 * kMiB, 2);
    EXPECT_FALSE(pair.a->send(Subject::kRpc, {}, std::array{buffer}, SendMode::kStay, kNever).ok());
    over = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that it waits, as a rule
  pair.a->close(cancelled("the test is over"));
  EXPECT_TRUE(test::eventually([&] { return over.load(); }));
  dialed.open();
  one.join();
  other.join();
}

TEST(Lanes, areDialedAgainOnlyAfterAWhile) {
  LanesOfTheTest pair;
  std::atomic<int> dials = 0;
  pair.a.sink.dial = [&]() -> Result<io::Stream> {
    ++dials;
    return failedPrecondition("the peer has none");
  };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(pair.send(kMiB, i).ok());
  EXPECT_EQ(1, dials);
  EXPECT_EQ(3 * kMiB, pair.a->sentBytes(wire::Place::kInline));
}

// Of requests, what may be unanswered and one message more: whatever credits say, memory is taken at the announcement.
TEST(Lanes, boundWhatIsUnderWay) {
  io::ThreadCache threads;
  ConnectionOptions options{.limits = {}, .threads = &threads};
  options.limits.bufferBytes = kMiB;
  options.limits.buffers = 1;
  options.requestBytes = 2 * kMiB;
  for (auto [kind, fits] : {std::pair{Connection::Kind::kServing, 3}, {Connection::Kind::kCalls, 2}}) {
    Sockets sockets;
    End end(std::move(sockets.a), kind, options);
    if (kind == Connection::Kind::kCalls) end->awaitAnswer(false);
    for (uint64_t number = 1; number <= 4; ++number) {
      wire::BufferEntry entry{kMiB, wire::Place::kOnLanes, number};
      std::vector<std::byte> front =
          wire::frameFront(wire::FrameKind::kMessage, static_cast<uint8_t>(Subject::kRpc), {}, std::array{entry});
      (void)io::writeAll(sockets.b.get(), front, patience()).ok();  // it may be closed by now
    }
    EXPECT_EQ(Code::kResourceExhausted, end.sink.closedWith().code());
    EXPECT_EQ(fits, end.sink.heralded.count());
  }
}

// A sender that stays, and whose time is over before its bytes are, has its memory for itself again.
TEST(Lanes, goOnFromACopyWhenTheSendersTimeIsOver) {
  LanesOfTheTest pair;
  // A transfer that has not begun by the deadline is not sent.
  ASSERT_TRUE(test::withLongerLimits(std::chrono::milliseconds(20), [&](Duration limit) {
    return pair.send(8 * kMiB, 1, SendMode::kStay, deadlineAfter(limit)).ok();
  }));
  for (Buffer& buffer : pair.kept) std::fill_n(buffer.data, buffer.sizeBytes, std::byte{99});
  pair.giveLanesToB();
  pair.b.sink.arrived.waitFor(1);
  EXPECT_TRUE(allBytesAre(pair.b.sink.messages()[0].buffers[0].bytes(), 1));
}

// Captured bytes that wait are bounded: the sender waits for room, and says so when there is none in time. Nothing of
// that message is sent.
TEST(Lanes, boundWhatWaitsForAPeerThatDoesNotRead) {
  LanesOfTheTest pair;
  const size_t limit = ConnectionOptions().maxQueuedBytes;
  ASSERT_TRUE(pair.send(limit, 1).ok());
  Status full = pair.send(kMiB, 2, SendMode::kCapture, deadlineAfter(std::chrono::milliseconds(20)));
  EXPECT_EQ(Code::kDeadlineExceeded, full.code()) << full.toString();
  ASSERT_TRUE(pair.send(0, 3).ok());
  pair.giveLanesToB();
  ASSERT_TRUE(pair.send(kMiB, 4).ok());  // there is room again, by and by
  pair.b.sink.arrived.waitFor(3);
  std::set<int> marks;
  for (const Message& message : pair.b.sink.messages()) marks.insert(static_cast<int>(message.payload[0]));
  EXPECT_EQ((std::set<int>{1, 3, 4}), marks);
}

// What had begun is said to have failed, once, when the connection ends.
TEST(Lanes, failWhatWillNeverBeWhole) {
  LanesOfTheTest pair;
  ASSERT_TRUE(pair.send(8 * kMiB, 1).ok());
  pair.b.sink.heralded.waitFor(1);
  pair.b->close(cancelled("the test closes it"));
  pair.b.sink.failed.waitFor(1);
  EXPECT_EQ(0, pair.b.sink.arrived.count());
}

// A lane that breaks takes its connection along, and the peer's last word is heard all the same.
TEST(Lanes, takeTheConnectionAlongWhenTheyBreak) {
  LanesOfTheTest pair;
  ASSERT_TRUE(pair.send(8 * kMiB, 1).ok());
  pair.b.sink.heralded.waitFor(1);
  pair.b->leave("it has had enough", patience());
  {
    MutexLock lock(pair.mutex);
    pair.farEnds.clear();
  }
  EXPECT_EQ(Code::kPeerLost, pair.a.sink.closedWith().code());
  EXPECT_EQ("it has had enough", pair.a.sink.leaveReason());
}

// Whoever dials gives up when the time is over, perhaps while it is being welcomed: nothing was on that lane.
TEST(Lanes, mayEndBeforeTheyBegin) {
  LanesOfTheTest pair;
  for (int i = 0; i < 20; ++i) {
    Sockets lane;
    ASSERT_TRUE(pair.b->addLane(std::move(lane.b)).ok());
    ASSERT_EQ(0, ::shutdown(lane.a.get(), SHUT_WR));
    std::array<std::byte, 1> nothing;  // b has closed its end
    ASSERT_EQ(Code::kPeerLost, io::readAll(lane.a.get(), nothing, patience()).code());
  }
  ASSERT_TRUE(pair.send(0, 1).ok());
  pair.b.sink.arrived.waitFor(1);
  EXPECT_EQ(0, pair.b.sink.closed.count());
}

// A connection whose peer, a bare socket, ended a lane within a piece.
struct EndedLane {
  EndedLane() {
    Sockets lane;
    throwIfError(b->addLane(std::move(lane.b)));
    throwIfError(io::writeAll(lane.a.get(), filled(1, 'T'), patience()));
  }

  Sockets sockets;
  io::ThreadCache threads;
  End b{std::move(sockets.b), Connection::Kind::kServing, {.limits = {}, .threads = &threads}};
};

// A lane's end may overtake what its peer said before: that is on another socket.
TEST(Lanes, letTheLastWordCome) {
  EndedLane ended;
  auto& sockets = ended.sockets;
  auto& b = ended.b;
  std::array<std::byte, 1> nothing;
  EXPECT_EQ(Code::kPeerLost, io::readAll(sockets.a.get(), nothing, patience()).code());  // b has nothing more to say
  wire::Writer reason;
  reason.string("it has had enough");
  ASSERT_TRUE(
      io::writeAll(sockets.a.get(), wire::frameFront(wire::FrameKind::kLeave, 0, reason.bytes()), patience()).ok());
  sockets.a.reset();
  EXPECT_EQ(Code::kPeerLost, b.sink.closedWith().code());
  EXPECT_EQ("it has had enough", b.sink.leaveReason());
}

// One that hears the end and goes on as if nothing were is not waited for.
TEST(Lanes, areNotWaitedForAfterTheirEnd) {
  EndedLane ended;
  EXPECT_EQ(Code::kPeerLost, ended.b.sink.closedWith().code());
}

TEST(Lanes, areForCallsAlone) {
  Sockets sockets;
  End b(std::move(sockets.b), Connection::Kind::kServing);
  std::array entries = {wire::BufferEntry{kMiB, wire::Place::kOnLanes, 1}};
  std::vector<std::byte> front =
      wire::frameFront(wire::FrameKind::kMessage, static_cast<uint8_t>(Subject::kGroup), {}, entries);
  ASSERT_TRUE(io::writeAll(sockets.a.get(), front, patience()).ok());
  EXPECT_EQ(Code::kDataLoss, b.sink.closedWith().code());
}

}  // namespace
}  // namespace treadle::link::lanes_test
