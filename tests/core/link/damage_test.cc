// One flipped bit anywhere on a TCP link is an error, and nothing that was damaged is ever handed up.

#include <sys/socket.h>

#include <thread>

#include "tests/core/link/connected_pair.h"
#include "tests/core/link/raw_peer.h"
#include "tests/support/reactor_thread.h"
#include "tests/support/seeds.h"

namespace treadle::link::damage_test {
namespace {

// Carries bytes between two TCP sockets, and flips one bit of what goes forth.
class Relay {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;

  // `bit`: counted from the first one on.
  explicit Relay(uint64_t bit, Sockets left = tcpSockets(), Sockets right = tcpSockets())
      : left_(std::move(left)), right_(std::move(right)), bit_(bit) {
    forth_ = std::thread([this] { carry(left_.b.get(), right_.a.get(), true); });
    back_ = std::thread([this] { carry(right_.a.get(), left_.b.get(), false); });
  }
  ~Relay() {
    for (const io::Fd* fd : {&left_.b, &right_.a}) (void)::shutdown(fd->get(), SHUT_RDWR);
    forth_.join();
    back_.join();
  }

  io::Fd takeLeft() { return std::move(left_.a); }
  io::Fd takeRight() { return std::move(right_.b); }
  bool flipped() const { return flipped_; }
  uint64_t carriedBits() const { return carried_ * 8; }

 private:
  void carry(int from, int to, bool forth) {
    std::vector<std::byte> bytes(64 << 10);
    for (;;) {
      if (!io::waitFor(from, POLLIN, patience())) break;
      ssize_t got = ::recv(from, bytes.data(), bytes.size(), 0);
      if (got <= 0) break;
      const auto count = static_cast<size_t>(got);
      if (forth && bit_ / 8 >= carried_ && bit_ / 8 < carried_ + count) {
        bytes[bit_ / 8 - carried_] ^= static_cast<std::byte>(1U << (bit_ % 8));
        flipped_ = true;
      }
      if (forth) carried_ += count;
      if (!io::writeAll(to, Bytes(bytes).first(count), patience()).ok()) break;
    }
    (void)::shutdown(to, SHUT_WR);
  }

  Sockets left_, right_;
  const uint64_t bit_;
  std::atomic<uint64_t> carried_ = 0;
  std::atomic<bool> flipped_ = false;
  std::thread forth_, back_;
};

enum class Where { kConnection, kLane, kTls };

// A sends to B through relays: one for the connection, one for each lane.
struct Job {
  Job(Where where, uint64_t bit) : lanesBit(where == Where::kLane ? bit : Relay::kNone) {
    relays.push_back(std::make_unique<Relay>(where == Where::kConnection ? bit : Relay::kNone));
    Streams ends(Sockets(relays[0]->takeLeft(), relays[0]->takeRight()));
    if (where == Where::kTls) {
      // Through TLS from its first byte on, so that the bit is one of a record.
      relays[0] = std::make_unique<Relay>(bit);
      ends = tlsStreams(uint64_t{1} << 36, Sockets(relays[0]->takeLeft(), relays[0]->takeRight()));
    }
    b = std::make_unique<End>(std::move(ends.b), Connection::Kind::kServing, options);
    a = std::make_unique<End>(std::move(ends.a), Connection::Kind::kCalls, options);
    a->sink.dial = [this]() -> Result<io::Stream> {
      relays.push_back(std::make_unique<Relay>(lanesBit));
      if (Status added = (*b)->addLane(relays.back()->takeRight()); !added.ok()) return added;
      return io::Stream(relays.back()->takeLeft());
    };
  }
  ~Job() {
    (*a)->close(cancelled("the test is over"));
    (*b)->close(cancelled("the test is over"));
  }

  bool flipped() const {
    return std::any_of(relays.begin(), relays.end(), [](const auto& relay) { return relay->flipped(); });
  }

  const uint64_t lanesBit;
  io::ThreadCache threads;
  ConnectionOptions options{.limits = {}, .threads = &threads};
  std::vector<std::unique_ptr<Relay>> relays;
  std::unique_ptr<End> a, b;
};

// What a message `number` holds: each buffer one value of its own.
std::vector<Buffer> buffersOf(int number) {
  std::vector<size_t> sizes = {0, 1, 1000, 20'000};
  if (number == 1) sizes = {600 << 10, 300};
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < sizes.size(); ++i)
    buffers.push_back(filledBuffer(sizes[i], 16 * number + static_cast<int>(i) + 1));
  return buffers;
}

constexpr int kMessages = 3;

void sendAll(End& from) {
  for (int number = 0; number < kMessages; ++number)  // fails once the other side has closed
    from->send(Subject::kRpc, filled(100, number), buffersOf(number), SendMode::kCapture, patience()).ignore();
}

void expectRight(const Message& message) {
  ASSERT_EQ(100U, message.payload.size());
  const int number = static_cast<int>(message.payload[0]);
  ASSERT_TRUE(number < kMessages && allBytesAre(message.payload, number));
  std::vector<Buffer> sent = buffersOf(number);
  ASSERT_EQ(sent.size(), message.buffers.size());
  for (size_t i = 0; i < sent.size(); ++i)
    ASSERT_TRUE(test::same(sent[i].bytes(), message.buffers[i].bytes())) << "buffer " << i << " of message " << number;
}

void flipOne(Where where, uint64_t bit) {
  Job job(where, bit);
  sendAll(*job.a);
  Recorder& sink = job.b->sink;
  ASSERT_TRUE(test::eventually([&] { return sink.closed.count() > 0 || sink.arrived.count() == kMessages; }));
  for (const Message& message : sink.messages()) expectRight(message);
  if (job.flipped()) {
    const Code code = sink.closedWith().code();
    EXPECT_TRUE(code == Code::kDataLoss || code == Code::kResourceExhausted) << sink.closedWith().toString();
    EXPECT_LT(sink.arrived.count(), kMessages);
    // Who would answer has nothing to do with what was damaged: to it the peer is lost.
    Status sent = (*job.b)->send(Subject::kRpc, filled(1, 1), {}, SendMode::kCapture, patience());
    EXPECT_EQ(Code::kPeerLost, sent.code()) << sent.toString();
    EXPECT_EQ(sink.closedWith().message(), sent.message());
  }
}

uint64_t bitsOfTheConnection() {
  Job job(Where::kConnection, Relay::kNone);
  sendAll(*job.a);
  job.b->sink.arrived.waitFor(kMessages);
  for (const Message& message : job.b->sink.messages()) expectRight(message);
  return job.relays[0]->carriedBits();
}

TEST(Damage, ofAnyBitOfAConnectionIsAnErrorAndNeverAValue) {
  const uint64_t bits = bitsOfTheConnection();
  test::forSeeds(150, [&](test::Random& random) {
    // Half of them where lengths and checksums are: the front of the first frame.
    flipOne(Where::kConnection, test::pick(random, test::pick(random, 2) == 0 ? bits : 8 * 200));
  });
}

TEST(Damage, ofAnyBitOfALaneIsAnErrorAndNeverAValue) {
  test::forSeeds(100, [&](test::Random& random) {
    flipOne(Where::kLane,
            test::pick(random, test::pick(random, 2) == 0 ? 8 * (200 << 10) : 8 * wire::kPieceFrontBytes));
  });
}

// The handshake of TLS is the first 2,000 bytes or less.
TEST(Damage, ofAnyBitBehindTheHandshakeOfTlsIsAnErrorAndNeverAValue) {
  test::forSeeds(60, [&](test::Random& random) { flipOne(Where::kTls, 8 * 2000 + test::pick(random, 8 * 20'000)); });
}

// TLS writes nothing any more once it has found damage in what it read: whoever comes to write before the connection is
// closed.
TEST(Damage, thatTlsFoundIsALostPeerToWhoWrites) {
  struct Host final : SendQueueHost {
    void wantRoom(bool) override {}
    void wantFlush() override {}
    void wantFlushLater() override {}
  } host;
  Streams ends = tlsStreams();
  SendQueue queue(ends.b, 1 << 20, 1 << 20, host);
  const std::vector<std::byte> noise = filled(1000, 0x17);
  ASSERT_TRUE(io::writeAll(ends.a.fd(), noise, patience()).ok());
  ASSERT_TRUE(test::readable(ends.b.fd(), "the noise"));
  std::array<std::byte, 100> bytes;
  iovec part{bytes.data(), bytes.size()};
  ASSERT_EQ(-1, ends.b.read({&part, 1}, 0));
  ASSERT_EQ(Code::kDataLoss, ends.b.broken(errno, "").code());
  Status sent = queue.send(filled(100, 1), {}, SendMode::kCapture, patience());
  EXPECT_EQ(Code::kPeerLost, sent.code()) << sent.toString();
  EXPECT_NE(std::string::npos, sent.message().find("damaged")) << sent.message();
}

// Neither side takes the other for who it is not.
TEST(Damage, ofAnyBitOfAHandshakeKeepsTheDoorShut) {
  test::ReactorThread reactor;
  io::Address front = *io::Address::parse("tcp://127.0.0.1:0");
  test::Counter welcomed;
  auto acceptorWith = [&](Duration timeout) {
    Acceptor::Host host;
    host.check = [](const Hello&) { return Status(); };
    host.timeout = timeout;
    host.accept = [&](auto&&, Hello) { welcomed.add(); };
    return valueOrThrow(
        Acceptor::start(*reactor, valueOrThrow(io::listenOn(front)), credentialsOf("door", 0), std::move(host)));
  };
  auto acceptor = acceptorWith(test::kHangs);
  io::Fd listener = valueOrThrow(io::listenOn(front));
  io::Address address = valueOrThrow(io::Address::ofSocket(listener.get()));
  auto shake = [&](uint64_t bit) {
    std::unique_ptr<Relay> relay;
    std::thread between([&] {
      ASSERT_TRUE(test::readable(listener.get(), "a connection"));
      Sockets left(io::Fd(), valueOrThrow(io::acceptFrom(listener.get())));
      Sockets right(valueOrThrow(io::connectTo(acceptor->address(), patience())), io::Fd());
      relay = std::make_unique<Relay>(bit, std::move(left), std::move(right));
    });
    Result<Dialed> dialed = dial(address, credentialsOf("guest", 1), patience());
    between.join();
    return std::pair(std::move(dialed), relay->carriedBits());
  };
  auto [whole, bits] = shake(Relay::kNone);
  ASSERT_TRUE(whole.ok()) << whole.status().toString();
  welcomed.waitFor(1);
  acceptor = acceptorWith(std::chrono::seconds(2));  // a damaged length makes it wait for more
  test::forSeeds(100, [&](test::Random& random) {
    EXPECT_FALSE(shake(test::pick(random, bits)).first.ok());
    EXPECT_EQ(1, welcomed.count());
  });
  acceptor.reset();
  reactor.stop();
}

}  // namespace
}  // namespace treadle::link::damage_test
