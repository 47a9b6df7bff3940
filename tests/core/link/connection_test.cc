#include "treadle/core/link/connection.h"

#include "tests/core/link/connected_pair.h"
#include "tests/support/seeds.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/wire/writer.h"

namespace treadle::link::connection_test {
namespace {

using namespace std::chrono_literals;
using Kind = Connection::Kind;

using test::patience;

Status sendText(Connection& connection, std::string_view text, SendMode mode = SendMode::kCapture) {
  return connection.send(Subject::kRpc, std::as_bytes(std::span(text)), {}, mode, patience());
}

std::string textOf(const Message& message) {
  return {reinterpret_cast<const char*>(message.payload.data()), message.payload.size()};
}

TEST(Connection, carriesPayloadBuffersAndSubject) {
  Sockets sockets;
  End a(std::move(sockets.a), Kind::kServing), b(std::move(sockets.b), Kind::kServing);
  std::vector<Buffer> buffers = {filledBuffer(3, 1), filledBuffer(0, 0), filledBuffer(100'000, 2)};
  ASSERT_TRUE(a->send(Subject::kGroup, filled(5, 9), buffers, SendMode::kCapture, patience()).ok());
  b.sink.arrived.waitFor(1);
  Message message = b.sink.messages().at(0);
  EXPECT_EQ(Subject::kGroup, message.subject);
  EXPECT_EQ(filled(5, 9), message.payload);
  ASSERT_EQ(3U, message.buffers.size());
  EXPECT_TRUE(allBytesAre(message.buffers[0].bytes(), 1));
  EXPECT_EQ(0U, message.buffers[1].sizeBytes);
  EXPECT_EQ(100'000U, message.buffers[2].sizeBytes);
  EXPECT_TRUE(allBytesAre(message.buffers[2].bytes(), 2));
}

// The answer of the peer to the end may come at once, on another connection.
TEST(Connection, reportsWhyItClosesBeforeThePeerCanNotice) {
  Sockets sockets;
  const io::Fd peer = std::move(sockets.b);
  End a(std::move(sockets.a), Kind::kServing);
  test::Counter reported;
  a.sink.closing = [&](const Status& why) {
    EXPECT_EQ(Code::kDataLoss, why.code());
    char byte = 0;
    EXPECT_EQ(-1, ::recv(peer.get(), &byte, 1, MSG_DONTWAIT));
    EXPECT_EQ(EAGAIN, errno);
    reported.add();
  };
  a->close(dataLoss("it sent nonsense"));
  EXPECT_EQ(1, reported.count());
  char byte = 0;
  EXPECT_EQ(0, ::recv(peer.get(), &byte, 1, MSG_DONTWAIT)) << "the end";
}

// Both directions at once, several threads each, far more bytes than the sockets hold: nothing waits for anything else,
// nothing is mixed up, and what one thread sends stays in order. The sender's memory is its own again after `send`.
TEST(Connection, carriesLargeMessagesBothWaysAtOnce) {
  constexpr int kThreads = 2, kMessages = 12;
  Sockets sockets;
  ConnectionOptions options{.maxQueuedBytes = 4U << 20, .limits = {}, .spinTimeout = 50us};
  End a(std::move(sockets.a), Kind::kServing, options), b(std::move(sockets.b), Kind::kServing, options);
  std::vector<std::thread> threads;
  for (End* end : {&a, &b})
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([end, t] {
        test::Random random(static_cast<uint64_t>(t));
        for (int i = 0; i < kMessages; ++i) {
          int value = t * kMessages + i;
          auto memory = filled(test::pick(random, 3U << 20), value);
          Buffer borrowed = Buffer::borrow(memory.data(), memory.size());
          auto mode = i % 2 == 0 ? SendMode::kStay : SendMode::kCapture;
          std::vector<std::byte> payload = filled(1, value);
          ASSERT_TRUE((*end)->send(Subject::kRpc, payload, {&borrowed, 1}, mode, patience()).ok());
          std::fill(memory.begin(), memory.end(), std::byte{0xEE});
        }
      });
  for (std::thread& thread : threads) thread.join();
  for (End* end : {&a, &b}) {
    end->sink.arrived.waitFor(kThreads * kMessages);
    std::vector<int> last(kThreads, -1);
    for (const Message& message : end->sink.messages()) {
      auto value = static_cast<int>(message.payload.at(0));
      EXPECT_TRUE(allBytesAre(message.buffers.at(0).bytes(), value));
      int thread = value / kMessages;
      EXPECT_EQ(last[static_cast<size_t>(thread)] + 1, value % kMessages);
      last[static_cast<size_t>(thread)] = value % kMessages;
    }
  }
}

TEST(Connection, refusesWhatTheFormatOrThePeerDoesNotTakeAndGoesOn) {
  Sockets sockets;
  ConnectionOptions options{
      .maxQueuedBytes = 1 << 20, .limits = {.payloadBytes = 1000, .bufferBytes = 500}, .spinTimeout = {}};
  End a(std::move(sockets.a), Kind::kServing, options), b(std::move(sockets.b), Kind::kServing, options);
  auto send = [&](size_t payload, std::vector<Buffer> buffers) {
    return a->send(Subject::kRpc, filled(payload, 0), buffers, SendMode::kCapture, patience()).code();
  };
  EXPECT_EQ(Code::kResourceExhausted, send(1001, {}));
  EXPECT_EQ(Code::kResourceExhausted, send(1, {filledBuffer(400, 0), filledBuffer(101, 0)}));
  EXPECT_EQ(Code::kInvalidArgument, send(1, std::vector<Buffer>(65'536)));
  EXPECT_EQ(Code::kOk, send(1000, {filledBuffer(500, 0)}));
  b.sink.arrived.waitFor(1);
  EXPECT_EQ(1U, b.sink.messages().size());
}

TEST(Connection, tellsTheReasonOfAFarewellAfterEverythingElse) {
  Sockets sockets;
  End a(std::move(sockets.a), Kind::kServing), b(std::move(sockets.b), Kind::kServing);
  for (int i = 0; i < 20; ++i)
    ASSERT_TRUE(a->send(Subject::kRpc, filled(100'000, i), {}, SendMode::kCapture, patience()).ok());
  a->leave("it was told to", patience());
  EXPECT_EQ(Code::kCancelled, sendText(*a.share(), "late").code()) << "it is not the peer that is gone";
  EXPECT_EQ(Code::kPeerLost, b.sink.closedWith().code());
  EXPECT_EQ(20U, b.sink.messages().size());
  EXPECT_EQ("it was told to", b.sink.leaveReason());
}

TEST(Connection, cutsALongReasonAndTakesAnEmptyOne) {
  for (const std::string& reason : {std::string(), std::string(100'000, 'x')}) {
    Sockets sockets;
    End a(std::move(sockets.a), Kind::kServing), b(std::move(sockets.b), Kind::kServing);
    a->leave(reason, patience());
    EXPECT_EQ(Code::kPeerLost, b.sink.closedWith().code());
    EXPECT_EQ(reason.substr(0, 4096), b.sink.leaveReason());
  }
}

TEST(Connection, isClosedOnceAndFailsWithTheReasonAfterwards) {
  Sockets sockets;
  End a(std::move(sockets.a), Kind::kServing), b(std::move(sockets.b), Kind::kServing);
  a->close(failedPrecondition("enough"));
  a->close(internalError("again"));
  EXPECT_EQ("enough", a.sink.closedWith().message());
  EXPECT_EQ("enough", sendText(*a.share(), "late").message());
  a->sendHeartbeat();
  a->leave("late", patience());
  a->readUntil([] { return false; }, patience());  // returns: nothing will come
  EXPECT_EQ(Code::kPeerLost, b.sink.closedWith().code());
  EXPECT_FALSE(b.sink.leaveReason().has_value());
}

// A thread may hold a connection, through a future, longer than the worker lives.
TEST(Connection, mayOutliveItsReactor) {
  Sockets sockets;
  Recorder sink;
  std::shared_ptr<Connection> connection;
  {
    test::ReactorThread reactor;
    connection = valueOrThrow(Connection::start(*reactor, std::move(sockets.a), Kind::kCalls, {}, sink));
    connection->awaitAnswer(false);
    connection->close(cancelled("the worker goes"));
  }
  connection->awaitAnswer(false);
  connection->readUntil([] { return false; }, patience());
  connection->answerArrived();
  EXPECT_EQ(Code::kCancelled, sendText(*connection, "late").code());
  connection->wakeReader();
  connection->leave("late", patience());
}

TEST(Connection, closesOnGarbageAndSaysWhy) {
  auto heartbeat = wire::frameFront(wire::FrameKind::kHeartbeat, 0, {}, {});
  auto damaged = heartbeat;
  damaged[20] ^= std::byte{1};
  std::string http = "GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n";
  auto text = std::as_bytes(std::span(http));
  for (const std::vector<std::byte>& bytes : {std::vector<std::byte>(text.begin(), text.end()), damaged,
                                              wire::frameFront(wire::FrameKind::kHandshake, 0, {}, {}),
                                              wire::frameFront(wire::FrameKind::kMessage, 0, {}, {}),
                                              wire::frameFront(wire::FrameKind::kMessage, kSubjects, {}, {}),
                                              wire::frameFront(wire::FrameKind::kMessage, 255, {}, {})}) {
    Sockets sockets;
    End a(std::move(sockets.a), Kind::kServing);
    ASSERT_TRUE(io::writeAll(sockets.b.get(), heartbeat, patience()).ok());
    ASSERT_TRUE(io::writeAll(sockets.b.get(), bytes, patience()).ok());
    EXPECT_EQ(Code::kDataLoss, a.sink.closedWith().code());
    EXPECT_TRUE(a.sink.messages().empty());
  }
}

TEST(Connection, takesAnUnreadableFarewellAsOne) {
  Sockets sockets;
  End a(std::move(sockets.a), Kind::kServing);
  ASSERT_TRUE(
      io::writeAll(sockets.b.get(), wire::frameFront(wire::FrameKind::kLeave, 0, filled(3, 1), {}), patience()).ok());
  sockets.b.reset();
  EXPECT_EQ(Code::kPeerLost, a.sink.closedWith().code());
  EXPECT_EQ("for an unreadable reason", a.sink.leaveReason());
}

// What waited for it cannot be written any more, and its last words are still to be read.
TEST(Connection, hearsAPeersFarewellThoughItTakesNoMoreBytes) {
  Sockets sockets;
  Recorder sink;
  auto reactor = valueOrThrow(io::Reactor::make());  // polled below, by this thread
  auto connection = valueOrThrow(Connection::start(*reactor, std::move(sockets.a), Kind::kServing, {}, sink));
  wire::Writer farewell;
  farewell.string("it was told to");
  ASSERT_TRUE(
      io::writeAll(sockets.b.get(), wire::frameFront(wire::FrameKind::kLeave, 0, farewell.bytes()), patience()).ok());
  sockets.b.reset();
  EXPECT_TRUE(connection->send(Subject::kRpc, filled(9, 1), {}, SendMode::kBatch, patience()).ok());
  EXPECT_TRUE(test::polledUntil(*reactor, [&] { return sink.closed.count() > 0; }));
  EXPECT_EQ("it was told to", sink.leaveReason());
}

TEST(Connection, aPeersDeathInTheMiddleOfAFrameLosesThatFrameAlone) {
  std::vector<std::byte> frame = wire::frameFront(wire::FrameKind::kMessage, 2, filled(50, 1), {});
  for (size_t cut : {size_t{1}, wire::kHeaderBytes, frame.size() - 1}) {
    Sockets sockets;
    End a(std::move(sockets.a), Kind::kServing);
    ASSERT_TRUE(io::writeAll(sockets.b.get(), frame, patience()).ok());
    ASSERT_TRUE(io::writeAll(sockets.b.get(), Bytes(frame).first(cut), patience()).ok());
    sockets.b.reset();
    EXPECT_EQ(Code::kPeerLost, a.sink.closedWith().code());
    EXPECT_EQ(1U, a.sink.messages().size());
  }
}

TEST(Connection, knowsWhenItHeardOfThePeerAndWhetherItSent) {
  Sockets sockets;
  End a(std::move(sockets.a), Kind::kServing), b(std::move(sockets.b), Kind::kServing);
  TimePoint before = b->lastHeard();
  EXPECT_FALSE(a->sentSinceLastAsked());
  a->sendHeartbeat();
  EXPECT_FALSE(a->sentSinceLastAsked());  // a heartbeat does not replace itself
  ASSERT_TRUE(test::eventually([&] { return b->lastHeard() > before; }));
  EXPECT_EQ(0U, b.sink.messages().size());
  ASSERT_TRUE(sendText(*a.share(), "x").ok());
  EXPECT_TRUE(a->sentSinceLastAsked());
  EXPECT_FALSE(a->sentSinceLastAsked());
}

// ---- who reads

TEST(CallsConnection, isReadByTheReactorOnlyWhileAnAnswerIsAwaited) {
  Sockets sockets;
  End caller(std::move(sockets.a), Kind::kCalls), callee(std::move(sockets.b), Kind::kServing);
  ASSERT_TRUE(sendText(*callee.share(), "early").ok());
  caller.waitForAPoll();
  EXPECT_EQ(0, caller.sink.arrived.count());
  caller->awaitAnswer(false);
  caller.sink.arrived.waitFor(1);
}

TEST(CallsConnection, noticesThatThePeerIsGoneAlsoWhenNothingIsAwaited) {
  Sockets sockets;
  End caller(std::move(sockets.a), Kind::kCalls);
  sockets.b.reset();
  EXPECT_EQ(Code::kPeerLost, caller.sink.closedWith().code());
}

TEST(CallsConnection, isReadByTheCallerThatWaits) {
  Sockets sockets;
  for (Duration spin : {Duration{0}, Duration{50us}, Duration{1s}}) {
    Sockets pair;
    ConnectionOptions options;
    options.spinTimeout = spin;
    End caller(std::move(pair.a), Kind::kCalls, options);
    End callee(std::move(pair.b), Kind::kServing, {},
               [](Connection& from, const Message& message) { EXPECT_TRUE(sendText(from, textOf(message)).ok()); });
    caller->awaitAnswer(true);
    ASSERT_TRUE(sendText(*caller.share(), "echo", SendMode::kStay).ok());
    caller->readUntil([&] { return caller.sink.arrived.count() > 0; }, patience());
    EXPECT_EQ(1, caller.sink.arrived.count());
    caller->answerArrived();
  }
}

TEST(CallsConnection, aReaderLeavesAtItsDeadlineWhenWokenAndWhenThePeerGoes) {
  Sockets sockets;
  End caller(std::move(sockets.a), Kind::kCalls);
  caller->readUntil([] { return false; }, Clock::now() + 20ms);
  std::atomic<bool> done = false;
  std::thread waker([&] {
    done = true;
    caller->wakeReader();
  });
  caller->readUntil([&] { return done.load(); }, patience());
  waker.join();
  std::thread killer([&] { sockets.b.reset(); });
  caller->readUntil([] { return false; }, patience());
  killer.join();
  EXPECT_EQ(Code::kPeerLost, caller.sink.closedWith().code());
}

// Each thread waits for answers of its own; whoever has the read turn reads for all, and when it leaves somebody else,
// a thread or the reactor, goes on.
TEST(CallsConnection, servesSeveralWaitingThreads) {
  constexpr int kThreads = 6, kCalls = 300;
  Sockets sockets;
  std::vector<test::Counter> answered(kThreads);
  End callee(std::move(sockets.b), Kind::kServing, {},
             [](Connection& from, const Message& message) { EXPECT_TRUE(sendText(from, textOf(message)).ok()); });
  End caller(std::move(sockets.a), Kind::kCalls, {}, [&](Connection& from, const Message& message) {
    from.answerArrived();
    answered[static_cast<size_t>(std::stoi(textOf(message)))].add();
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      test::Counter& mine = answered[static_cast<size_t>(t)];
      for (int i = 1; i <= kCalls; ++i) {
        bool reads = i % 3 != 0;  // some wait without reading, as a thread with a future of another does
        caller->awaitAnswer(reads);
        ASSERT_TRUE(sendText(*caller.share(), std::to_string(t), SendMode::kStay).ok());
        if (reads) caller->readUntil([&] { return mine.count() >= i; }, patience());
        mine.waitFor(i);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace treadle::link::connection_test
