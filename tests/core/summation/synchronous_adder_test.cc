// Sums among machines in every order of events that seeds yield: to the bit, each once, and nothing gets stuck.

#include "treadle/core/summation/synchronous_adder.h"

#include <array>
#include <complex>
#include <cstring>
#include <functional>

#include "tests/core/summation/simulated_service.h"
#include "treadle/core/group/half.h"
#include "treadle/core/summation/sum.h"

namespace treadle::summation::synchronous_adder_test {
namespace {

using group::DataType;
using test::pick;
using test::Random;
using test::SimulatedService;

constexpr int kRounds = 3;

// What a worker has of a tensor in a round: the same wherever it is asked.
std::vector<std::byte> dataOf(const Declaration::Tensor& tensor, size_t number, size_t worker, int round) {
  Random random(number * 1000 + worker * 10 + static_cast<size_t>(round));
  std::vector<std::byte> data(tensor.bytes);
  const auto fill = [&](auto draw) {
    using T = decltype(draw());
    for (size_t i = 0; i + sizeof(T) <= data.size(); i += sizeof(T)) {
      const T value = draw();
      std::memcpy(data.data() + i, &value, sizeof value);
    }
  };
  switch (tensor.type) {
    case DataType::kFloat16: fill([&] { return group::toFloat16(static_cast<float>(random() % 4096)); }); break;
    case DataType::kFloat32: fill([&] { return static_cast<float>(static_cast<int64_t>(random()) >> 20); }); break;
    case DataType::kComplex128: fill([&] { return std::complex(static_cast<double>(random()), 0.5); }); break;
    default: fill([&] { return static_cast<uint8_t>(random()); });
  }
  return data;
}

std::vector<std::byte> sumOf(const Declaration& declaration, size_t number, int round) {
  const Declaration::Tensor& tensor = declaration.tensors[number];
  std::vector<std::vector<std::byte>> all;
  std::vector<const std::byte*> addends;
  for (size_t worker = 0; worker < declaration.workers; ++worker) all.push_back(dataOf(tensor, number, worker, round));
  for (const auto& one : all) addends.push_back(one.data());
  std::vector<std::byte> result(tensor.bytes);
  sum(tensor.type, addends, tensor.bytes / sizeOf(tensor.type), result.data());
  return result;
}

// A worker that begins the next round of a tensor when the last one has ended, tensors in an order of its own.
class Program {
 public:
  Program(SimulatedService& service, size_t worker)
      : service_(service), worker_(worker), rounds_(service.declaration().tensors.size()) {
    for (const auto& tensor : service.declaration().tensors) memory_.emplace_back(tensor.bytes);
  }

  // Begins the sum of a tensor that is free, if there is one.
  void begin(Random& random) {
    const size_t tensor = pick(random, rounds_.size());
    if (isUnderWay_.contains(tensor) || rounds_[tensor] == kRounds) return;
    memory_[tensor] = dataOf(service_.declaration().tensors[tensor], tensor, worker_, rounds_[tensor]);
    service_.machine(worker_).announce(tensor, memory_[tensor]);
    isUnderWay_.insert(tensor);
  }
  void end() {
    for (size_t tensor = 0; tensor < rounds_.size(); ++tensor) {
      if (!isUnderWay_.contains(tensor) || !service_.isDone(worker_, tensor)) continue;
      ASSERT_EQ(sumOf(service_.declaration(), tensor, rounds_[tensor]), memory_[tensor])
          << "tensor " << tensor << " on worker " << worker_ << " in round " << rounds_[tensor];
      isUnderWay_.erase(tensor);
      ++rounds_[tensor];
    }
  }
  bool isDone() const {
    return std::all_of(rounds_.begin(), rounds_.end(), [](int rounds) { return rounds == kRounds; });
  }

 private:
  SimulatedService& service_;
  const size_t worker_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<int> rounds_;  // that have ended
  std::set<size_t> isUnderWay_;
};

Declaration drawnDeclaration(Random& random, size_t workers, size_t servers) {
  std::vector<Declaration::Tensor> tensors(1 + pick(random, 6));
  for (Declaration::Tensor& tensor : tensors) {
    tensor.type =
        std::array{DataType::kFloat16, DataType::kFloat32, DataType::kInt32, DataType::kComplex128}[pick(random, 4)];
    tensor.bytes = sizeOf(tensor.type) * (1 + pick(random, 100'000 / sizeOf(tensor.type)));
  }
  return *Declaration::of(std::move(tensors), bestShares(Bandwidths::even(workers, servers, 1)));
}

// `mayKill` is asked whether a server is killed now.
void expectSums(Random& random, size_t workers, size_t servers, const std::function<bool()>& mayKill) {
  const uint64_t grantBytes = pick(random, 2) == 0 ? 1 : 300'000;
  SimulatedService service(drawnDeclaration(random, workers, servers), servers, grantBytes);
  std::vector<Program> programs;
  for (size_t worker = 0; worker < workers; ++worker) programs.emplace_back(service, worker);
  const auto areDone = [&] {
    return std::all_of(programs.begin(), programs.end(), [](const Program& one) { return one.isDone(); });
  };
  for (int idle = 0; !areDone() && !::testing::Test::HasFatalFailure();) {
    for (Program& one : programs) one.end();
    if (pick(random, 8) == 0) programs[pick(random, workers)].begin(random);
    if (servers > 0 && mayKill()) {
      const Machine server = workers + pick(random, servers);
      if (service.isAlive(server)) service.kill(server);
    }
    idle = service.step(random) ? 0 : idle + 1;
    ASSERT_LT(idle, 10'000) << "nothing can happen any more";
  }
  while (service.step(random)) continue;
  for (Machine machine = 0; machine < workers + servers; ++machine)
    EXPECT_FALSE(service.isAlive(machine) && service.machine(machine).dataMayMove()) << "machine " << machine;
}

TEST(Sums, AreExactAndAllEndInAnyOrderOfEvents) {
  test::forSeeds(30, [](Random& random) {
    const size_t workers = 1 + pick(random, 5), servers = pick(random, 4);
    expectSums(random, workers, servers, [] { return false; });
  });
}

// The same bits, whatever was under way: the sums of the parts that move begin again.
TEST(Sums, AreExactAndAllEndWhereServersAreKilled) {
  test::forSeeds(100, [](Random& random) {
    const size_t workers = 1 + pick(random, 4), servers = 1 + pick(random, 4);
    const size_t seldom = size_t{20} << pick(random, 6);
    expectSums(random, workers, servers, [&] { return pick(random, seldom) == 0; });
  });
}

// ---- one machine, by hand: a server for two workers

constexpr Machine kServer = 2;

class AdderAlone : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 2 * kPieceBytes + 400;  // three pieces

  static Frame frame(FrameKind kind, uint32_t tensor, uint64_t piece, uint64_t round = 0) {
    const bool hasPiece = kind == FrameKind::kAddend || kind == FrameKind::kSum;
    const uint64_t offset = piece * kPieceBytes;
    return {kind, hasPiece ? static_cast<uint32_t>(std::min(kPieceBytes, kBytes - offset)) : 0, tensor, round, offset};
  }
  static Frame announce(uint32_t tensor, uint64_t round = 0) { return frame(FrameKind::kAnnounce, tensor, 0, round); }
  static Frame have(uint64_t round) { return frame(FrameKind::kHave, 0, 0, round); }

  // All workers announce it, and hear that it is granted.
  void grant(uint32_t tensor) {
    for (size_t worker = 0; worker < 2; ++worker) ASSERT_TRUE(adder_.announced(worker, announce(tensor)).ok());
    for (size_t worker = 0; worker < 2; ++worker) ASSERT_EQ(FrameKind::kGrant, adder_.take(worker)->frame.kind);
  }
  void expectArrival(size_t worker, uint32_t tensor, uint64_t piece) {
    const Frame addend = frame(FrameKind::kAddend, tensor, piece);
    const Result<MutableBytes> room = adder_.roomFor(worker, addend);
    ASSERT_TRUE(room.ok()) << room.status().message();
    EXPECT_EQ(addend.sizeBytes, room->size());
    adder_.arrived(worker, addend);
  }
  static void expectRefusal(const Status& status, const std::string& why) {
    EXPECT_EQ(Code::kDataLoss, status.code());
    EXPECT_NE(std::string::npos, status.message().find(why)) << status.message();
  }

  const Declaration declaration_{
      {{DataType::kInt32, kBytes}, {DataType::kInt32, kBytes}}, {{0, 0, kBytes, kServer}, {1, 0, kBytes, kServer}}, 2};
  SynchronousAdder adder_{declaration_, kServer};
};

TEST_F(AdderAlone, GrantsAPartWhenAllWorkersHaveAnnouncedIt) {
  EXPECT_TRUE(adder_.announced(1, announce(0)).ok());
  EXPECT_FALSE(adder_.next(0).has_value() || adder_.next(1).has_value());
  EXPECT_TRUE(adder_.announced(0, announce(0)).ok());
  for (size_t worker = 0; worker < 2; ++worker) EXPECT_EQ(frame(FrameKind::kGrant, 0, 0), adder_.take(worker)->frame);
  EXPECT_FALSE(adder_.take(0));
}

TEST_F(AdderAlone, SendsASumToAllWhenAPieceOfAllHasCome) {
  grant(0);
  expectArrival(0, 0, 0);
  expectArrival(0, 0, 1);
  EXPECT_FALSE(adder_.next(0).has_value());
  expectArrival(1, 0, 0);
  for (size_t worker = 0; worker < 2; ++worker) {
    EXPECT_EQ(frame(FrameKind::kSum, 0, 0), adder_.take(worker)->frame);
    EXPECT_FALSE(adder_.next(worker).has_value());
  }
}

TEST_F(AdderAlone, SendsSumsOfTheFirstTensorFirst) {
  grant(1);
  for (size_t worker = 0; worker < 2; ++worker) expectArrival(worker, 1, 0);
  grant(0);
  for (size_t worker = 0; worker < 2; ++worker) expectArrival(worker, 0, 0);
  EXPECT_EQ(0u, adder_.take(0)->frame.tensor);
  EXPECT_EQ(1u, adder_.take(0)->frame.tensor);
}

TEST_F(AdderAlone, GrantsNoMoreThanItsLimitUntilSumsAreWritten) {
  SynchronousAdder adder(declaration_, kServer, kBytes);
  for (uint32_t tensor = 0; tensor < 2; ++tensor)
    for (size_t worker = 0; worker < 2; ++worker) ASSERT_TRUE(adder.announced(worker, announce(tensor)).ok());
  for (size_t worker = 0; worker < 2; ++worker) ASSERT_EQ(0u, adder.take(worker)->frame.tensor);
  for (uint64_t piece = 0; piece < 3; ++piece)
    for (size_t worker = 0; worker < 2; ++worker) {
      const Frame addend = frame(FrameKind::kAddend, 0, piece);
      ASSERT_TRUE(adder.roomFor(worker, addend).ok());
      adder.arrived(worker, addend);
    }
  for (int piece = 0; piece < 3; ++piece) {
    for (size_t worker = 0; worker < 2; ++worker) {
      const Outgoing sum = adder.take(worker).value();
      EXPECT_EQ(FrameKind::kSum, sum.frame.kind) << "the other part is not granted";
      adder.written(worker, sum);
    }
  }
  EXPECT_EQ(FrameKind::kGrant, adder.take(0)->frame.kind);
}

// A front layer's small part does not wait until a large one ends.
TEST(SynchronousAdder, KeepsAQuarterOfItsLimitForPartsThatGoBeforeAllThatAreGranted) {
  constexpr uint64_t kKiB = 1024;
  Declaration declaration{.tensors = {}, .parts = {}, .workers = 1};
  for (const uint64_t size : {64, 16, 64, 16, 32}) {
    declaration.parts.push_back({declaration.tensors.size(), 0, size * kKiB, /*machine=*/1});
    declaration.tensors.push_back({DataType::kInt32, size * kKiB});
  }
  SynchronousAdder adder(declaration, /*machine=*/1, /*grantBytes=*/128 * kKiB);
  const auto isGranted = [&](uint32_t tensor) {
    EXPECT_TRUE(adder.announced(0, {.kind = FrameKind::kAnnounce, .tensor = tensor}).ok());
    const std::optional<Outgoing> frame = adder.take(0);
    return frame && frame->frame.kind == FrameKind::kGrant && frame->frame.tensor == tensor;
  };
  EXPECT_TRUE(isGranted(2));
  EXPECT_TRUE(isGranted(3));
  EXPECT_FALSE(isGranted(4)) << "the quarter is for others";
  EXPECT_TRUE(isGranted(1));
  EXPECT_FALSE(isGranted(0)) << "it is larger than all that is left";
}

// A worker that has all sums may go on, before another one has.
TEST_F(AdderAlone, TakesTheNextRoundOfAWorkerThatHasAllSums) {
  grant(0);
  for (uint64_t piece = 0; piece < 3; ++piece)
    for (size_t worker = 0; worker < 2; ++worker) expectArrival(worker, 0, piece);
  for (int piece = 0; piece < 3; ++piece) adder_.written(0, adder_.take(0).value());
  EXPECT_TRUE(adder_.had(0, have(1)).ok());
  EXPECT_TRUE(adder_.announced(0, announce(0, 1)).ok());
  const Outgoing first = adder_.take(1).value(), second = adder_.take(1).value(), third = adder_.take(1).value();
  adder_.written(1, first);
  adder_.written(1, second);
  expectRefusal(adder_.had(1, have(1)), "cannot have");  // the third
  adder_.written(1, third);
  expectRefusal(adder_.announced(1, announce(0, 1)), "round 1");  // it has not said that it has the sum
  EXPECT_TRUE(adder_.had(1, have(1)).ok());
  EXPECT_TRUE(adder_.announced(1, announce(0, 1)).ok());
  EXPECT_EQ(frame(FrameKind::kRelease, 0, 0, /*round=*/1), adder_.take(0)->frame);
  EXPECT_EQ(frame(FrameKind::kGrant, 0, 0, /*round=*/1), adder_.take(0)->frame);
}

TEST_F(AdderAlone, RefusesAnnouncementsThatNoWorkerSends) {
  expectRefusal(adder_.announced(0, announce(2)), "does not sum");
  expectRefusal(adder_.announced(0, frame(FrameKind::kAnnounce, 0, 1)), "does not sum");
  expectRefusal(adder_.announced(0, announce(0, 1)), "round 1 where round 0 was next");
  EXPECT_TRUE(adder_.announced(0, announce(0)).ok());
  expectRefusal(adder_.announced(0, announce(0)), "round 0 where round 0 was next");
  EXPECT_TRUE(adder_.announced(1, announce(0)).ok());
  expectRefusal(adder_.announced(0, announce(0, 1)), "round 1");  // it has not had the sum
  SynchronousAdder other(declaration_, /*machine=*/0);
  expectRefusal(other.announced(1, announce(0)), "does not sum");
  for (const size_t noWorker : {size_t{2}, size_t{3}, size_t{1000}})
    expectRefusal(adder_.announced(noWorker, announce(1)), "though it is no worker");
}

TEST_F(AdderAlone, RefusesDataThatIsNotDue) {
  const auto refusalOf = [&](const Frame& addend) { return adder_.roomFor(0, addend).status(); };
  expectRefusal(refusalOf(frame(FrameKind::kAddend, 0, 0)), "not granted");
  grant(0);
  for (const size_t noWorker : {size_t{2}, size_t{3}, size_t{1000}})
    expectRefusal(adder_.roomFor(noWorker, frame(FrameKind::kAddend, 0, 0)).status(), "though it is no worker");
  expectRefusal(refusalOf(frame(FrameKind::kAddend, 1, 0)), "not granted");
  expectRefusal(refusalOf(frame(FrameKind::kAddend, 7, 0)), "not granted");
  expectRefusal(refusalOf(frame(FrameKind::kAddend, 0, 0, /*round=*/1)), "not granted");
  expectRefusal(refusalOf(frame(FrameKind::kAddend, 0, 1)), "another piece");
  Frame shorter = frame(FrameKind::kAddend, 0, 0);
  shorter.sizeBytes -= 4;
  expectRefusal(refusalOf(shorter), "another piece");
  for (uint64_t piece = 0; piece < 3; ++piece) expectArrival(0, 0, piece);
  expectRefusal(refusalOf(frame(FrameKind::kAddend, 0, 2)), "another piece");
}

// All workers are to keep what a sum has replaced until then.
TEST_F(AdderAlone, ReleasesASumWhenAllHaveIt) {
  grant(0);
  for (uint64_t piece = 0; piece < 3; ++piece)
    for (size_t worker = 0; worker < 2; ++worker) expectArrival(worker, 0, piece);
  for (int piece = 0; piece < 3; ++piece)
    for (size_t worker = 0; worker < 2; ++worker) adder_.written(worker, adder_.take(worker).value());
  EXPECT_TRUE(adder_.had(1, have(1)).ok());
  EXPECT_FALSE(adder_.next(0) || adder_.next(1));
  EXPECT_TRUE(adder_.had(0, have(1)).ok());
  for (size_t worker = 0; worker < 2; ++worker)
    EXPECT_EQ(frame(FrameKind::kRelease, 0, 0, /*round=*/1), adder_.take(worker)->frame);
  EXPECT_FALSE(adder_.next(0) || adder_.next(1));
}

TEST_F(AdderAlone, RefusesWhatNoWorkerCanHave) {
  expectRefusal(adder_.had(0, have(0)), "cannot have");
  expectRefusal(adder_.had(0, have(1)), "cannot have");
  expectRefusal(adder_.had(0, frame(FrameKind::kHave, 0, 1, 1)), "cannot have");
  expectRefusal(adder_.had(2, have(1)), "no worker");
  SynchronousAdder worker(declaration_, /*machine=*/0);  // the part may have moved to it, which it has not heard
  EXPECT_TRUE(worker.had(1, have(7)).ok());
  expectRefusal(worker.had(1, have(7)), "cannot have");
}

// ---- three machines that go on without their server: the part is of worker 1 then

class AfterALoss : public AdderAlone {
 protected:
  AfterALoss() {
    const std::vector<Machine> machines = {1, 1};
    EXPECT_TRUE(sums_.move(kServer, machines).ok());
  }

  MachineSums sums_{declaration_, /*self=*/1, /*machines=*/3};
};

TEST_F(AfterALoss, ASumThatAWorkerLacksBeginsAgain) {
  std::vector<std::byte> data(kBytes, std::byte{1});
  sums_.announce(0, data);
  EXPECT_FALSE(sums_.hasBytes(0)) << "it does not know what the other worker has";
  EXPECT_TRUE(sums_.arrived(0, have(1)).ok());
  EXPECT_EQ(frame(FrameKind::kRelease, 0, 0, /*round=*/0), sums_.take(0)->frame);
  EXPECT_TRUE(sums_.arrived(0, announce(0, 0)).ok());
  EXPECT_EQ(frame(FrameKind::kGrant, 0, 0, /*round=*/0), sums_.take(0)->frame);
}

TEST_F(AfterALoss, AwaitsWhoHasNotReported) {
  EXPECT_EQ((std::vector<std::pair<size_t, uint64_t>>{{0, Adder::kMoves}, {1, Adder::kMoves}}),
            sums_.adder().awaited());
  EXPECT_EQ(std::vector<size_t>{0}, sums_.adder().missing(0));
  EXPECT_TRUE(sums_.arrived(0, have(0)).ok());
  EXPECT_EQ((std::vector<std::pair<size_t, uint64_t>>{{1, Adder::kMoves}}), sums_.adder().awaited());
}

TEST_F(AfterALoss, RefusesCountsThatCannotBe) {
  expectRefusal(sums_.arrived(0, have(2)), "cannot have");
  expectRefusal(sums_.arrived(0, announce(0)), "round 0");  // it has not said what it has
  expectRefusal(sums_.arrived(0, frame(FrameKind::kRelease, 0, 0)), "does not sum");
  EXPECT_TRUE(sums_.arrived(0, have(0)).ok());
  expectRefusal(sums_.arrived(0, have(0)), "cannot have");
}

// The other worker says that it lacks a sum for which this one keeps no data, as all workers have had it.
TEST_F(AfterALoss, RefusesToMakeASumAnewThatAllHave) {
  MachineSums sums(declaration_, /*self=*/1, /*machines=*/3);
  std::vector<std::byte> data(kBytes);
  sums.announce(0, data);
  sums.take(kServer);
  ASSERT_TRUE(sums.arrived(kServer, frame(FrameKind::kGrant, 0, 0)).ok());
  for (uint64_t piece = 0; piece < 3; ++piece) {
    sums.written(kServer, sums.take(kServer).value());
    ASSERT_TRUE(sums.roomFor(kServer, frame(FrameKind::kSum, 0, piece)).ok());
    ASSERT_TRUE(sums.arrived(kServer, frame(FrameKind::kSum, 0, piece)).ok());
  }
  ASSERT_TRUE(sums.arrived(kServer, frame(FrameKind::kRelease, 0, 0, /*round=*/1)).ok());
  ASSERT_TRUE(sums.move(kServer, {1, 1}).ok());
  expectRefusal(sums.arrived(0, have(0)), "lacks a sum which all workers have");
}

TEST_F(AfterALoss, RefusesMovesThatCannotBe) {
  for (const auto& [lost, machines] :
       std::vector<std::pair<Machine, std::vector<Machine>>>{{kServer, {}}, {0, {1, 1}}, {3, {1, 1}}})
    EXPECT_EQ(Code::kInvalidArgument, sums_.move(lost, machines).code());
  MachineSums before(declaration_, /*self=*/1, /*machines=*/3);
  for (const std::vector<Machine>& machines : {std::vector<Machine>{1}, {1, kServer}, {1, 3}, {1, 1, 1}})
    EXPECT_EQ(Code::kInvalidArgument, before.move(kServer, machines).code());
  EXPECT_FALSE(before.isLost(kServer));
  EXPECT_TRUE(before.move(kServer, {0, 1}).ok());
}

// ---- a worker by hand

// It is machine 0, and sums nothing itself.
class RequesterAlone : public AdderAlone {
 protected:
  Status refusalOfSum(uint64_t piece, Machine from = kServer, uint64_t round = 0) {
    return requester_.roomFor(from, frame(FrameKind::kSum, 0, piece, round)).status();
  }

  std::vector<std::byte> data_ = std::vector<std::byte>(kBytes);
  Requester requester_{declaration_, /*self=*/0, /*machines=*/3};
};

TEST_F(RequesterAlone, SendsWhatIsGrantedAndTakesTheSum) {
  requester_.announce(0, data_);
  EXPECT_EQ(announce(0), requester_.take(kServer)->frame);
  EXPECT_FALSE(requester_.next(kServer).has_value());
  EXPECT_TRUE(requester_.granted(kServer, frame(FrameKind::kGrant, 0, 0)).ok());
  for (uint64_t piece = 0; piece < 3; ++piece) {
    const Outgoing next = requester_.take(kServer).value();
    EXPECT_EQ(frame(FrameKind::kAddend, 0, piece), next.frame);
    EXPECT_EQ(data_.data() + piece * kPieceBytes, next.piece.data());
    requester_.written(next);
  }
  EXPECT_FALSE(requester_.next(kServer).has_value());
  for (uint64_t piece = 0; piece < 3; ++piece) {
    const Frame sum = frame(FrameKind::kSum, 0, piece);
    EXPECT_EQ(data_.data() + piece * kPieceBytes, requester_.roomFor(kServer, sum)->data());
    EXPECT_FALSE(requester_.isDone(0));
    EXPECT_TRUE(requester_.arrived(sum).ok());
  }
  EXPECT_TRUE(requester_.isDone(0));
  EXPECT_EQ(std::vector<size_t>{0}, requester_.takeDone());
  EXPECT_EQ(frame(FrameKind::kHave, 0, 0, /*round=*/1), requester_.take(kServer)->frame);
}

TEST_F(RequesterAlone, RefusesGrantsOfWhatItHasNotAnnounced) {
  const Frame grant = frame(FrameKind::kGrant, 0, 0);
  expectRefusal(requester_.granted(kServer, grant), "has not announced");
  requester_.announce(0, data_);
  expectRefusal(requester_.granted(kServer, grant), "has not announced");
  requester_.take(kServer);
  expectRefusal(requester_.granted(1, grant), "does not sum");
  expectRefusal(requester_.granted(kServer, frame(FrameKind::kGrant, 0, 0, /*round=*/1)), "has not announced");
  EXPECT_TRUE(requester_.granted(kServer, grant).ok());
  expectRefusal(requester_.granted(kServer, grant), "has not announced");
}

// What it replaces might have to be summed again.
TEST_F(RequesterAlone, TakesNoGrantOfARoundBeforeTheLastOneIsReleased) {
  requester_.announce(0, data_);
  requester_.take(kServer);
  ASSERT_TRUE(requester_.granted(kServer, frame(FrameKind::kGrant, 0, 0)).ok());
  const Frame release = frame(FrameKind::kRelease, 0, 0, /*round=*/1), grant = frame(FrameKind::kGrant, 0, 0, 1);
  expectRefusal(requester_.released(kServer, release), "not due");
  for (uint64_t piece = 0; piece < 3; ++piece) {
    requester_.written(requester_.take(kServer).value());
    ASSERT_TRUE(requester_.roomFor(kServer, frame(FrameKind::kSum, 0, piece)).ok());
    EXPECT_TRUE(requester_.arrived(frame(FrameKind::kSum, 0, piece)).ok());
  }
  requester_.announce(0, data_);
  while (requester_.take(kServer)) continue;
  expectRefusal(requester_.granted(kServer, grant), "has not announced");
  expectRefusal(requester_.released(1, release), "does not sum");
  expectRefusal(requester_.released(kServer, frame(FrameKind::kRelease, 0, 0, 0)), "not due");
  expectRefusal(requester_.released(kServer, frame(FrameKind::kRelease, 0, 0, 2)), "not due");
  EXPECT_TRUE(requester_.released(kServer, release).ok());
  expectRefusal(requester_.released(kServer, release), "not due");
  EXPECT_TRUE(requester_.granted(kServer, grant).ok());
}

TEST_F(RequesterAlone, SendsTheFirstTensorFirst) {
  std::vector<std::byte> other(kBytes);
  for (const uint32_t tensor : {1U, 0U}) {
    requester_.announce(tensor, tensor == 0 ? data_ : other);
    requester_.take(kServer);
    ASSERT_TRUE(requester_.granted(kServer, frame(FrameKind::kGrant, tensor, 0)).ok());
    EXPECT_EQ(frame(FrameKind::kAddend, tensor, 0), requester_.take(kServer)->frame);
  }
}

TEST(DeclarationCheck, RefusesTypesWithoutASumAndPartsOfElements) {
  const Shares shares = bestShares(Bandwidths::even(2, 1, 1));
  EXPECT_EQ(Code::kInvalidArgument, Declaration::of({{DataType::kBool, 4}}, shares).status().code());
  EXPECT_EQ("a tensor of complex128 is declared with 24 bytes",
            Declaration::of({{DataType::kComplex128, 24}}, shares).status().message());
}

// A sum that came before the data has left would replace it.
TEST_F(RequesterAlone, RefusesSumsOfWhatItHasNotSent) {
  requester_.announce(0, data_);
  requester_.take(kServer);
  expectRefusal(refusalOfSum(0), "another piece");
  ASSERT_TRUE(requester_.granted(kServer, frame(FrameKind::kGrant, 0, 0)).ok());
  const Outgoing first = requester_.take(kServer).value();
  expectRefusal(refusalOfSum(0), "another piece");
  requester_.written(first);
  expectRefusal(refusalOfSum(1), "another piece");
  expectRefusal(refusalOfSum(0, kServer, /*round=*/1), "another piece");
  Frame longer = frame(FrameKind::kSum, 0, 0);
  longer.sizeBytes += 4;
  expectRefusal(requester_.roomFor(kServer, longer).status(), "another piece");
  expectRefusal(refusalOfSum(0, /*from=*/1), "does not sum");
  EXPECT_TRUE(refusalOfSum(0).ok());
}

}  // namespace
}  // namespace treadle::summation::synchronous_adder_test
