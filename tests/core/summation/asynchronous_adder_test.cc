// Running sums: in every order of events that seeds yield each answer is the sum of whole parts that have come, of no
// worker too many or too few; and one machine by hand.

#include "treadle/core/summation/asynchronous_adder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "tests/core/summation/asynchronous_adder_alone.h"
#include "tests/core/summation/simulated_service.h"

namespace treadle::summation::asynchronous_adder_test {
namespace {

using test::pick;
using test::Random;
using test::SimulatedService;

// A worker gives its digit in each element, so an answer says how often it contains what each worker has given.
constexpr int kBitsOfDigit = 16;

int64_t digitOf(Machine worker) { return int64_t{1} << (kBitsOfDigit * worker); }
uint64_t timesOf(int64_t answer, Machine worker) {
  return static_cast<uint64_t>(answer >> (kBitsOfDigit * worker)) % (uint64_t{1} << kBitsOfDigit);
}

// A worker that gives each tensor some times, and then leaves.
class Program {
 public:
  Program(SimulatedService& service, Machine worker, uint64_t rounds)
      : worker_(worker), rounds_(rounds), service_(service), begun_(service.declaration().tensors.size()) {
    for (const auto& tensor : service.declaration().tensors) memory_.emplace_back(tensor.bytes / sizeof(int64_t));
    seen_.resize(service.declaration().parts.size(), std::vector<uint64_t>(service.declaration().workers));
  }

  void begin(Random& random) {
    const size_t tensor = pick(random, begun_.size());
    if (isUnderWay_.contains(tensor) || begun_[tensor] == rounds_) return;
    std::ranges::fill(memory_[tensor], digitOf(worker_));
    service_.machine(worker_).announce(tensor, std::as_writable_bytes(std::span(memory_[tensor])));
    isUnderWay_.insert(tensor);
    ++begun_[tensor];
  }
  uint64_t begun(size_t tensor) const { return begun_[tensor]; }
  bool isDone() const {
    return isUnderWay_.empty() && std::ranges::all_of(begun_, [&](auto n) { return n == rounds_; });
  }
  const std::vector<std::vector<uint64_t>>& seen() const { return seen_; }

  // Calls check(part, how often the answer contains what each worker gave) for each part that has an answer.
  template <class Check>
  void end(Check check) {
    for (const size_t tensor : std::set<size_t>(isUnderWay_)) {
      if (!service_.isDone(worker_, tensor)) continue;
      isUnderWay_.erase(tensor);
      const auto [first, end] = service_.declaration().partsOf(tensor);
      for (size_t part = first; part < end; ++part) {
        const Part& where = service_.declaration().parts[part];
        const std::span<const int64_t> answer =
            std::span(memory_[tensor]).subspan(where.begin / sizeof(int64_t), where.bytes() / sizeof(int64_t));
        ASSERT_TRUE(std::ranges::all_of(answer, [&](int64_t one) { return one == answer.front(); }))
            << "elements of a part contain different data";
        for (Machine worker = 0; worker < service_.declaration().workers; ++worker) {
          const uint64_t times = timesOf(answer.front(), worker);
          ASSERT_GE(times, seen_[part][worker]) << "what was there is gone";
          seen_[part][worker] = times;
        }
        ASSERT_EQ(begun_[tensor], seen_[part][worker_]) << "its own data, each once";
        check(part, seen_[part]);
      }
    }
  }

 private:
  const Machine worker_;
  const uint64_t rounds_;
  SimulatedService& service_;
  std::vector<std::vector<int64_t>> memory_;
  std::vector<uint64_t> begun_;  // by tensor
  std::set<size_t> isUnderWay_;
  std::vector<std::vector<uint64_t>> seen_;  // by part and worker: in its last answer
};

// Workers do as many rounds as each of them likes. `mayKill` is asked whether a server is killed now.
void expectRunningSums(
    Random& random, uint64_t staleness, const std::function<bool()>& mayKill = [] { return false; }) {
  const size_t workers = 1 + pick(random, 4), servers = pick(random, 4);
  std::vector<Declaration::Tensor> tensors(1 + pick(random, 4));
  for (auto& tensor : tensors) tensor = {DataType::kInt64, sizeof(int64_t) * (1 + pick(random, 20'000))};
  Declaration declaration =
      *Declaration::of(std::move(tensors), serviceShares(Bandwidths::even(workers, servers, 1), pick(random, 4) > 0));
  declaration.mode = {true, staleness};
  SimulatedService service(declaration, servers, pick(random, 2) == 0 ? 1 : 300'000);
  std::vector<Program> programs;
  std::vector<bool> hasLeft(workers);
  std::vector<uint64_t> rounds;
  for (Machine worker = 0; worker < workers; ++worker)
    programs.emplace_back(service, worker, rounds.emplace_back(1 + pick(random, 6)));
  const auto check = [&](size_t part, const std::vector<uint64_t>& times, Machine self) {
    ASSERT_GE(times[0], 1u) << "all begin with the values of the first worker";
    for (Machine worker = 0; worker < workers; ++worker) {
      ASSERT_LE(times[worker], programs[worker].begun(declaration.parts[part].tensor));
      const uint64_t least = hasLeft[worker] || times[self] <= staleness ? 0 : times[self] - staleness;
      ASSERT_GE(times[worker], least);
    }
  };
  for (int idle = 0; !std::ranges::all_of(hasLeft, [](bool one) { return one; });) {
    for (Machine self = 0; self < workers; ++self) {
      programs[self].end([&](size_t part, const auto& times) { check(part, times, self); });
      if (::testing::Test::HasFatalFailure()) return;
      if (hasLeft[self] || !programs[self].isDone()) continue;
      hasLeft[self] = true;
      for (Machine machine = 0; machine < workers + servers; ++machine)
        if (service.isAlive(machine)) service.machine(machine).left(self);
    }
    if (servers > 0 && mayKill()) {
      const Machine server = workers + pick(random, servers);
      if (service.isAlive(server)) service.kill(server);
    }
    if (pick(random, 8) == 0) programs[pick(random, workers)].begin(random);
    idle = service.step(random) ? 0 : idle + 1;
    ASSERT_LT(idle, 10'000) << "nothing can happen any more";
  }
  for (size_t part = 0; part < declaration.parts.size(); ++part) {
    const auto isTotal = [&](const Program& one) { return one.seen()[part] == rounds; };
    EXPECT_TRUE(std::ranges::any_of(programs, isTotal)) << "the last answer has all of part " << part;
  }
}

TEST(RunningSums, ContainWhatHasComeInAnyOrderOfEvents) {
  test::forSeeds(40, [](Random& random) { expectRunningSums(random, SumMode::kAnyStaleness); });
}

TEST(RunningSums, AreNoStalerThanTheyMayBe) {
  test::forSeeds(60, [](Random& random) { expectRunningSums(random, pick(random, 4)); });
}

TEST(RunningSums, LoseNothingAndAddNothingTwiceWhereServersAreKilled) {
  test::forSeeds(100, [](Random& random) {
    const uint64_t staleness = pick(random, 2) == 0 ? pick(random, 4) : SumMode::kAnyStaleness;
    const size_t seldom = size_t{20} << pick(random, 6);
    expectRunningSums(random, staleness, [&] { return pick(random, seldom) == 0; });
  });
}

// ---- one machine, by hand

TEST_F(AsynchronousAdderAlone, AnswersEachWorkerByItself) {
  give(adder_, 0, all(1));
  EXPECT_EQ(all(1), answerTo(adder_, 0));
  give(adder_, 1, all(2));
  give(adder_, 0, all(4), /*round=*/1);
  EXPECT_EQ(all(3), answerTo(adder_, 1)) << "as it was when it was made";
  EXPECT_EQ(all(7), answerTo(adder_, 0, /*round=*/1));
  EXPECT_EQ(3u, adder_.sums());
}

// Asynchronous Parallel: the parameters are the first values and then, one after the other, each change that comes.
TEST_F(AsynchronousAdderAlone, HasTheBitsOfAsynchronousParallelInAnyOrderOfChanges) {
  test::forSeeds(10, [this](Random& random) {
    AsynchronousAdder adder(declaration_, kServer);
    std::vector<float> parameters;
    std::array<uint64_t, 3> rounds{};
    for (int change = 0; change < 12; ++change) {
      const size_t worker = change == 0 ? 0 : pick(random, 3);
      std::vector<float> data(kElements);
      for (float& one : data) one = static_cast<float>(random()) * 1e-17F - 90;
      data[0] = -0.0F;
      if (change == 0) parameters = data;
      for (size_t i = 0; change > 0 && i < kElements; ++i) parameters[i] += data[i];
      give(adder, worker, data, rounds[worker]);
      const std::vector<float> answer = answerTo(adder, worker, rounds[worker]++);
      ASSERT_EQ(0, std::memcmp(parameters.data(), answer.data(), kBytes)) << "after change " << change;
    }
  });
}

TEST_F(AsynchronousAdderAlone, AnswersNobodyBeforeTheFirstWorkerHasGivenItsValues) {
  give(adder_, 1, all(0));
  give(adder_, 2, all(0));
  EXPECT_FALSE(adder_.next(1).has_value() || adder_.next(2).has_value());
  EXPECT_EQ((std::vector<std::pair<size_t, uint64_t>>{{0, 1}, {0, 1}}), adder_.awaited());
  EXPECT_EQ(std::vector<size_t>{0}, adder_.missing(0));
  EXPECT_FALSE(adder_.waitsInVain().has_value());
  give(adder_, 0, all(5));
  for (size_t worker = 0; worker < 3; ++worker) EXPECT_EQ(all(5), answerTo(adder_, worker));
  EXPECT_TRUE(adder_.awaited().empty());
}

TEST_F(AsynchronousAdderAlone, WaitsInVainForAFirstWorkerThatHasLeft) {
  give(adder_, 1, all(0));
  adder_.left(0);
  EXPECT_EQ(0u, adder_.waitsInVain());
}

TEST_F(AsynchronousAdderAlone, AnswersAWorkerThatIsFarAheadWhenTheOthersHaveCome) {
  AsynchronousAdder adder(bounded_, kServer);
  give(adder, 0, all(1));
  EXPECT_EQ(all(1), answerTo(adder, 0));
  give(adder, 0, all(1), /*round=*/1);
  EXPECT_FALSE(adder.next(0).has_value());
  EXPECT_EQ((std::vector<size_t>{1, 2}), adder.missing(0));
  give(adder, 2, all(10));
  EXPECT_EQ(all(12), answerTo(adder, 2));
  EXPECT_FALSE(adder.next(0).has_value());
  EXPECT_EQ(std::vector<size_t>{1}, adder.missing(0));
  give(adder, 1, all(100));
  EXPECT_EQ(all(112), answerTo(adder, 0, /*round=*/1)) << "with all that has come since";
  EXPECT_EQ(all(112), answerTo(adder, 1));
}

// Its data may take a while.
TEST_F(AsynchronousAdderAlone, DoesNotFindAWorkerLateThatHasBegun) {
  AsynchronousAdder adder(bounded_, kServer);
  give(adder, 1, all(0));
  EXPECT_EQ(std::vector<size_t>{0}, adder.missing(0));
  ASSERT_TRUE(adder.announced(0, announce(0)).ok());
  EXPECT_TRUE(adder.awaited().empty() && adder.missing(0).empty());
}

TEST_F(AsynchronousAdderAlone, DoesNotWaitForWorkersThatHaveLeft) {
  AsynchronousAdder adder(bounded_, kServer);
  give(adder, 0, all(1));
  answerTo(adder, 0);
  give(adder, 0, all(1), /*round=*/1);
  adder.left(1);
  EXPECT_EQ(std::vector<size_t>{2}, adder.missing(0));
  adder.left(2);
  EXPECT_EQ(all(2), answerTo(adder, 0, /*round=*/1));
}

// The worker of this machine: by functions.
TEST_F(AsynchronousAdderAlone, AddsTheDataOfItsOwnWorker) {
  Declaration declaration = declaration_;
  for (Part& part : declaration.parts) part.machine = 1;
  AsynchronousAdder adder(declaration, /*machine=*/1);
  std::vector<float> own = all(2);
  adder.announceOwn(0, std::as_writable_bytes(std::span(own)));
  EXPECT_TRUE(adder.takeDone().empty());
  give(adder, 0, all(1));
  EXPECT_EQ(all(3), own);
  EXPECT_EQ(std::vector<size_t>{0}, adder.takeDone());
  EXPECT_EQ(all(3), answerTo(adder, 0, 0, 0, /*hasVersion=*/false)) << "no worker is lost without the service";
}

TEST_F(AsynchronousAdderAlone, SaysWhichDataAnAnswerContains) {
  give(adder_, 0, all(1));
  give(adder_, 2, all(2));
  EXPECT_EQ((Version{1, 0, 0}), versionFor(adder_, 0));
  EXPECT_EQ((Version{1, 0, 1}), versionFor(adder_, 2));
}

// A worker that does not take its answers takes no memory from others.
TEST_F(AsynchronousAdderAlone, GrantsEachWorkerNoMoreThanTheLimit) {
  AsynchronousAdder adder(declaration_, kServer, kBytes);
  give(adder, 0, all(1));
  ASSERT_TRUE(adder.announced(0, announce(1)).ok());
  give(adder, 1, all(1));
  EXPECT_EQ(all(2), answerTo(adder, 1));
  EXPECT_EQ(all(1), answerTo(adder, 0));
  EXPECT_EQ(frame(FrameKind::kGrant, 1, 0, 0), adder.take(0)->frame) << "when the answer has gone";
}

// Each waits for what the other one gives next.
TEST_F(AsynchronousAdderAlone, GrantsMoreToAWorkerWhoseAnswersWait) {
  const Declaration declaration = declared(/*staleness=*/0);
  AsynchronousAdder adder(declaration, kServer, kBytes);
  adder.left(2);
  give(adder, 0, all(1), 0, /*tensor=*/0);
  give(adder, 1, all(2), 0, /*tensor=*/1);
  give(adder, 0, all(3), 0, /*tensor=*/1);
  EXPECT_EQ(all(5), answerTo(adder, 0, 0, /*tensor=*/1));
  EXPECT_EQ(all(5), answerTo(adder, 1, 0, /*tensor=*/1));
  give(adder, 1, all(4), 0, /*tensor=*/0);
  EXPECT_EQ(all(5), answerTo(adder, 0));
  EXPECT_EQ(all(5), answerTo(adder, 1));
}

TEST_F(AsynchronousAdderAlone, SendsAnswersOfTheFirstTensorFirst) {
  give(adder_, 0, all(1), 0, /*tensor=*/1);
  give(adder_, 0, all(2), 0, /*tensor=*/0);
  EXPECT_EQ(all(2), answerTo(adder_, 0, 0, /*tensor=*/0));
  EXPECT_EQ(all(1), answerTo(adder_, 0, 0, /*tensor=*/1));
}

TEST_F(AsynchronousAdderAlone, RefusesWhatNoWorkerSends) {
  for (const size_t noWorker : {kServer, kServer + 1, size_t{1000}}) {
    expectRefusal(adder_.announced(noWorker, announce(0)), "though it is no worker");
    expectRefusal(adder_.roomFor(noWorker, frame(FrameKind::kAddend, 0, 0, 0)).status(), "though it is no worker");
  }
  expectRefusal(adder_.announced(0, announce(2)), "does not sum");
  expectRefusal(adder_.announced(0, frame(FrameKind::kAnnounce, 0, 1, 0)), "does not sum");
  expectRefusal(adder_.announced(0, announce(0, 1)), "round 1 where round 0 was next");
  expectRefusal(adder_.roomFor(0, frame(FrameKind::kAddend, 0, 0, 0)).status(), "not granted");
  expectRefusal(adder_.roomFor(0, frame(FrameKind::kAddend, 2, 0, 0)).status(), "does not sum");
  expectRefusal(adder_.had(0, frame(FrameKind::kHave, 0, 0, 0)), "in an asynchronous service");
  ASSERT_TRUE(adder_.announced(0, announce(0)).ok());
  expectRefusal(adder_.announced(0, announce(0)), "round 0 where round 0 was next");
  expectRefusal(adder_.roomFor(0, frame(FrameKind::kAddend, 0, 1, 0)).status(), "another piece");
  expectRefusal(adder_.roomFor(0, frame(FrameKind::kAddend, 0, 0, 1)).status(), "not granted");
  expectRefusal(adder_.roomFor(1, frame(FrameKind::kAddend, 0, 0, 0)).status(), "not granted");
  Frame shorter = frame(FrameKind::kAddend, 0, 0, 0);
  shorter.sizeBytes -= 4;
  expectRefusal(adder_.roomFor(0, shorter).status(), "another piece");
  ASSERT_EQ(FrameKind::kGrant, adder_.take(0)->frame.kind);
  sendAll(adder_, 0, all(1));
  expectRefusal(adder_.roomFor(0, frame(FrameKind::kAddend, 0, 2, 0)).status(), "not granted");
  expectRefusal(adder_.announced(0, announce(0, 1)), "round 1");  // it has not had its answer
  answerTo(adder_, 0);
  adder_.left(0);
  expectRefusal(adder_.announced(0, announce(0, 1)), "though it has left");
}

}  // namespace
}  // namespace treadle::summation::asynchronous_adder_test
