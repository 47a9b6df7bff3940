// Machines of a summation service with real threads and sockets, in one process.

#include "treadle/core/summation/pump.h"

#include <sys/socket.h>

#include <array>
#include <cstring>
#include <thread>

#include "tests/support/bytes.h"
#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/no_memory.h"
#include "tests/support/tls_pair.h"

namespace treadle::summation::pump_test {
namespace {

using group::DataType;
using test::pick;
using test::Random;

constexpr Duration kPatience = std::chrono::seconds(60);

Status failureOf(const Future<void>& future) try {
  Future<void>(future).wait(kPatience);
  return {};
} catch (const Error& error) {
  return error.status();
}

enum class Link { kUnix, kTcp, kTls };

std::pair<io::Stream, io::Stream> joined(Link link) {
  if (link == Link::kTls) {
    test::TlsPair pair;
    return {std::move(pair.a), std::move(pair.b)};
  }
  if (link == Link::kTcp) {
    test::TcpPair pair;
    return {std::move(pair.dialer), std::move(pair.acceptor)};
  }
  int ends[2];
  EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
  return {io::Fd(ends[0]), io::Fd(ends[1])};
}

std::string nameOf(Machine machine) { return "machine" + std::to_string(machine); }

std::vector<std::string> namesOf(size_t machines) {
  std::vector<std::string> names;
  for (Machine machine = 0; machine < machines; ++machine) names.push_back(nameOf(machine));
  return names;
}

// All machines, each two of them joined that exchange bytes.
class Machines {
 public:
  Machines(const Declaration& declaration, size_t servers, Link link = Link::kUnix, const PumpOptions& options = {}) {
    const size_t machines = declaration.workers + servers;
    std::vector<std::vector<PumpPeer>> peers(machines);
    for (Machine first = 0; first < declaration.workers; ++first) {
      for (Machine second = first + 1; second < machines; ++second) {
        auto [one, other] = joined(link);
        peers[first].push_back({second, std::move(one)});
        peers[second].push_back({first, std::move(other)});
      }
    }
    pumps_.resize(machines);
    for (Machine self = 0; self < machines; ++self) {
      PumpOptions own = options;
      own.traffic = traffic_.emplace_back(std::make_shared<Traffic>());
      own.outbox.sendLoss = [this](Machine server, const Status& why) {
        if (const auto first = find(0)) first->lostElsewhere(server, why);
        return Status();
      };
      own.outbox.sendMove = [this, machines](Machine server, const std::vector<Machine>& to, const Status&) {
        for (Machine other = 1; other < machines; ++other)
          if (const auto pump = other == server ? nullptr : find(other)) pump->move(server, to);
        return Status();
      };
      auto pump = std::make_shared<Pump>(declaration, self, namesOf(machines), std::move(peers[self]), std::move(own));
      MutexLock lock(mutex_);
      pumps_[self] = std::move(pump);
    }
  }
  // Not on their own threads.
  ~Machines() {
    for (Machine machine = 0; machine < pumps_.size(); ++machine)
      if (const auto pump = find(machine)) pump->close(cancelled("the test is over"));
  }

  Pump& operator[](Machine machine) { return *find(machine); }
  uint64_t bytesReceived(Machine machine) const { return traffic_[machine]->bytesReceived; }
  void end(Machine machine) {
    const auto pump = find(machine);
    pump->close(cancelled("it was ended"));
    MutexLock lock(mutex_);
    pumps_[machine].reset();
  }

 private:
  std::shared_ptr<Pump> find(Machine machine) {
    MutexLock lock(mutex_);
    return pumps_[machine];
  }

  std::vector<std::shared_ptr<Traffic>> traffic_;
  Mutex mutex_;
  std::vector<std::shared_ptr<Pump>> pumps_ TREADLE_GUARDED_BY(mutex_);
};

Declaration declared(const std::vector<uint64_t>& elements, const Shares& shares) {
  std::vector<Declaration::Tensor> tensors;
  for (const uint64_t count : elements) tensors.push_back({DataType::kInt32, 4 * count});
  return *Declaration::of(std::move(tensors), shares);
}
Declaration declared(const std::vector<uint64_t>& elements, size_t workers, size_t servers) {
  return declared(elements, bestShares(Bandwidths::even(workers, servers, 1)));
}

using Numbers = std::vector<int32_t>;

MutableBytes bytesOf(Numbers& numbers) { return std::as_writable_bytes(std::span(numbers)); }

// Each worker has all tensors under way at once, in several rounds and orders.
void expectSums(size_t workers, size_t servers, Link link) {
  const std::vector<uint64_t> sizes = {3, 100'000, 0, 1, 2'000'000, 8192};
  std::vector<std::vector<Numbers>> data(workers);
  Machines machines(declared(sizes, workers, servers), servers, link);
  for (int32_t round = 1; round <= 3; ++round) {
    for (auto& ofWorker : data) ofWorker.clear();
    std::vector<Future<void>> futures;
    for (size_t worker = 0; worker < workers; ++worker) {
      for (size_t tensor = 0; tensor < sizes.size(); ++tensor)
        data[worker].emplace_back(sizes[tensor], round * static_cast<int32_t>((worker + 1) * (tensor + 1)));
      for (size_t i = 0; i < sizes.size(); ++i) {
        const size_t tensor = worker % 2 == 0 ? i : sizes.size() - 1 - i;
        futures.push_back(machines[worker].sum(tensor, bytesOf(data[worker][tensor])));
      }
    }
    for (const Future<void>& one : futures) ASSERT_TRUE(failureOf(one).ok());
    const auto all = static_cast<int32_t>(workers * (workers + 1) / 2);
    for (size_t worker = 0; worker < workers; ++worker)
      for (size_t tensor = 0; tensor < sizes.size(); ++tensor)
        EXPECT_EQ(Numbers(sizes[tensor], round * all * static_cast<int32_t>(tensor + 1)), data[worker][tensor]);
  }
}

TEST(Pump, SumsTensorsOfAllSizesInSeveralRounds) {
  for (const auto& [workers, servers] :
       {std::pair<size_t, size_t>{1, 0}, {1, 1}, {2, 0}, {2, 1}, {3, 2}, {4, 4}, {5, 0}}) {
    SCOPED_TRACE(std::to_string(workers) + " workers and " + std::to_string(servers) + " servers");
    expectSums(workers, servers, Link::kUnix);
  }
}

TEST(Pump, SumsOverTcpAndTls) {
  for (const Link link : {Link::kTcp, Link::kTls}) expectSums(3, 1, link);
}

// The other end of the connection is the test's.
struct Strange {
  explicit Strange(PumpOptions options = {}, const Declaration& declaration = declared({10}, 2, 0)) {
    auto [mine, theirs] = joined(Link::kTcp);
    end = std::move(mine);
    std::vector<PumpPeer> peers;
    peers.push_back({1, std::move(theirs)});
    pump = std::make_unique<Pump>(declaration, 0, namesOf(2), std::move(peers), std::move(options));
  }
  void send(const Frame& frame, const std::vector<std::byte>& piece, bool isDamaged) {
    const FrameHeader header = encode(frame, piece);
    std::vector<std::byte> bytes(header.begin(), header.end());
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    if (isDamaged) bytes.back() ^= std::byte{1};
    throwIfError(io::writeAll(end, bytes, deadlineAfter(kPatience)));
  }
  Status failure() { return failureOf(pump->sum(0, bytesOf(data))); }

  io::Stream end;
  Numbers data = Numbers(10);
  std::unique_ptr<Pump> pump;
};

TEST(PumpWithAStranger, FailsWithItsNameWhereItSendsWhatNoMachineSends) {
  const std::vector<std::byte> piece(8);
  for (const Frame& frame : {Frame{FrameKind::kAnnounce, 0, 9}, Frame{FrameKind::kGrant}, Frame{FrameKind::kAddend, 8},
                             Frame{FrameKind::kSum, 8}, Frame{FrameKind::kLeave, 0, 1}}) {
    Strange stranger;
    stranger.send(frame, frame.sizeBytes > 0 ? piece : std::vector<std::byte>(), /*isDamaged=*/false);
    const Status why = stranger.failure();
    EXPECT_EQ(Code::kDataLoss, why.code()) << why.message();
    EXPECT_EQ("machine1", why.worker());
  }
}

TEST(PumpWithAStranger, NoticesAPieceThatWasDamagedOnTheWay) {
  Strange stranger;
  const Declaration declaration = declared({10}, 2, 0);
  const size_t part = declaration.parts[0].machine == 0 ? 0 : 1;
  const Part& own = declaration.parts.at(part);
  const Future<void> waits = stranger.pump->sum(0, bytesOf(stranger.data));
  stranger.send({FrameKind::kAnnounce, 0, 0, 0, own.begin}, {}, /*isDamaged=*/false);
  FrameHeader grant;
  throwIfError(io::readAll(stranger.end, grant, deadlineAfter(kPatience)));
  stranger.send({FrameKind::kAddend, static_cast<uint32_t>(own.bytes()), 0, 0, own.begin},
                std::vector<std::byte>(own.bytes()), /*isDamaged=*/true);
  EXPECT_NE(std::string::npos, failureOf(waits).message().find("damaged on the way"));
}

TEST(Pump, FailsAllSumsWithTheNameOfALostMachine) {
  Numbers data(1'000'000, 1);
  Machines machines(declared({1'000'000}, 2, 0), 0);
  const Future<void> waits = machines[0].sum(0, bytesOf(data));
  machines.end(1);
  const Status why = failureOf(waits);
  EXPECT_EQ(Code::kPeerLost, why.code());
  EXPECT_EQ("machine1", why.worker());
  EXPECT_EQ(why.message(), failureOf(machines[0].sum(0, bytesOf(data))).message());
}

// Whatever is under way then: each sum is right, on all workers.
TEST(Pump, GoesOnWithoutServersThatAreLost) {
  for (const Link link : {Link::kUnix, Link::kTcp, Link::kTls}) {
    test::forSeeds(5, [link](Random& random) {
      const std::vector<uint64_t> sizes = {100'000, 1, 500'000, 8192};
      constexpr size_t kWorkers = 3, kServers = 2;
      Machines machines(declared(sizes, kWorkers, kServers), kServers, link,
                        {.patience = std::chrono::milliseconds(1)});
      std::vector<Machine> servers = {kWorkers, kWorkers + 1};
      for (int32_t round = 1; round <= 12; ++round) {
        const uint64_t before = servers.empty() ? 0 : machines.bytesReceived(servers.back());
        std::vector<std::vector<Numbers>> data(kWorkers);
        std::vector<Future<void>> futures;
        for (size_t worker = 0; worker < kWorkers; ++worker)
          for (size_t tensor = 0; tensor < sizes.size(); ++tensor)
            data[worker].emplace_back(sizes[tensor], round * static_cast<int32_t>(worker + 1));
        for (size_t worker = 0; worker < kWorkers; ++worker)
          for (size_t tensor = 0; tensor < sizes.size(); ++tensor)
            futures.push_back(machines[worker].sum(tensor, bytesOf(data[worker][tensor])));
        if (round % 4 == 0 && !servers.empty()) {
          const Machine server = servers.back();
          const uint64_t enough = before + pick(random, 2'000'000);  // of some 2.6 MB in a round
          ASSERT_TRUE(test::eventually([&] { return machines.bytesReceived(server) >= enough; }));
          machines.end(server);
          servers.pop_back();
        }
        for (const Future<void>& one : futures) ASSERT_TRUE(failureOf(one).ok()) << failureOf(one).toString();
        for (size_t worker = 0; worker < kWorkers; ++worker)
          for (size_t tensor = 0; tensor < sizes.size(); ++tensor)
            EXPECT_EQ(Numbers(sizes[tensor], 6 * round), data[worker][tensor]);
      }
      for (size_t worker = 0; worker < kWorkers; ++worker) {
        EXPECT_TRUE(machines[worker].isWithout(kWorkers) && machines[worker].isWithout(kWorkers + 1));
        machines[worker].leave();
      }
      for (size_t worker = 0; worker < kWorkers; ++worker) EXPECT_TRUE(failureOf(machines[worker].ended()).ok());
    });
  }
}

Declaration compressed(const Compression& compression, const std::vector<uint64_t>& elements, size_t workers,
                       size_t servers) {
  std::vector<Declaration::Tensor> tensors;
  for (const uint64_t count : elements) {
    const Packing packing = Packing::of(compression, count);
    tensors.push_back({DataType::kFloat32, packing.bytes(), {}, packing});
  }
  return *Declaration::of(std::move(tensors), bestShares(Bandwidths::even(workers, servers, 1)));
}

// Of numbers that are all the same, of which one bit loses nothing.
TEST(Pump, GoesOnWithoutServersThatAreLostWhereTensorsAreCompressed) {
  test::forSeeds(5, [](Random& random) {
    const std::vector<uint64_t> sizes = {300'000, 1, 1'000'000};
    constexpr size_t kWorkers = 3, kServers = 2;
    Machines machines(compressed(Compression::oneBit(), sizes, kWorkers, kServers), kServers, Link::kUnix,
                      {.patience = std::chrono::milliseconds(1)});
    for (int round = 1; round <= 4; ++round) {
      const Machine server = kWorkers + static_cast<Machine>(round) / 2 - 1;
      const uint64_t before = round % 2 == 0 ? machines.bytesReceived(server) : 0;
      std::vector<std::vector<std::vector<float>>> data(kWorkers);
      std::vector<Future<void>> futures;
      for (size_t worker = 0; worker < kWorkers; ++worker)
        for (const uint64_t size : sizes) data[worker].emplace_back(size, static_cast<float>((worker + 1) * round));
      for (size_t worker = 0; worker < kWorkers; ++worker)
        for (size_t tensor = 0; tensor < sizes.size(); ++tensor)
          futures.push_back(machines[worker].sum(tensor, std::as_writable_bytes(std::span(data[worker][tensor]))));
      if (round % 2 == 0) {
        const uint64_t enough = before + pick(random, 100'000);  // of some 190 KB in a round
        ASSERT_TRUE(test::eventually([&] { return machines.bytesReceived(server) >= enough; }));
        machines.end(server);
      }
      for (const Future<void>& one : futures) ASSERT_TRUE(failureOf(one).ok()) << failureOf(one).toString();
      for (size_t worker = 0; worker < kWorkers; ++worker)
        for (size_t tensor = 0; tensor < sizes.size(); ++tensor)
          ASSERT_EQ(std::vector<float>(sizes[tensor], static_cast<float>(6 * round)), data[worker][tensor]);
    }
  });
}

#if defined(__x86_64__)

// As libtorch's setFlushDenormal makes it: small floats would become zero on this machine only, and be sent once more.
TEST(Pump, SumsSmallFloatsWhereItsThreadTreatsThemAsZero) {
  constexpr uint32_t kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  const uint32_t before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | kFlushToZero | kDenormalsAreZero);
  Machines machines(compressed(Compression::float16(), {100}, 1, 0), 0);
  __builtin_ia32_ldmxcsr(before);
  constexpr float kSmall = 1e-5F, kLeastHalf = 0x1p-24F;
  float all = 0;
  for (int round = 1; round <= 20; ++round) {
    std::vector<float> data(100, kSmall);
    ASSERT_TRUE(failureOf(machines[0].sum(0, std::as_writable_bytes(std::span(data)))).ok());
    all += data.front();
    EXPECT_NEAR(static_cast<float>(round) * kSmall, all, kLeastHalf);
  }
}

#endif

// The server lives, and is dropped by all. No machine has another reason to wake than what it hears.
TEST(Pump, GoesOnWithoutAServerThatOneWorkerHasLost) {
  for (const bool isUnderWay : {false, true}) {
    Machines machines(declared({100'000}, 2, 1), 1, Link::kUnix, {.timeout = kNoTimeout, .patience = kPatience});
    Numbers data(100'000, 1), other(100'000, 2);
    std::vector<Future<void>> sums;
    if (isUnderWay) sums.push_back(machines[0].sum(0, bytesOf(data)));
    machines[0].lostElsewhere(2, peerLost("machine2", "machine1 has lost it"));
    ASSERT_TRUE(test::eventually([&] { return machines[1].isWithout(2); }));
    if (!isUnderWay) sums.push_back(machines[0].sum(0, bytesOf(data)));
    sums.push_back(machines[1].sum(0, bytesOf(other)));
    for (const Future<void>& sum : sums) ASSERT_TRUE(failureOf(sum).ok());
    EXPECT_EQ(Numbers(100'000, 3), data);
    EXPECT_EQ(data, other);
  }
}

TEST(Pump, FailsWhereTheFirstWorkerSendsWhatItNeverSends) {
  Numbers data(10);
  Machines machines(declared({10}, 2, 1), 1);
  const Future<void> waits = machines[1].sum(0, bytesOf(data));
  machines[1].move(2, {7});
  const Status why = failureOf(waits);
  EXPECT_EQ(Code::kDataLoss, why.code());
  EXPECT_NE(std::string::npos, why.message().find("machine0 sent what no first worker sends")) << why.message();
}

// ---- asynchronous

Declaration declaredAsynchronous(const std::vector<uint64_t>& elements, size_t workers, size_t servers,
                                 uint64_t staleness = SumMode::kAnyStaleness) {
  Declaration declaration = declared(elements, serviceShares(Bandwidths::even(workers, servers, 1), true));
  declaration.mode = {true, staleness};
  return declaration;
}

// A worker gives its digit (1, 100, 10,000) so many times, and then leaves.
void giveDigits(Machines& machines, Machine worker, const std::vector<uint64_t>& sizes, int rounds) {
  int32_t digit = 1;
  for (Machine i = 0; i < worker; ++i) digit *= 100;
  for (int round = 1; round <= rounds; ++round) {
    std::vector<Numbers> data;
    for (const uint64_t size : sizes) data.emplace_back(size, digit);
    std::vector<Future<void>> futures;
    for (size_t tensor = 0; tensor < sizes.size(); ++tensor)
      futures.push_back(machines[worker].sum(tensor, bytesOf(data[tensor])));
    for (const Future<void>& one : futures) ASSERT_TRUE(failureOf(one).ok()) << failureOf(one).toString();
    for (const Numbers& numbers : data) {
      const auto isRight = [&](int32_t one) { return one / digit % 100 == round && one % 100 >= 1; };
      ASSERT_TRUE(std::all_of(numbers.begin(), numbers.end(), isRight)) << "worker " << worker << ", round " << round;
    }
  }
  machines[worker].leave();
}

TEST(AsynchronousPump, AnswersEachWorkerByItselfUntilItLeaves) {
  for (const Link link : {Link::kUnix, Link::kTcp, Link::kTls}) {
    for (const size_t servers : {0, 2}) {
      const std::vector<uint64_t> sizes = {100'000, 0, 2'000'000, 1};
      Machines machines(declaredAsynchronous(sizes, 3, servers), servers, link);
      std::vector<std::thread> workers;
      for (Machine worker = 0; worker < 3; ++worker)
        workers.emplace_back([&, worker] { giveDigits(machines, worker, sizes, 1 + 3 * static_cast<int>(worker)); });
      for (std::thread& one : workers) one.join();
      for (Machine machine = 0; machine < 3 + servers; ++machine)
        EXPECT_TRUE(failureOf(machines[machine].ended()).ok()) << failureOf(machines[machine].ended()).toString();
    }
  }
}

TEST(AsynchronousPump, NamesTheWorkersThatAreTooFarBehind) {
  Machines machines(declaredAsynchronous({10}, 3, 1, /*staleness=*/1), 1, Link::kUnix,
                    {.timeout = std::chrono::seconds(1), .patience = kPatience});
  Numbers data(10, 1), other(10, 1);
  EXPECT_TRUE(failureOf(machines[0].sum(0, bytesOf(data))).ok());
  EXPECT_TRUE(failureOf(machines[1].sum(0, bytesOf(other))).ok());
  const Future<void> waits = machines[0].sum(0, bytesOf(data));
  const Status why = failureOf(machines[3].ended());
  EXPECT_EQ("the sum of tensor 0 was not begun in 1 s by machine2", why.message());
  EXPECT_EQ("machine2", why.worker());
  EXPECT_FALSE(failureOf(waits).ok());
}

// With a server, which sums all, and without one.
TEST(AsynchronousPump, FailsWhereTheFirstWorkerLeavesBeforeItHasGivenItsValues) {
  for (const size_t servers : {0, 1}) {
    Declaration declaration = declaredAsynchronous({10}, 2, servers);
    declaration.parts.front().machine = 1 + servers;
    Machines machines(declaration, servers, Link::kUnix, {.timeout = kNoTimeout});
    Numbers data(10);
    const Future<void> waits = machines[1].sum(0, bytesOf(data));
    machines[0].leave();
    const Status why = failureOf(machines[1 + servers].ended());
    EXPECT_EQ(Code::kFailedPrecondition, why.code());
    EXPECT_EQ("machine0 has left the summation service, and has not given tensor 0, with whose values all begin",
              why.message());
    EXPECT_EQ("machine0", why.worker());
    EXPECT_FALSE(failureOf(waits).ok());
  }
}

// Whatever is under way then: each answer has all that its worker has given, each once.
TEST(AsynchronousPump, GoesOnWithoutServersThatAreLost) {
  for (const Link link : {Link::kUnix, Link::kTcp, Link::kTls}) {
    test::forSeeds(5, [link](Random& random) {
      const std::vector<uint64_t> sizes = {100'000, 1, 500'000, 8192};
      constexpr size_t kWorkers = 3, kServers = 2;
      Machines machines(declaredAsynchronous(sizes, kWorkers, kServers), kServers, link,
                        {.patience = std::chrono::milliseconds(1)});
      std::vector<std::thread> workers;
      for (Machine worker = 0; worker < kWorkers; ++worker)
        workers.emplace_back([&, worker] { giveDigits(machines, worker, sizes, 8); });
      for (const Machine server : {kWorkers + 1, kWorkers}) {
        const uint64_t enough = machines.bytesReceived(server) + pick(random, 8'000'000);  // of some 29 MB at least
        EXPECT_TRUE(test::eventually([&] { return machines.bytesReceived(server) >= enough; }));
        machines.end(server);
      }
      for (std::thread& one : workers) one.join();
      for (Machine worker = 0; worker < kWorkers; ++worker) {
        EXPECT_TRUE(machines[worker].isWithout(kWorkers) && machines[worker].isWithout(kWorkers + 1));
        EXPECT_TRUE(failureOf(machines[worker].ended()).ok()) << failureOf(machines[worker].ended()).toString();
      }
    });
  }
}

// The values of the first worker are not there yet.
TEST(AsynchronousPump, GoesOnWithoutAServerWhereASumWaits) {
  Machines machines(declaredAsynchronous({1'000'000}, 2, 1), 1, Link::kUnix,
                    {.patience = std::chrono::milliseconds(1)});
  Numbers first(1'000'000, 5), waiting(1'000'000);
  const Future<void> waits = machines[1].sum(0, bytesOf(waiting));
  EXPECT_TRUE(test::eventually([&] { return machines.bytesReceived(2) >= 4 * waiting.size(); }));
  machines.end(2);
  EXPECT_TRUE(test::eventually([&] { return machines[1].isWithout(2); }));
  EXPECT_FALSE(waits.ready());
  EXPECT_TRUE(failureOf(machines[0].sum(0, bytesOf(first))).ok());
  EXPECT_TRUE(failureOf(waits).ok());
  EXPECT_EQ(Numbers(1'000'000, 5), first);
  EXPECT_EQ(first, waiting);
}

// A server and the first worker, beside a worker by hand that has given its data and reads nothing.
class BesideASlowWorker {
 public:
  static constexpr uint64_t kElements = 500'000;

  BesideASlowWorker(uint64_t staleness, Duration timeoutOfServer) {
    const Declaration declaration = {
        {{DataType::kInt32, 4 * kElements}}, {{0, 0, 4 * kElements, 2}}, 2, {true, staleness}};
    auto [workerToServer, serverToWorker] = joined(Link::kUnix);
    auto [workerToSlow, slowToWorker] = joined(Link::kUnix);
    auto [serverToSlow, slowToServer] = joined(Link::kUnix);
    std::vector<PumpPeer> ofWorker, ofServer;
    ofWorker.push_back({1, std::move(workerToSlow)});
    ofWorker.push_back({2, std::move(workerToServer)});
    ofServer.push_back({0, std::move(serverToWorker)});
    ofServer.push_back({1, std::move(serverToSlow)});
    const auto received = std::make_shared<Traffic>();
    worker = std::make_unique<Pump>(declaration, 0, namesOf(3), std::move(ofWorker), PumpOptions());
    server = std::make_unique<Pump>(declaration, 2, namesOf(3), std::move(ofServer),
                                    PumpOptions{.timeout = timeoutOfServer, .traffic = received});
    toWorker_ = std::move(slowToWorker);
    toServer_ = std::move(slowToServer);
    send({FrameKind::kAnnounce, 0, 0, 0, 0}, {});
    const std::vector<std::byte> zeros(kPieceBytes);
    for (uint64_t piece = 0; piece < declaration.piecesOf(0); ++piece) {
      const auto size = static_cast<uint32_t>(declaration.bytesOf(0, piece));
      send({FrameKind::kAddend, size, 0, 0, declaration.beginOf(0, piece)}, Bytes(zeros).first(size));
      framesOfAnswer_ += kFrameHeaderBytes + size;
    }
    EXPECT_TRUE(test::eventually([&] { return received->bytesReceived >= 4 * kElements; }));
  }
  ~BesideASlowWorker() {
    worker->close(cancelled("the test is over"));
    server->close(cancelled("the test is over"));
  }

  // A grant and the answer.
  void takeAnswer() {
    std::vector<std::byte> all(kFrameHeaderBytes + framesOfAnswer_);
    EXPECT_TRUE(io::readAll(toServer_, all, deadlineAfter(kPatience)).ok());
  }

  std::unique_ptr<Pump> worker, server;

 private:
  void send(const Frame& frame, Bytes piece) {
    EXPECT_TRUE(io::writeAll(toServer_, encode(frame, piece), deadlineAfter(kPatience)).ok());
    EXPECT_TRUE(io::writeAll(toServer_, piece, deadlineAfter(kPatience)).ok());
  }

  io::Stream toWorker_, toServer_;
  size_t framesOfAnswer_ = 0;
};

TEST(AsynchronousPump, DoesNotWaitForAWorkerThatDoesNotTakeItsAnswer) {
  BesideASlowWorker beside(SumMode::kAnyStaleness, kPatience);
  Numbers data;
  for (int32_t round = 1; round <= 5; ++round) {
    data.assign(BesideASlowWorker::kElements, 1);
    const Status status = failureOf(beside.worker->sum(0, bytesOf(data)));
    ASSERT_TRUE(status.ok()) << status.toString();
    EXPECT_EQ(Numbers(BesideASlowWorker::kElements, round), data);
  }
}

// Nobody is late as long as the answer is on its way, and the server looks for what is late only now and then.
TEST(AsynchronousPump, NamesAWorkerThatGivesNothingAfterItsAnswer) {
  BesideASlowWorker beside(/*staleness=*/0, std::chrono::milliseconds(400));
  Numbers data(BesideASlowWorker::kElements, 1);
  ASSERT_TRUE(failureOf(beside.worker->sum(0, bytesOf(data))).ok());
  const Future<void> waits = beside.worker->sum(0, bytesOf(data));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // of several looks
  EXPECT_FALSE(beside.server->ended().ready());
  beside.takeAnswer();
  const Status why = failureOf(beside.server->ended());
  EXPECT_EQ("the sum of tensor 0 was not begun in 400 ms by machine1", why.message());
  EXPECT_EQ("machine1", why.worker());
}

// ---- misuse

TEST(Pump, RefusesASecondSumOfATensorThatIsUnderWay) {
  Numbers data(10), other(10);
  Machines machines(declared({10, 10}, 2, 0), 0);
  const Future<void> first = machines[0].sum(1, bytesOf(data));
  EXPECT_NE(std::string::npos,
            test::messageOf<StateError>([&] { machines[0].sum(1, bytesOf(data)); }).find("tensor 1 is under way"));
  const Future<void> second = machines[1].sum(1, bytesOf(other));
  EXPECT_TRUE(failureOf(first).ok() && failureOf(second).ok());
}

TEST(Pump, RefusesWhatWasNotDeclared) {
  Numbers data(9);
  Machines machines(declared({10}, 2, 1), 1);
  const auto refused = [&](auto sum) { return test::messageOf<ArgumentError>(sum); };
  EXPECT_EQ("there is no tensor 1; 1 were declared", refused([&] { machines[0].sum(1, bytesOf(data)); }));
  EXPECT_EQ("tensor 0 was declared with 40 bytes, and its data has 36",
            refused([&] { machines[0].sum(0, bytesOf(data)); }));
  Numbers more(11);
  EXPECT_EQ("the data of tensor 0 is not aligned for its type",
            refused([&] { machines[0].sum(0, bytesOf(more).subspan(1, 40)); }));
  EXPECT_NE("", test::messageOf<StateError>([&] { machines[2].sum(0, bytesOf(data)); }));
}

// Complex numbers are aligned as their parts are.
TEST(Pump, SumsComplexNumbersWhereverTheyMayBe) {
  Machines machines(*Declaration::of({{DataType::kComplex128, 16}}, bestShares(Bandwidths::even(1, 0, 1))), 0);
  std::array<double, 4> numbers{};
  for (const size_t first : {0, 1})
    EXPECT_TRUE(failureOf(machines[0].sum(0, std::as_writable_bytes(std::span(numbers).subspan(first, 2)))).ok());
}

// Other workers count on its data.
TEST(Pump, EndsASumByItselfWhereItsFutureIsCancelled) {
  Numbers data(10, 1), other(10, 2);
  Machines machines(declared({10}, 2, 0), 0);
  Future<void> first = machines[0].sum(0, bytesOf(data));
  first.cancel();
  EXPECT_FALSE(first.ready());
  EXPECT_TRUE(failureOf(machines[1].sum(0, bytesOf(other))).ok());
  EXPECT_TRUE(failureOf(first).ok());
  EXPECT_EQ(Numbers(10, 3), data);
}

TEST(Pump, EndsWhatIsUnderWayWhenItIsClosed) {
  Numbers data(10);
  Machines machines(declared({10}, 2, 0), 0);
  const Future<void> waits = machines[0].sum(0, bytesOf(data));
  machines[0].close(cancelled("it leaves"));
  EXPECT_TRUE(waits.ready());
  EXPECT_EQ("it leaves", failureOf(waits).message());
}

// Each machine ends by itself when all workers have left, whatever the order, and none of its ends is a loss.
TEST(Pump, EndsOnAllMachinesWhenAllWorkersHaveLeft) {
  for (const Link link : {Link::kUnix, Link::kTcp, Link::kTls}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<Numbers> data(3, Numbers(100'000, 1));
      Machines machines(declared({100'000}, 3, 2), 2, link);
      std::vector<Future<void>> all;
      for (size_t worker = 0; worker < 3; ++worker) {
        all.push_back(machines[worker].sum(0, bytesOf(data[worker])));
        machines[worker].leave();
      }
      for (Machine machine = 0; machine < 5; ++machine) all.push_back(machines[machine].ended());
      for (const Future<void>& one : all) ASSERT_TRUE(failureOf(one).ok()) << failureOf(one).toString();
      EXPECT_EQ(std::vector<Numbers>(3, Numbers(100'000, 3)), data);
    }
  }
}

TEST(Pump, GoesOnUntilTheLastWorkerHasLeft) {
  Machines machines(declared({10}, 2, 1), 1);
  machines[0].leave();
  EXPECT_FALSE(machines[2].ended().ready());
  machines[1].leave();
  for (Machine machine = 0; machine < 3; ++machine) EXPECT_TRUE(failureOf(machines[machine].ended()).ok());
  Numbers data(10);
  EXPECT_NE("", test::messageOf<StateError>([&] { machines[0].sum(0, bytesOf(data)); }));
}

// It would wait for data that never comes.
TEST(Pump, FailsASumThatAWorkerWhichHasLeftDoesNotKnow) {
  Numbers data(10, 1), other(10, 2);
  Machines machines(declared({10}, 2, 1), 1);
  const Future<void> first = machines[0].sum(0, bytesOf(data)), second = machines[1].sum(0, bytesOf(other));
  EXPECT_TRUE(failureOf(first).ok() && failureOf(second).ok());
  machines[1].leave();
  const Status why = failureOf(machines[0].sum(0, bytesOf(data)));
  EXPECT_EQ(Code::kFailedPrecondition, why.code());
  EXPECT_EQ(
      "machine1 has left the summation service, and machine0 waits for its data in the sum of tensor 0 (sums begun: 1 "
      "and 2)",
      why.message());
  EXPECT_EQ("machine1", why.worker());
}

TEST(Pump, NamesTheWorkersThatHaveNotBegunASumInTime) {
  for (const size_t servers : {0, 1, 3}) {
    Numbers data(1'000'000), other(1'000'000);
    Machines machines(declared({1'000'000}, 3, servers), servers, Link::kUnix,
                      {.timeout = std::chrono::milliseconds(200), .patience = kPatience});
    const Future<void> waits = machines[0].sum(0, bytesOf(data)), too = machines[2].sum(0, bytesOf(other));
    const Status adds = failureOf(machines[servers == 0 ? 0 : 3].ended());  // a machine that sums a part
    EXPECT_EQ("the sum of tensor 0 was not begun in 200 ms by machine1", adds.message());
    EXPECT_EQ(Code::kDeadlineExceeded, adds.code());
    EXPECT_EQ("machine1", adds.worker());
    EXPECT_FALSE(failureOf(waits).ok() || failureOf(too).ok());
  }
}

// The other machine sums all, takes the announcement, and that is all.
TEST(PumpWithAStranger, EndsASumThatIsNotDoneInTime) {
  const Declaration declaration = {{{DataType::kInt32, 40, "weight"}}, {{0, 0, 40, 1}}, 2};
  Strange stranger({.timeout = std::chrono::milliseconds(100)}, declaration);
  const Status why = stranger.failure();
  EXPECT_EQ(Code::kDeadlineExceeded, why.code());
  EXPECT_EQ("the sum of 'weight' was not done in 100 ms: it lacks the parts that are summed by machine1",
            why.message());
}

TEST(PumpWithAStranger, WaitsForTheCauseWhenAConnectionEnds) {
  Strange stranger({.patience = kPatience});
  const Future<void> waits = stranger.pump->sum(0, bytesOf(stranger.data));
  stranger.end = {};
  stranger.pump->fail(peerLost("machine7", "machine7 was killed"));
  EXPECT_EQ("machine7", failureOf(waits).worker());
}

TEST(PumpWithAStranger, BlamesTheConnectionThatEndedWhereNoCauseComes) {
  Strange stranger({.patience = std::chrono::milliseconds(50)});
  const Future<void> waits = stranger.pump->sum(0, bytesOf(stranger.data));
  stranger.end = {};
  const Status why = failureOf(waits);
  EXPECT_EQ(Code::kPeerLost, why.code());
  EXPECT_EQ("machine1", why.worker());
}

// A worker that is 100 ms late lets the other one wait as long.
TEST(Pump, CountsWhatItsTimeIsSpentWith) {
  constexpr Duration kDelay = std::chrono::milliseconds(100), kMayDiffer = kDelay / 2;
  Numbers first(1'000'000, 1), second(1'000'000, 2);
  Machines machines(declared({1'000'000}, 2, 1), 1);
  const Future<void> ofFirst = machines[0].sum(0, bytesOf(first));
  ASSERT_TRUE(test::eventually([&] { return machines.bytesReceived(1) > 0; }));
  std::this_thread::sleep_for(kDelay);
  const Future<void> ofSecond = machines[1].sum(0, bytesOf(second));
  EXPECT_TRUE(failureOf(ofFirst).ok());
  EXPECT_TRUE(failureOf(ofSecond).ok());
  EXPECT_EQ(1u, machines[0].times().sums);  // at once
  for (Machine machine = 0; machine < 2; ++machine) machines[machine].leave();
  for (Machine machine = 0; machine < 3; ++machine) EXPECT_TRUE(failureOf(machines[machine].ended()).ok());
  const SummationTimes early = machines[0].times(), late = machines[1].times(), server = machines[2].times();
  EXPECT_GE(early.waiting, kMayDiffer);
  for (const SummationTimes& one : {early, late}) {
    EXPECT_EQ(1u, one.sums);
    EXPECT_EQ(4'000'000u, one.bytes);
    EXPECT_GT(one.computing, Duration::zero());
    EXPECT_GT(one.bytesSent, 2'900'000u);  // 3/4 of the bytes, as n = 2 and k = 1
    EXPECT_GT(one.bytesReceived, 2'900'000u);
  }
  EXPECT_GT(server.computing, Duration::zero());
  EXPECT_EQ(Duration::zero(), server.waiting);
  EXPECT_EQ(0u, server.sums);
}

// Though the machine that sums the part has granted it.
TEST(AsynchronousPump, CountsThatItWaitsForAWorkerThatIsBehind) {
  constexpr Duration kDelay = std::chrono::milliseconds(100), kMayDiffer = kDelay / 2;
  Declaration declaration = declared({1'000'000}, 2, 1);
  declaration.mode = {.isAsynchronous = true, .staleness = 0};
  for (Part& part : declaration.parts) part.machine = 2;
  Numbers first(1'000'000, 1), second(1'000'000, 2);
  Machines machines(declaration, 1);
  const Future<void> ofFirst = machines[0].sum(0, bytesOf(first));
  ASSERT_TRUE(test::eventually([&] { return machines.bytesReceived(2) > 4'000'000; }));
  std::this_thread::sleep_for(kDelay);
  const Future<void> ofSecond = machines[1].sum(0, bytesOf(second));
  EXPECT_TRUE(failureOf(ofFirst).ok());
  EXPECT_TRUE(failureOf(ofSecond).ok());
  EXPECT_GE(machines[0].times().waiting, kMayDiffer);
}

// Nothing else happens that would wake the pump.
TEST(Pump, LeavesAsSoonAsItsLastSumHasEnded) {
  for (const size_t servers : {0, 1}) {
    for (int round = 0; round < 100; ++round) {
      Numbers data(10, 1);
      Machines machines(declared({10}, 1, servers), servers, Link::kUnix, {.timeout = kNoTimeout});
      const Future<void> sum = machines[0].sum(0, bytesOf(data));
      machines[0].leave();
      for (Machine machine = 0; machine <= servers; ++machine) ASSERT_TRUE(failureOf(machines[machine].ended()).ok());
      EXPECT_TRUE(failureOf(sum).ok());
    }
  }
}

// Not even for the reason.
TEST(Pump, EndsAllFuturesWhereThereIsNoMemoryLeft) {
  if (!test::kMemoryMayFail) GTEST_SKIP() << "the sanitizer allocates";
  std::vector<Numbers> data(4, Numbers(10));
  Machines machines(declared({10, 10}, 2, 0), 0);
  Pump& pump = machines[0];
  std::vector<Future<void>> all = {pump.ended(), pump.sum(1, bytesOf(data[0]))};
  const Future<void> first = pump.sum(0, bytesOf(data[1]));
  const Future<void> runsOut = Future<void>(first).then([] { test::leastFailing = 0; });
  EXPECT_TRUE(failureOf(machines[1].sum(0, bytesOf(data[2]))).ok());
  EXPECT_TRUE(failureOf(runsOut).ok());
  for (int i = 0; i < 2; ++i) {
    all.push_back(pump.sum(0, bytesOf(data[1])));
    for (const Future<void>& one : all) {
      const Status why = failureOf(one);
      EXPECT_EQ(Code::kResourceExhausted, why.code());
      EXPECT_EQ("there is no memory for the parts that this machine sums", why.message());
    }
  }
}

// They need no other worker.
TEST(Pump, DoesNotCountSumsOfTensorsWithoutBytes) {
  Numbers data(10, 1), other(10, 2), none;
  Machines machines(declared({10, 0}, 2, 0), 0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(failureOf(machines[0].sum(1, bytesOf(none))).ok());
  const Future<void> first = machines[0].sum(0, bytesOf(data)), second = machines[1].sum(0, bytesOf(other));
  EXPECT_TRUE(failureOf(first).ok() && failureOf(second).ok());
  machines[0].leave();
  const Status why = failureOf(machines[1].sum(0, bytesOf(other)));
  EXPECT_NE(std::string::npos, why.message().find("machine0 has left")) << why.message();
}

// The limit is for who does not begin a sum, not for one that moves slowly.
TEST(PumpWithAStranger, WaitsForASumAsLongAsItMoves) {
  constexpr uint64_t kPieces = 5;
  const Declaration declaration = {{{DataType::kInt32, kPieces * kPieceBytes}}, {{0, 0, kPieces * kPieceBytes, 1}}, 2};
  Strange stranger({.timeout = std::chrono::milliseconds(400)}, declaration);
  Numbers data(kPieces * kPieceBytes / 4);
  const Future<void> sum = stranger.pump->sum(0, bytesOf(data));
  FrameHeader announcement;
  throwIfError(io::readAll(stranger.end, announcement, deadlineAfter(kPatience)));
  stranger.send({FrameKind::kGrant}, {}, /*isDamaged=*/false);
  std::vector<std::byte> all(kPieces * (kFrameHeaderBytes + kPieceBytes));
  throwIfError(io::readAll(stranger.end, all, deadlineAfter(kPatience)));
  for (uint64_t piece = 0; piece < kPieces; ++piece) {
    EXPECT_FALSE(sum.ready());
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // a slow network
    stranger.send({FrameKind::kSum, kPieceBytes, 0, 0, piece * kPieceBytes}, std::vector<std::byte>(kPieceBytes),
                  /*isDamaged=*/false);
  }
  EXPECT_TRUE(failureOf(sum).ok());
}

}  // namespace
}  // namespace treadle::summation::pump_test
