// A peer is told that a message is coming while its large buffers are copied, and may be told so for nothing.
#include "tests/core/link/connected_pair.h"
#include "treadle/core/wire/writer.h"

namespace treadle::link::coming_test {
namespace {

using Kind = Connection::Kind;
using wire::FrameKind;

using test::patience;
std::vector<std::byte> notice() { return wire::frameFront(FrameKind::kComing, 0, {}); }

// Whose memory the other side, this test, says to have mapped.
class Sharer {
 public:
  Sharer() {
    (void)next();  // its arena
    wire::Writer noReason;
    noReason.string("");
    throwIfError(io::writeAll(sockets.b.get(), wire::frameFront(FrameKind::kMapped, 0, noReason.bytes()), patience()));
    EXPECT_TRUE(test::eventually([&] { return end->sharing().ok(); }));
  }
  ~Sharer() { end->close(cancelled("the test is over")); }

  FrameKind next() const {
    io::Stream stream = test::streamOn(sockets.b.get());
    return valueOrThrow(readOneFrame(stream, {}, patience())).header.kind;
  }
  void send(const std::vector<size_t>& sizes) {
    std::vector<std::byte> memory(32U << 20);
    std::vector<Buffer> buffers;
    for (size_t size : sizes) buffers.push_back(Buffer::borrow(memory.data(), size));
    throwIfError(end->send(Subject::kRpc, {}, buffers, SendMode::kCapture, patience()));
  }

  const std::shared_ptr<memory::BlockPool> pool = valueOrThrow(memory::BlockPool::make(256U << 20));
  Sockets sockets;
  End end{std::move(sockets.a),
          Kind::kCalls,
          {.limits = {}, .pool = pool.get()},
          {},
          std::make_shared<PeerMemory>(pool.get(), 128U << 20)};
};

TEST(Coming, goesAheadOfBuffersThatTakeAboutAsLongToCopyAsThePeerToWake) {
  Sharer sharer;
  for (const std::vector<size_t>& told : {std::vector<size_t>{1U << 20}, {8U << 20}, {300U << 10, 300U << 10}}) {
    sharer.send(told);
    EXPECT_EQ(FrameKind::kComing, sharer.next());
    EXPECT_EQ(FrameKind::kMessage, sharer.next());
  }
  for (const std::vector<size_t>& untold :
       {std::vector<size_t>{}, {100U << 10}, {32U << 20}, std::vector<size_t>(600, 1024)}) {
    sharer.send(untold);
    EXPECT_EQ(FrameKind::kMessage, sharer.next());
  }
}

TEST(Coming, promisesNothing) {
  Sockets sockets;
  End end(std::move(sockets.a), Kind::kServing);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(io::writeAll(sockets.b.get(), notice(), patience()).ok());
  auto message = wire::frameFront(FrameKind::kMessage, static_cast<uint8_t>(Subject::kRpc), {});
  ASSERT_TRUE(io::writeAll(sockets.b.get(), message, patience()).ok());
  end.sink.arrived.waitFor(1);
  ASSERT_TRUE(io::writeAll(sockets.b.get(), notice(), patience()).ok());
  sockets.b.reset();
  EXPECT_EQ(Code::kPeerLost, end.sink.closedWith().code());
}

// Of a peer that says so all the time and sends nothing, the first time alone counts.
TEST(Coming, keepsNobodyAwakeForLong) {
  Sockets sockets;
  End end(std::move(sockets.a), Kind::kServing);
  auto processorTime = [] {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  // A defect would keep it awake in every try; a busy machine prolongs the proper work in some tries.
  EXPECT_TRUE(test::eventually([&] {
    const auto before = processorTime();
    for (int i = 0; i < 500; ++i) {
      EXPECT_TRUE(io::writeAll(sockets.b.get(), notice(), patience()).ok());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // as long as it stays awake
    }
    return processorTime() - before < std::chrono::milliseconds(400);
  }));
}

// A caller that reads its answer for itself, and had gone to sleep.
TEST(Coming, doesNotEndTheWaitOfACaller) {
  Sockets sockets;
  End end(std::move(sockets.a), Kind::kCalls);
  end->awaitAnswer(true);
  std::thread peer([&] {
    for (int i = 0; i < 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));  // longer than the caller stays awake
      EXPECT_TRUE(io::writeAll(sockets.b.get(), notice(), patience()).ok());
    }
    auto message = wire::frameFront(FrameKind::kMessage, static_cast<uint8_t>(Subject::kRpc), {});
    EXPECT_TRUE(io::writeAll(sockets.b.get(), message, patience()).ok());
  });
  end->readUntil([&] { return end.sink.arrived.count() == 1; }, patience());
  end->answerArrived();
  EXPECT_EQ(1, end.sink.arrived.count());
  peer.join();
}

}  // namespace
}  // namespace treadle::link::coming_test
