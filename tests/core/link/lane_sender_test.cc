// In which order the pieces of several buffers go out.
#include "treadle/core/link/lane_sender.h"

#include <poll.h>

#include "tests/core/link/connected_pair.h"
#include "tests/support/gate.h"
#include "tests/support/tls_pair.h"

namespace treadle::link::lane_sender_test {
namespace {

constexpr size_t kBytes = 8U << 20, kPieces = 16;

using test::patience;

// One lane, of which nothing is read before all is waiting: the first piece has begun by then, and does not fit into
// it.
class OneLane : public ::testing::Test {
 protected:
  OneLane() { throwIfError(sender->addLane(std::move(sockets.a))); }
  ~OneLane() override { sender->close(cancelled("the test is over")); }

  uint64_t send(int priority) {
    std::array buffers = {allocateBuffer(kBytes)};
    auto transfers = valueOrThrow(sender->prepare(buffers, SendMode::kCapture, patience(), priority));
    sender->begin(transfers, patience());
    return LaneSender::numberOf(*transfers[0]);
  }
  uint64_t sendFirst() {
    uint64_t number = send(0);
    EXPECT_TRUE(test::readable(sockets.b.get(), "a piece"));
    return number;
  }
  // Of the next pieces: whose they are.
  std::vector<uint64_t> receive(size_t pieces) const {
    std::vector<uint64_t> numbers;
    while (numbers.size() < pieces) {
      std::vector<std::byte> bytes(wire::kPieceFrontBytes);
      throwIfError(io::readAll(sockets.b.get(), bytes, patience()));
      wire::Piece piece = valueOrThrow(wire::parsePieceFront(bytes, {}));
      EXPECT_EQ(kBytes / kPieces, piece.sizeBytes);
      bytes.resize(piece.sizeBytes);
      throwIfError(io::readAll(sockets.b.get(), bytes, patience()));
      numbers.push_back(piece.number);
    }
    return numbers;
  }
  static void addInTurn(std::vector<uint64_t>& numbers, size_t pieces, uint64_t one, uint64_t other) {
    for (size_t i = 0; i < pieces; ++i) numbers.insert(numbers.end(), {one, other});
  }

  test::ReactorThread reactor;
  io::ThreadCache threads;
  Sockets sockets;
  const std::shared_ptr<LaneSender> sender = std::make_shared<LaneSender>(*reactor, threads, nullptr, 16 * kBytes);
};

TEST_F(OneLane, letsBuffersOfOnePriorityTakeTurns) {
  uint64_t first = sendFirst(), second = send(0);
  std::vector<uint64_t> expected = {first};
  addInTurn(expected, kPieces - 1, first, second);
  expected.push_back(second);
  EXPECT_EQ(expected, receive(2 * kPieces));
}

TEST_F(OneLane, letsAHigherPriorityGoFirst) {
  uint64_t normal = sendFirst(), low = send(-3), high = send(5), alsoHigh = send(5);
  std::vector<uint64_t> expected = {normal};
  addInTurn(expected, kPieces, high, alsoHigh);
  expected.insert(expected.end(), kPieces - 1, normal);
  expected.insert(expected.end(), kPieces, low);
  EXPECT_EQ(expected, receive(4 * kPieces));
}

// The only thread is busy elsewhere: the peer is as well as before, and its bytes go out when the thread is free.
TEST(LaneWithoutAThread, isWrittenWhenOneIsFreeAgain) {
  test::ReactorThread reactor;
  io::ThreadCache threads(std::chrono::hours(1), 1);
  test::Gate begun, end;
  UniqueFunction<void()> task = [&] {
    begun.open();
    end.wait();
  };
  ASSERT_TRUE(threads.run(task));
  begun.wait();
  Sockets sockets;
  auto sender = std::make_shared<LaneSender>(*reactor, threads, nullptr, 16 * kBytes);
  sender->setBreakHook([](const Status& why) { ADD_FAILURE() << why.message(); });
  throwIfError(sender->addLane(std::move(sockets.a)));
  std::array buffers = {allocateBuffer(kBytes)};
  auto transfers = valueOrThrow(sender->prepare(buffers, SendMode::kCapture, patience()));
  sender->begin(transfers, patience());
  end.open();
  std::vector<std::byte> bytes(kBytes + kPieces * wire::kPieceFrontBytes);
  EXPECT_TRUE(io::readAll(sockets.b.get(), bytes, patience()).ok());
  sender->close(cancelled("the test is over"));
}

// What TLS has taken, and the socket has not, goes out too when there is nothing to be sent behind it.
TEST(SecureLane, sendsTheLastRecordOfTheLastPieceToo) {
  test::ReactorThread reactor;
  io::ThreadCache threads;
  const auto connect = [] {
    auto pair = std::make_unique<test::TlsPair>();
    io::setBufferSizes(pair->a.fd(), 256U << 10);
    io::setBufferSizes(pair->b.fd(), 256U << 10);
    return pair;
  };
  // From what the sockets take at once on.
  int full = 0;
  for (size_t bytes = 256U << 10; full < 6; bytes += 6000) {
    auto connected = connect();
    test::TlsPair& pair = *connected;
    auto sender = std::make_shared<LaneSender>(*reactor, threads, nullptr, 16 * kBytes);
    throwIfError(sender->addLane(std::move(pair.a)));
    std::array buffers = {allocateBuffer(bytes)};
    auto transfers = valueOrThrow(sender->prepare(buffers, SendMode::kCapture, patience()));
    sender->begin(transfers, patience());
    const auto isDrained = [&] {
      const TimePoint end = deadlineAfter(std::chrono::milliseconds(100));
      sender->drain(end);
      return Clock::now() < end;
    };
    if (!isDrained() && !isDrained()) ++full;  // a write waits in vain; nothing says so by itself
    size_t left = bytes;
    while (left > 0) {
      std::vector<std::byte> piece(wire::kPieceFrontBytes);
      throwIfError(io::readAll(pair.b, piece, patience()));
      piece.resize(valueOrThrow(wire::parsePieceFront(piece, {})).sizeBytes);
      ASSERT_TRUE(io::readAll(pair.b, piece, patience()).ok()) << left << " of " << bytes;
      left -= piece.size();
    }
    sender->close(cancelled("the test is over"));
  }
}

}  // namespace
}  // namespace treadle::link::lane_sender_test
