// What every way of a buffer's bytes promises: the socket of the message itself, lanes beside it, memory that both
// sides share, and the sender's own memory. One suite, a line per way.

#include <fcntl.h>

#include <thread>

#include "tests/core/link/connected_pair.h"
#include "tests/core/link/raw_peer.h"
#include "tests/support/bytes.h"

namespace treadle::link::channel_contract_test {
namespace {

enum class Way {
  kSocket,
  kTls,
  kLanesOverUnix,
  kLanesOverTcp,
  kLanesOverTls,
  kSharedMemory,
  kSharedWithinAProcess,
  kOffered
};

constexpr size_t kMiB = 1U << 20;

// Two ends that stand for two workers on one host; each dials lanes by a socket pair that it hands to the other.
struct Pair {
  explicit Pair(Way way)
      : way(way),
        aPool(valueOrThrow(memory::BlockPool::make(256 * kMiB))),
        bPool(way == Way::kSharedWithinAProcess ? aPool : valueOrThrow(memory::BlockPool::make(256 * kMiB))) {
    Streams sockets = connected();
    const bool shares = way == Way::kSharedMemory || way == Way::kSharedWithinAProcess;
    if (shares) {
      aMemory = std::make_shared<PeerMemory>(aPool.get(), 256 * kMiB);
      bMemory = std::make_shared<PeerMemory>(bPool.get(), 256 * kMiB);
    }
    a = std::make_unique<End>(std::move(sockets.a), Connection::Kind::kCalls, optionsOf(*aPool), nullptr, aMemory);
    b = std::make_unique<End>(std::move(sockets.b), Connection::Kind::kServing, optionsOf(*bPool), nullptr, bMemory);
    if (way == Way::kLanesOverUnix || way == Way::kLanesOverTcp || way == Way::kLanesOverTls) {
      a->sink.dial = [this] { return dialTo(*b); };
      b->sink.dial = [this] { return dialTo(*a); };
    }
    if (shares) shareBothWays();
    if (way == Way::kOffered) waitWhileAPolls([&] { return (*a)->offering().ok(); });
  }

  ConnectionOptions optionsOf(memory::BlockPool& pool) const {
    ConnectionOptions options;
    options.pool = way == Way::kSocket || way == Way::kTls ? nullptr : &pool;
    options.threads = &threads;
    options.offerBytes = way == Way::kOffered ? 1 : 0;
    return options;
  }
  Streams connected() const {
    // New keys all the while: what takes them must not be noticed.
    if (way == Way::kTls || way == Way::kLanesOverTls) return tlsStreams(100'000);
    return way == Way::kLanesOverTcp ? tcpSockets() : Sockets();
  }
  Result<io::Stream> dialTo(End& other) const {
    Streams lane = connected();
    if (Status added = other->addLane(std::move(lane.b)); !added.ok()) return added;
    return std::move(lane.a);
  }
  // The dialing end has offered its arena by itself. In a job the other one does so on its own connection; here the
  // ends are told as if it had.
  void shareBothWays() const {
    ASSERT_TRUE(aMemory->setPeerArena(io::Fd(::fcntl(bPool->arena().fd(), F_DUPFD_CLOEXEC, 0))).ok());
    bMemory->setMapped({});
    waitWhileAPolls([&] { return aMemory->mapped(); });
  }
  void waitWhileAPolls(const std::function<bool()>& isTrue) const {
    EXPECT_TRUE(test::eventually([&] {
      a->waitForAPoll();
      return isTrue();
    })) << "the ends do not share their memory";
  }

  Status send(End& from, std::span<const Buffer> buffers, SendMode mode = SendMode::kCapture, int value = 1) {
    std::shared_ptr<MemoryOffer> offer = from->offer(buffers);
    const bool toB = &from == a.get();
    if (toB) ++sentToB;
    Status sent = from->send(Subject::kRpc, filled(3, value), buffers, mode, patience(), {.offer = offer.get()});
    // Who offers memory waits for an answer: here, until all is there.
    auto isOver = [this] { return b->sink.arrived.count() >= sentToB || a->sink.closed.count() > 0; };
    if (!offer || !sent.ok()) return sent;
    EXPECT_TRUE(test::eventually(isOver)) << "its bytes never came";
    return sent;
  }

  const Way way;
  mutable io::ThreadCache threads;  // of both
  const std::shared_ptr<memory::BlockPool> aPool, bPool;
  std::shared_ptr<PeerMemory> aMemory, bMemory;
  std::atomic<int> sentToB = 0;
  std::unique_ptr<End> a, b;
};

class ChannelContract : public ::testing::TestWithParam<Way> {};

TEST_P(ChannelContract, carriesBuffersOfEverySizeBothWays) {
  Pair pair(GetParam());
  test::Random random(1);
  size_t sent = 0;
  for (size_t size : {size_t{0}, size_t{1}, size_t{4095}, size_t{16} << 10, (size_t{16} << 10) + 1, size_t{256} << 10,
                      kMiB + 7, 5 * kMiB}) {
    for (SendMode mode : {SendMode::kCapture, SendMode::kStay, SendMode::kUrgent}) {
      std::vector<std::byte> bytes = test::randomBytes(random, size);
      Buffer buffer = Buffer::borrow(bytes.data(), size);
      ASSERT_TRUE(pair.send(*pair.a, std::array{buffer}, mode).ok());
      ASSERT_TRUE(pair.send(*pair.b, std::array{buffer}, mode).ok());
      ++sent;
      for (End* end : {pair.a.get(), pair.b.get()}) {
        if (end == pair.a.get()) end->share()->awaitAnswer(false);
        end->sink.arrived.waitFor(static_cast<int>(sent));
        Message got = end->sink.messages().back();
        ASSERT_EQ(1U, got.buffers.size());
        ASSERT_EQ(size, got.buffers[0].sizeBytes);
        ASSERT_TRUE(test::same(bytes, got.buffers[0].bytes())) << size;
        EXPECT_FALSE(got.buffers[0].borrowed());
      }
    }
  }
}

TEST_P(ChannelContract, carriesManyBuffersInTheirOrder) {
  Pair pair(GetParam());
  test::forSeeds(20, [&](test::Random& random) {
    std::vector<Buffer> buffers;
    for (uint64_t i = 0; i < 1 + test::pick(random, 12); ++i)
      buffers.push_back(filledBuffer(test::pick(random, 2) ? test::pick(random, 600'000) : test::pick(random, 100),
                                     static_cast<int>(i + 1)));
    size_t before = pair.b->sink.messages().size();
    ASSERT_TRUE(pair.send(*pair.a, buffers).ok());
    pair.b->sink.arrived.waitFor(static_cast<int>(before) + 1);
    Message got = pair.b->sink.messages().back();
    ASSERT_EQ(buffers.size(), got.buffers.size());
    for (size_t i = 0; i < buffers.size(); ++i) {
      EXPECT_EQ(buffers[i].sizeBytes, got.buffers[i].sizeBytes);
      EXPECT_TRUE(allBytesAre(got.buffers[i].bytes(), static_cast<int>(i + 1)));
    }
  });
}

// By value: what the sender writes once `send` has returned is never seen.
TEST_P(ChannelContract, capturesWhatWasThereWhenSendReturned) {
  Pair pair(GetParam());
  for (SendMode mode : {SendMode::kCapture, SendMode::kStay, SendMode::kUrgent}) {
    std::vector<std::byte> bytes(3 * kMiB, std::byte{1});
    size_t before = pair.b->sink.messages().size();
    for (int round = 0; round < 5; ++round) {
      ASSERT_TRUE(pair.send(*pair.a, std::array{Buffer::borrow(bytes.data(), bytes.size())}, mode).ok());
      std::fill(bytes.begin(), bytes.end(), std::byte{99});
      std::fill(bytes.begin(), bytes.end(), std::byte{1});
    }
    pair.b->sink.arrived.waitFor(static_cast<int>(before) + 5);
    for (const Message& message : pair.b->sink.messages()) EXPECT_TRUE(allBytesAre(message.buffers[0].bytes(), 1));
  }
}

// What one receiver keeps, no later message changes.
TEST_P(ChannelContract, leavesAReceivedBufferAlone) {
  Pair pair(GetParam());
  for (int i = 1; i <= 20; ++i) {
    ASSERT_TRUE(pair.send(*pair.a, std::array{filledBuffer(kMiB, i)}).ok());
    pair.b->sink.arrived.waitFor(i);
  }
  std::vector<Message> messages = pair.b->sink.messages();
  for (int i = 1; i <= 20; ++i) EXPECT_TRUE(allBytesAre(messages[static_cast<size_t>(i - 1)].buffers[0].bytes(), i));
}

TEST_P(ChannelContract, servesSeveralSendersAtOnce) {
  Pair pair(GetParam());
  constexpr int kThreads = 3, kRounds = 30;
  std::vector<std::thread> threads;
  for (int id = 1; id <= kThreads; ++id)
    threads.emplace_back([&pair, id] {
      test::Random random(static_cast<uint64_t>(id));
      for (int round = 0; round < kRounds; ++round) {
        Buffer buffer = filledBuffer(test::pick(random, 900'000), id);
        SendMode mode = test::pick(random, 2) == 0 ? SendMode::kStay : SendMode::kCapture;
        EXPECT_TRUE(pair.send(*pair.a, std::array{buffer}, mode, id).ok());
      }
    });
  for (std::thread& thread : threads) thread.join();
  pair.b->sink.arrived.waitFor(kThreads * kRounds);
  for (const Message& message : pair.b->sink.messages())
    EXPECT_TRUE(allBytesAre(message.buffers[0].bytes(), static_cast<int>(message.payload[0])));
}

// The peer is gone in the middle: the sender hears so, and nothing of its memory is looked at any more.
TEST_P(ChannelContract, failsSendersWhenThePeerGoes) {
  Pair pair(GetParam());
  ASSERT_TRUE(pair.send(*pair.a, std::array{filledBuffer(kMiB, 1)}).ok());
  pair.b->sink.arrived.waitFor(1);
  std::thread closer([&] { pair.b->share()->close(cancelled("the test closes it")); });
  std::vector<std::byte> bytes(32 * kMiB);
  Status sent;
  while (sent.ok()) sent = pair.send(*pair.a, std::array{Buffer::borrow(bytes.data(), bytes.size())}, SendMode::kStay);
  closer.join();
  EXPECT_EQ(Code::kPeerLost, sent.code()) << sent.toString();
}

std::string nameOf(const ::testing::TestParamInfo<Way>& info) {
  constexpr std::array kNames = {"Socket",       "Tls",          "LanesOverUnix",        "LanesOverTcp",
                                 "LanesOverTls", "SharedMemory", "SharedWithinAProcess", "Offered"};
  return kNames[static_cast<size_t>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Ways, ChannelContract,
                         ::testing::Values(Way::kSocket, Way::kTls, Way::kLanesOverUnix, Way::kLanesOverTcp,
                                           Way::kLanesOverTls, Way::kSharedMemory, Way::kSharedWithinAProcess,
                                           Way::kOffered),
                         nameOf);

}  // namespace
}  // namespace treadle::link::channel_contract_test
