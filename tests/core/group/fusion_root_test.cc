// Matching, batching and failures, with all members and rank 0 in one place and messages in any order.

#include "treadle/core/group/fusion_root.h"

#include <algorithm>
#include <numeric>

#include "tests/core/group/fusion_simulation.h"
#include "tests/support/expect_error.h"

namespace treadle::group::fusion_root_test {
namespace {

using test::contains;
using test::FusionSimulation;
using test::pick;
using test::Random;
using Outcome = FusionSimulation::Outcome;

Signature floats(uint64_t count) { return {DataType::kFloat32, ReduceOp::kSum, {count}}; }

std::string nameOf(uint64_t tensor) { return "tensor" + std::to_string(tensor); }

struct Scenario {
  int members;
  std::vector<Signature> tensors;
  std::vector<std::vector<uint64_t>> orders;  // by rank
};

Scenario randomScenario(Random& random) {
  const uint64_t sizes[] = {0, 1, 10, 1000, kPieceBytes / 4, kPieceBytes / 4 + 1, 5 * kPieceBytes / 4 + 3};
  Scenario plan{static_cast<int>(2 + pick(random, 5)), {}, {}};
  for (uint64_t count = 1 + pick(random, 30); plan.tensors.size() < count;) {
    plan.tensors.push_back(floats(sizes[pick(random, std::size(sizes))]));
    if (pick(random, 4) == 0) plan.tensors.back().dataType = DataType::kInt32;
    if (pick(random, 4) == 0) plan.tensors.back().reduceOp = ReduceOp::kMax;
  }
  for (int rank = 0; rank < plan.members; ++rank) {
    std::vector<uint64_t> order(plan.tensors.size());
    std::iota(order.begin(), order.end(), uint64_t{0});
    std::shuffle(order.begin(), order.end(), random);
    plan.orders.push_back(std::move(order));
  }
  return plan;
}

// Each member offers the tensors in its order, between other events; `more` may do something else in between.
template <class More>
void runAll(FusionSimulation& simulation, const Scenario& plan, Random& random, More more) {
  std::vector<size_t> next(static_cast<size_t>(plan.members));
  for (bool busy = true; busy && !::testing::Test::HasFailure();) {
    const auto rank = static_cast<int>(pick(random, static_cast<uint64_t>(plan.members)));
    size_t& mine = next[static_cast<size_t>(rank)];
    const std::vector<uint64_t>& order = plan.orders[static_cast<size_t>(rank)];
    if (mine < order.size() && simulation.mayOffer(rank, nameOf(order[mine])) && pick(random, 3) == 0) {
      const uint64_t tensor = order[mine++];
      simulation.offer(rank, nameOf(tensor), plan.tensors[tensor]);
    }
    more();
    busy = simulation.step();
    for (size_t rest = 0; rest < next.size(); ++rest) busy = busy || next[rest] < plan.orders[rest].size();
  }
}

void expectOneListOnAll(const FusionSimulation& simulation) {
  for (int rank = 1; rank < simulation.size(); ++rank) ASSERT_EQ(simulation.batchesOf(rank), simulation.batchesOf(0));
}

void expectNothingLeft(FusionSimulation& simulation) {
  EXPECT_EQ(simulation.root().table().size(), 0U);
  EXPECT_EQ(simulation.root().table().failed(), 0U);
  for (int rank = 0; rank < simulation.size(); ++rank) {
    EXPECT_EQ(simulation.openOf(rank), 0U);
    EXPECT_EQ(simulation.root().table().openOf(rank), 0U);
  }
}

// Every offer has ended, and those of one name and round alike on all members.
void expectOneOutcomeOnAll(FusionSimulation& simulation) {
  for (int rank = 0; rank < simulation.size(); ++rank) {
    for (const auto& [offer, outcome] : simulation.outcomesOf(rank)) EXPECT_NE(outcome, Outcome::kOpen) << offer.first;
    EXPECT_EQ(simulation.outcomesOf(rank), simulation.outcomesOf(0));
  }
}

TEST(FusionRootTest, AnyOrdersOfOffersGiveOneListOnAllMembers) {
  test::forSeeds(300, [](Random& random) {
    const Scenario plan = randomScenario(random);
    FusionSimulation simulation(plan.members, random);
    runAll(simulation, plan, random, [] {});
    expectOneListOnAll(simulation);
    expectNothingLeft(simulation);
    std::map<std::string, uint64_t> summed;
    for (const auto& batch : simulation.batchesOf(0))
      for (const FusionSimulation::Piece& piece : batch) {
        ASSERT_EQ(piece.begin, summed[piece.name]);
        summed[piece.name] = piece.end;
      }
    ASSERT_EQ(summed.size(), plan.tensors.size());
    for (size_t tensor = 0; tensor < plan.tensors.size(); ++tensor)
      EXPECT_EQ(summed[nameOf(tensor)], plan.tensors[tensor].elements());
  });
}

// Members give offers up at any time, batches fail on rank 0, and tensors differ.
TEST(FusionRootTest, AnyFailuresHaveOneOutcomeOnAllMembers) {
  test::forSeeds(300, [](Random& random) {
    Scenario plan = randomScenario(random);
    // Names come again, as in the next step of a training.
    for (auto& order : plan.orders) {
      const std::vector<uint64_t> again = order;
      order.insert(order.end(), again.begin(), again.end());
    }
    FusionSimulation simulation(plan.members, random);
    runAll(simulation, plan, random, [&] {
      const auto rank = static_cast<int>(pick(random, static_cast<uint64_t>(plan.members)));
      if (pick(random, 20) == 0 && simulation.offersOf(rank) > 0)
        simulation.withdraw(rank, pick(random, simulation.offersOf(rank)));
      if (pick(random, 40) == 0) simulation.failABatch();
    });
    expectOneListOnAll(simulation);
    expectOneOutcomeOnAll(simulation);
    expectNothingLeft(simulation);
  });
}

// In a loop that offers many at once, and with messages that take their time.
TEST(FusionRootTest, OffersThatComeTogetherTakeFewMessagesAndBatches) {
  Random random(test::seedOfRun());
  FusionSimulation simulation(4, random);
  for (int rank = 0; rank < 4; ++rank)
    for (uint64_t tensor = 0; tensor < 1000; ++tensor) {
      simulation.offer(rank, nameOf(tensor), floats(10));
    }
  while (simulation.step()) {}
  expectOneListOnAll(simulation);
  EXPECT_LE(simulation.batchesOf(0).size(), 20U);
  EXPECT_LE(simulation.messages(), 4 * (2 * 6 + 20U));
}

class OneTensorTest : public ::testing::Test {
 protected:
  void offer(int rank, const std::string& name, Signature signature = floats(6)) {
    simulation_.offer(rank, name, std::move(signature));
    runToEnd();
  }
  void runToEnd() {
    while (simulation_.step()) {}
  }
  void expectFailed(int rank, uint64_t number, Code code, std::initializer_list<const char*> parts) {
    const Status& why = simulation_.failureOf(rank, number);
    EXPECT_EQ(why.code(), code) << rank << ": " << why.toString();
    for (const char* part : parts) EXPECT_TRUE(contains(why.message(), part));
  }

  Random random_{test::seedOfRun()};
  FusionSimulation simulation_{3, random_};
};

TEST_F(OneTensorTest, OfAnotherShapeFailsOnAllAlsoOnThoseThatComeLater) {
  offer(0, "a", {DataType::kFloat32, ReduceOp::kSum, {2, 3}});
  offer(0, "b");
  offer(1, "a", {DataType::kFloat32, ReduceOp::kSum, {3, 2}});
  offer(1, "b");
  offer(2, "b");
  offer(2, "a", {DataType::kFloat32, ReduceOp::kSum, {2, 3}});
  for (const auto& [rank, number] : std::vector<std::pair<int, uint64_t>>{{0, 0}, {1, 0}, {2, 1}})
    expectFailed(rank, number, Code::kInvalidArgument,
                 {"pushPull of 'a' in group 'g' differs", "worker 0 offers float32 [2, 3] (sum)",
                  "worker 1 offers float32 [3, 2] (sum)"});
  ASSERT_EQ(simulation_.batchesOf(2).size(), 1U) << "other names go on";
  expectNothingLeft(simulation_);
}

TEST_F(OneTensorTest, OfAnotherTypeOrReductionFailsLikewise) {
  offer(0, "a", {DataType::kFloat32, ReduceOp::kSum, {6}});
  offer(2, "a", {DataType::kInt32, ReduceOp::kSum, {6}});
  expectFailed(0, 0, Code::kInvalidArgument, {"worker 0 offers float32 [6] (sum)", "worker 2 offers int32 [6] (sum)"});
  offer(1, "a", {DataType::kFloat32, ReduceOp::kMax, {6}});
  expectFailed(1, 0, Code::kInvalidArgument, {"worker 2 offers int32"});
  offer(1, "a", {DataType::kFloat32, ReduceOp::kMax, {6}});
  offer(0, "a", {DataType::kFloat32, ReduceOp::kSum, {6}});
  expectFailed(0, 1, Code::kInvalidArgument,
               {"worker 1 offers float32 [6] (max)", "worker 0 offers float32 [6] (sum)"});
}

TEST_F(OneTensorTest, ThatAMemberWithdrawsFailsOnAllWithWhoIsMissing) {
  offer(0, "a");
  offer(1, "a");
  simulation_.withdraw(1, 0);
  runToEnd();
  for (int rank : {0, 1}) expectFailed(rank, 0, Code::kCancelled, {"rank 1: it has not been offered by worker 2"});
  offer(2, "a");
  expectFailed(2, 0, Code::kCancelled, {"rank 1"});
  // The next round is another one.
  for (int rank : {2, 0, 1}) offer(rank, "a");
  EXPECT_EQ(simulation_.batchesOf(0).size(), 1U);
  expectNothingLeft(simulation_);
}

class StallTest : public OneTensorTest {
 protected:
  static constexpr Duration kLimit = std::chrono::seconds(30);
  std::vector<std::string> stallsAfter(int seconds) {
    return simulation_.root().stalls(TimePoint() + std::chrono::seconds(seconds), kLimit);
  }
};

TEST_F(StallTest, AreReportedOnceWithTheirAgeAndTheMissingMembers) {
  offer(0, "done");
  offer(1, "done");
  offer(2, "done");
  EXPECT_EQ(simulation_.root().nextStall(kLimit), kNever);
  offer(1, "a");
  EXPECT_EQ(simulation_.root().nextStall(kLimit), TimePoint() + kLimit);
  EXPECT_TRUE(stallsAfter(29).empty());
  const std::vector<std::string> lines = stallsAfter(31);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0],
            "pushPull of 'a' in group 'g' has waited for 31 s: it has not been offered by worker 0, worker 2");
  EXPECT_TRUE(stallsAfter(60).empty());
  EXPECT_EQ(simulation_.root().nextStall(kLimit), kNever);
}

TEST_F(StallTest, ReportTheNearestNameThatOnlyTheMissingOffer) {
  offer(0, "layer1.weight");
  offer(1, "layer1.weight");
  offer(2, "layer1.wieght");
  offer(0, "layer2.weight");  // nearer, but not of a missing member alone
  offer(2, "layer2.weight");
  const std::vector<std::string> lines = stallsAfter(30);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_TRUE(contains(lines[0], "'layer1.weight'"));
  EXPECT_TRUE(contains(
      lines[0], "other members have offered a similar name, 'layer1.wieght'; it has not been offered by worker 2"));
  EXPECT_TRUE(contains(lines[1], "'layer1.wieght'"));
  EXPECT_TRUE(contains(lines[1], "a similar name, 'layer1.weight'; it has not been offered by worker 0, worker 1"));
  EXPECT_FALSE(contains(lines[2], "similar"));
}

TEST_F(StallTest, AreCountedWhenTheyAreMany) {
  for (int tensor = 0; tensor < 100; ++tensor) offer(1, "tensor" + std::to_string(tensor));
  const std::vector<std::string> lines = stallsAfter(30);
  ASSERT_EQ(lines.size(), 9U);
  EXPECT_TRUE(contains(lines[8], "92 more tensors"));
  EXPECT_TRUE(stallsAfter(30).empty());
}

// Tensors that are offered one after the other are due one after the other.
TEST(Stalls, AreFewLinesASecond) {
  using std::chrono::milliseconds;
  constexpr Duration kLimit = std::chrono::seconds(30);
  constexpr int kTensors = 3000;
  FusionRoot root({"worker 0", "worker 1"}, "group 'g'");
  const TimePoint begin = TimePoint() + std::chrono::seconds(10);
  for (int i = 0; i < kTensors; ++i)
    ASSERT_TRUE(root.take(1, {{Offer{"t" + std::to_string(i), floats(1)}}}, begin + milliseconds(i)).ok());
  size_t lines = 0, times = 0;
  for (TimePoint next = root.nextStall(kLimit); next != kNever; next = root.nextStall(kLimit), ++times) {
    ASSERT_LT(times, 10U);
    lines += root.stalls(next, kLimit).size();
  }
  EXPECT_GE(times, 4U) << "3 s of offers, and a pause of 1 s";
  EXPECT_LE(lines, 9 * times);
}

TEST_F(StallTest, AreNotDueWhereTheTimeOverflows) {
  FusionRoot root({"worker 0", "worker 1"}, "group 'g'");
  const TimePoint now = TimePoint() + std::chrono::seconds(10);
  ASSERT_TRUE(root.take(1, {{Offer{"a", floats(1)}}}, now).ok());
  for (const Duration limit : {kNoTimeout, kNoTimeout - std::chrono::seconds(1)}) {
    EXPECT_EQ(root.nextStall(limit), kNever);
    EXPECT_TRUE(root.stalls(now + std::chrono::hours(1), limit).empty());
  }
}

// The longest names of workers, tensors and groups, and the texts of a group's member for them.
class LongTextTest : public ::testing::Test {
 protected:
  static constexpr int kMembers = 64;

  static std::vector<std::string> members() {
    std::vector<std::string> names;
    for (int rank = 0; rank < kMembers; ++rank) {
      std::string name = std::to_string(rank);
      names.push_back("worker '" + std::string(127 - name.size(), 'w') + name + "' (rank " + name + ")");
    }
    return names;
  }
  // Each text of a failure that rank 0 sends.
  std::vector<std::string> failures() {
    std::vector<std::string> texts;
    for (auto& [rank, orders] : root_.takeOrders()) {
      Result<Orders> sent = parseOrders(encode(orders));
      EXPECT_TRUE(sent.ok());
      for (size_t i = 0; i < orders.failures.size(); ++i) {
        EXPECT_EQ(sent->failures[i].why.message(), orders.failures[i].why.message()) << "all of it travels";
        texts.push_back(orders.failures[i].why.message());
      }
    }
    return texts;
  }

  const std::string group_ = "group '" + std::string(127, 'g') + "'", name_ = std::string(255, 'x');
  FusionRoot root_{members(), group_};
};

TEST_F(LongTextTest, OfALateTensorHasTheHintAndSomeOfTheMissingMembers) {
  std::string misspelt = name_;
  misspelt[100] = 'y';
  ASSERT_TRUE(root_.take(63, {{Offer{misspelt, floats(1)}}}, TimePoint()).ok());
  const Status late =
      deadlineExceeded(members()[1] + " gave up pushPull of '" + name_ + "' in " + group_ + " after 60 s");
  ASSERT_TRUE(root_.take(1, {{Offer{name_, floats(1)}, Failed{0, late}}}, TimePoint()).ok());
  const std::vector<std::string> texts = failures();
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_LE(texts[0].size(), kFailureBytes);
  EXPECT_TRUE(contains(texts[0], late.message() + ": other members have offered a similar name, '" + misspelt + "'; "));
  EXPECT_TRUE(contains(texts[0], "it has not been offered by " + members()[0] + ", " + members()[2]));
}

TEST_F(LongTextTest, CountsTheMembersThatItDoesNotList) {
  ASSERT_TRUE(root_.take(1, {{Offer{"a", floats(1)}, Failed{0, cancelled("it gave up")}}}, TimePoint()).ok());
  const std::vector<std::string> texts = failures();
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_TRUE(contains(texts[0], members()[8] + " and 55 more"));
  EXPECT_FALSE(contains(texts[0], members()[9]));
}

// Also to those that offer the tensor later.
TEST_F(LongTextTest, IsCutBetweenCharactersAndTheSameForAll) {
  std::string reason = "x";
  while (reason.size() < kFailureBytes) reason += "ü";
  ASSERT_EQ(reason.size(), kFailureBytes + 1);
  ASSERT_TRUE(root_.take(1, {{Offer{"a", floats(1)}, Failed{0, cancelled(reason)}}}, TimePoint()).ok());
  ASSERT_TRUE(root_.take(2, {{Offer{"a", floats(1)}}}, TimePoint()).ok());
  EXPECT_EQ(failures(), std::vector<std::string>(2, reason.substr(0, kFailureBytes - 1)));
}

// What hints cost is limited by time, whatever members send: names of 255 bytes, all alike.
TEST_F(LongTextTest, HasHintsForSomeNamesASecond) {
  Offers others;
  for (int i = 0; i < 200; ++i)
    others.entries.emplace_back(Offer{name_.substr(3) + std::to_string(100 + i), floats(1)});
  ASSERT_TRUE(root_.take(2, std::move(others), TimePoint()).ok());
  uint64_t number = 0;
  const auto hasHint = [&](TimePoint now) {
    EXPECT_TRUE(root_.take(1, {{Offer{name_, floats(1)}, Failed{number++, cancelled("x")}}}, now).ok());
    const std::vector<std::string> texts = failures();
    return texts.size() == 1 && texts[0].find("a similar name") != std::string::npos;
  };
  EXPECT_TRUE(hasHint(TimePoint()));
  EXPECT_FALSE(hasHint(TimePoint() + std::chrono::milliseconds(999)));
  EXPECT_TRUE(hasHint(TimePoint() + std::chrono::seconds(1)));
}

// What no member sends, and what members could fill rank 0's memory with.
class StrangeOffersTest : public ::testing::Test {
 protected:
  Status take(int member, Offers offers) {
    const Status taken = root_.take(member, std::move(offers), TimePoint());
    root_.takeOrders();
    return taken;
  }
  FusionRoot root_{{"worker 0", "worker 1"}, "group 'g'"};
};

TEST_F(StrangeOffersTest, ATensorTwiceIsRefused) {
  EXPECT_TRUE(take(1, {{Offer{"a", floats(1)}}}).ok());
  EXPECT_TRUE(contains(take(1, {{Offer{"a", floats(1)}}}).message(), "twice"));
}

TEST_F(StrangeOffersTest, AWithdrawalOfWhatWasNotOfferedIsRefused) {
  EXPECT_TRUE(take(1, {{Offer{"a", floats(1)}, Failed{0, cancelled("x")}, Failed{0, cancelled("again")}}}).ok());
  EXPECT_EQ(take(1, {{Failed{1, cancelled("x")}}}).code(), Code::kDataLoss);
}

TEST_F(StrangeOffersTest, MoreThanAMemberMayHaveOpenIsRefused) {
  for (size_t tensor = 0; tensor < kMostOpenOffers; ++tensor)
    ASSERT_TRUE(take(1, {{Offer{nameOf(tensor), floats(1)}}}).ok());
  EXPECT_TRUE(contains(take(1, {{Offer{"one more", floats(1)}}}).message(), "more offers open"));
  EXPECT_EQ(root_.table().openOf(1), kMostOpenOffers);
}

// A failed name is kept until all have offered it. A member that never does would fill the table.
TEST_F(StrangeOffersTest, TooManyFailedNamesFailTheGroup) {
  for (uint64_t tensor = 0; tensor <= kMostOpenOffers; ++tensor) {
    ASSERT_TRUE(root_.overflow().ok());
    ASSERT_TRUE(take(1, {{Offer{nameOf(tensor), floats(1)}, Failed{tensor, cancelled("x")}}}).ok());
  }
  EXPECT_EQ(root_.overflow().code(), Code::kResourceExhausted);
  EXPECT_TRUE(contains(root_.overflow().message(), "each as often as the others"));
}

}  // namespace
}  // namespace treadle::group::fusion_root_test
