// The closed forms of what each algorithm moves, against the counts of its plans; and the choice that goes by them.

#include "treadle/core/group/prediction.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "tests/core/group/group_job.h"
#include "treadle/core/group/choice.h"
#include "treadle/core/group/cost.h"
#include "treadle/core/group/group_core.h"

namespace treadle::group::prediction_test {
namespace {

constexpr std::array kAlgorithms = {Algorithm::kExchange,    Algorithm::kTree,      Algorithm::kRoot,
                                    Algorithm::kRing,        Algorithm::kCirculant, Algorithm::kDirect,
                                    Algorithm::kHierarchical};
constexpr std::array kOperations = {OperationKind::kAllReduce, OperationKind::kReduce,        OperationKind::kBroadcast,
                                    OperationKind::kAllGather, OperationKind::kReduceScatter, OperationKind::kGather,
                                    OperationKind::kScatter,   OperationKind::kAllToAll,      OperationKind::kAllToAllV,
                                    OperationKind::kBarrier};

Description called(OperationKind operation, uint64_t count, uint64_t chunkBytes = 262'144,
                   DataType type = DataType::kFloat32) {
  return {operation, type, ReduceOp::kSum, 0, operation == OperationKind::kBarrier ? 0 : count, 0, 65'536, chunkBytes};
}

// Each operation, and the reductions of 16-bit floats.
const std::vector<std::pair<OperationKind, DataType>> kReal = [] {
  std::vector<std::pair<OperationKind, DataType>> all;
  for (OperationKind operation : kOperations) all.emplace_back(operation, DataType::kFloat32);
  for (OperationKind operation : {OperationKind::kAllReduce, OperationKind::kReduce, OperationKind::kReduceScatter})
    all.emplace_back(operation, DataType::kBFloat16);
  return all;
}();

const cluster::Costs kTwoCores{};  // the defaults

// ---- what is moved

class ClosedForms : public ::testing::TestWithParam<int> {
 protected:
  const int size_ = GetParam();
  const Placement placement_ = Placement::onOneHost(size_);

  // Calls `check` with the closed form and the count of each algorithm that serves.
  template <class Check>
  void forEachThatServes(Description what, Check check) const {
    for (Algorithm algorithm : kAlgorithms) {
      if (!serves(algorithm, what, placement_)) continue;
      what.algorithm = algorithm;
      SCOPED_TRACE(describe(what) + " by " + std::string(nameOf(algorithm)) + " in chunks of " +
                   std::to_string(what.chunkBytes));
      check(what, amountsOf(algorithm, what, placement_), costOf(what, placement_));
    }
  }
  uint64_t members() const { return static_cast<uint64_t>(size_); }
};

// Not counted exactly: see OfRoundsAreTheMeanOfTheMembers.
bool goesInRounds(const Description& what) { return what.algorithm == Algorithm::kCirculant; }

// Blocks of one size, in chunks that cut them and that do not.
TEST_P(ClosedForms, AreWhatThePlansCount) {
  for (const auto& [operation, type] : kReal)
    for (uint64_t count : {members(), 50 * members(), 1000 * members()})
      for (uint64_t chunkBytes : {uint64_t{80}, uint64_t{4096}, uint64_t{1} << 40})
        forEachThatServes(called(operation, count, chunkBytes, type), [&](const Description& what, const Amounts& form,
                                                                          const Cost& counted) {
          EXPECT_EQ(form.steps, static_cast<double>(counted.steps));
          EXPECT_EQ(form.bytes, static_cast<double>(counted.bytes));
          EXPECT_EQ(form.allBytes, static_cast<double>(counted.allBytes));
          if (goesInRounds(what)) return;
          EXPECT_EQ(form.allMessages, static_cast<double>(counted.allMessages));
          // The member that sends most data need not have most starts along the tree.
          const bool startsDiffer = agreementOf(what, size_) == Agreement::Kind::kTree;
          EXPECT_GE(form.messages, static_cast<double>(counted.messages));
          EXPECT_LE(form.messages, static_cast<double>(counted.messages) + (startsDiffer ? std::log2(size_) : 0));
        });
}

// Rounds whose elements go around the last one are sent in two pieces, by some members.
TEST_P(ClosedForms, OfRoundsAreTheMeanOfTheMembers) {
  for (OperationKind operation :
       {OperationKind::kAllReduce, OperationKind::kReduceScatter, OperationKind::kAllGather}) {
    Description what = called(operation, 50 * members(), uint64_t{1} << 40);
    what.algorithm = Algorithm::kCirculant;
    const double whole = amountsOf(what.algorithm, what, placement_).allMessages;
    EXPECT_NEAR(whole, static_cast<double>(costOf(what, placement_).allMessages), 1e-6 * whole) << describe(what);
    for (uint64_t chunkBytes : {80, 200, 1000}) {  // where a piece may end within a chunk
      what.chunkBytes = chunkBytes;
      const double form = amountsOf(what.algorithm, what, placement_).allMessages;
      EXPECT_NEAR(form, static_cast<double>(costOf(what, placement_).allMessages), 0.2 * form)
          << describe(what) << " " << chunkBytes;
    }
  }
}

// Of the member that makes most. 16-bit floats that travel as float32 are converted there.
TEST_P(ClosedForms, KnowTheMemoryThatIsMade) {
  for (const auto& [operation, type] : kReal)
    for (uint64_t count : {members(), 50 * members() + 1}) {
      forEachThatServes(called(operation, count, 262'144, type),
                        [&](const Description& what, const Amounts& form, const Cost&) {
                          uint64_t most = 0;
                          for (int rank = 0; rank < size_; ++rank)
                            most = std::max(most, planOf({what, {}, {}}, placement_, rank).scratch);
                          if (what.movedType() != what.dataType)
                            most += count + (operation == OperationKind::kReduceScatter ? count / members() : 0);
                          const auto bytes = static_cast<double>(most * sizeOf(what.movedType()));
                          EXPECT_GE(form.scratchBytes, bytes);
                          EXPECT_LE(form.scratchBytes, bytes + (count % members() == 0 ? 0 : 4.0 * (size_ + 1)));
                        });
    }
}

// Where blocks differ the forms are those of the largest: an element too many in each.
TEST_P(ClosedForms, OfBlocksThatDifferAreUpperBounds) {
  for (OperationKind operation : kOperations)
    for (uint64_t count : {members() + 1, 50 * members() - 1, 1000 * members() + 3})
      forEachThatServes(called(operation, count, 4096),
                        [&](const Description& what, const Amounts& form, const Cost& counted) {
                          EXPECT_EQ(form.steps, static_cast<double>(counted.steps));
                          EXPECT_GE(form.bytes, static_cast<double>(counted.bytes));
                          EXPECT_LE(form.bytes, static_cast<double>(counted.bytes) + 4.0 * 2 * size_);
                          if (goesInRounds(what)) return;
                          EXPECT_GE(form.messages, static_cast<double>(counted.messages));
                        });
}

TEST_P(ClosedForms, MoveNothingOverTheNetworkOfOneHost) {
  for (OperationKind operation : kOperations)
    forEachThatServes(called(operation, 1000),
                      [](const Description&, const Amounts& form, const Cost&) { EXPECT_EQ(form.networkBytes, 0); });
}

// The most data that leaves one of so many hosts or comes to it, counted from the plans.
double mostAtOneHost(const Description& what, int size, int hosts) {
  const Placement placement = Placement::spread(size, hosts);
  const auto hostOf = [&](int rank) { return static_cast<size_t>(int64_t{rank} * hosts / size); };
  std::vector<double> out(static_cast<size_t>(hosts)), in(out.size());
  for (int rank = 0; rank < size; ++rank)
    for (const Channel& channel : planOf({what, {}, {}}, placement, rank).channels)
      for (const Send& send : channel.sends) {
        if (hostOf(rank) == hostOf(channel.peer)) continue;
        const auto bytes = static_cast<double>(send.range().count() * sizeOf(what.dataType));
        out[hostOf(rank)] += bytes;
        in[hostOf(channel.peer)] += bytes;
      }
  return std::max(*std::max_element(out.begin(), out.end()), *std::max_element(in.begin(), in.end()));
}

TEST_P(ClosedForms, KnowWhatLeavesAHost) {
  for (int hosts : {2, 3, size_}) {
    if (hosts > size_) continue;
    for (OperationKind operation :
         {OperationKind::kAllReduce, OperationKind::kReduceScatter, OperationKind::kAllGather})
      for (Algorithm algorithm :
           {Algorithm::kRing, Algorithm::kCirculant, Algorithm::kDirect, Algorithm::kHierarchical}) {
        Description what = called(operation, 24 * members());
        const Placement placement = Placement::spread(size_, hosts);
        if (!serves(algorithm, what, placement)) continue;
        what.algorithm = algorithm;
        const double most = mostAtOneHost(what, size_, hosts);
        const double form = amountsOf(algorithm, what, placement).networkBytes;
        EXPECT_GE(form, most) << describe(what) << " by " << nameOf(algorithm) << " on " << hosts;
        EXPECT_LE(form, most * 1.2) << describe(what) << " by " << nameOf(algorithm) << " on " << hosts;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Members, ClosedForms, ::testing::Values(2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 64),
                         [](const auto& info) { return std::to_string(info.param) + "Members"; });

// ---- times

TEST(Prediction, OfAnExchangeOfTwoIsOneMessage) {
  const cluster::Costs costs{{10e-6, 5e9}, {50e-6, 1e9}, 2e-6, 2};
  const Description what = called(OperationKind::kAllReduce, 1000);
  EXPECT_NEAR(timeOf(Algorithm::kExchange, what, Placement::onOneHost(2), costs), 10e-6 + 2e-6 + 4000 / 5e9, 1e-12);
  EXPECT_NEAR(timeOf(Algorithm::kExchange, what, Placement::spread(2, 2), costs), 50e-6 + 2e-6 + 4000 / 1e9, 1e-12);
}

// Patarasuk and Yuan 2009: 2 (n-1) (latency + S / n / bandwidth), after the starts.
TEST(Prediction, OfARingBetweenHostsIsTheOneOfItsPaper) {
  const cluster::Costs costs{{10e-6, 50e9}, {50e-6, 1e9}, 1e-9, 64};
  const Description what = called(OperationKind::kAllReduce, 1'000'000, uint64_t{1} << 40);
  const Prediction ring = predict(Algorithm::kRing, what, Placement::spread(8, 8), costs);
  EXPECT_NEAR(ring.seconds(), 50e-6 + 14 * (50e-6 + 500'000 / 1e9), 1e-7);
  EXPECT_NEAR(ring.network, ring.path, 1e-7);
}

// With more members than cores, the work of all is the limit: twice the members, twice the bytes and the time.
TEST(Prediction, OfManyMembersOfOneHostGoesByItsCores) {
  const Description what = called(OperationKind::kAllReduce, 25'000'000);
  const Prediction four = predict(Algorithm::kRing, what, Placement::onOneHost(4), kTwoCores),
                   sixteen = predict(Algorithm::kRing, what, Placement::onOneHost(16), kTwoCores);
  EXPECT_EQ(sixteen.seconds(), sixteen.cores);
  EXPECT_NEAR(four.cores, 2 * 3 * 1e8 / 6e9 / 2, 0.2 * four.cores);
  EXPECT_NEAR(sixteen.cores / four.cores, 5, 0.2) << "2 (n-1) times the data";
}

// A ring crosses each network once where the ranks of a host follow each other, and direct blocks cross it for each
// member.
TEST(Prediction, KnowsThatMembersOfAHostShareItsNetwork) {
  const Description what = called(OperationKind::kAllReduce, 25'000'000);
  const cluster::Costs costs{{5e-6, 10e9}, {30e-6, 1e9}, 2e-6, 64};
  const Placement inTurn({0, 1, 0, 1, 0, 1, 0, 1}), together = Placement::spread(8, 2);
  EXPECT_LT(timeOf(Algorithm::kRing, what, together, costs), timeOf(Algorithm::kDirect, what, together, costs) / 1.5);
  EXPECT_NEAR(timeOf(Algorithm::kRing, what, inTurn, costs) / timeOf(Algorithm::kRing, what, together, costs), 4, 0.1);
  EXPECT_EQ(timeOf(Algorithm::kHierarchical, what, inTurn, costs),
            timeOf(Algorithm::kHierarchical, what, together, costs));
  EXPECT_EQ(*choose({}, what, {together, costs}), Algorithm::kHierarchical);
}

// ---- the choice

// A costlier step, and fewer of them win.
TEST(Choice, GoesByTheCostsOfTheJob) {
  const Description what = called(OperationKind::kAllReduce, 100'000);
  cluster::Costs costs{{10e-6, 5e9}, {1e-3, 1e9}, 1e-6, 64};
  const Placement apart = Placement::spread(8, 8);
  EXPECT_EQ(*choose({}, what, {apart, costs}), Algorithm::kDirect) << "two steps";
  costs.message = 1e-3;
  EXPECT_EQ(*choose({}, what, {apart, costs}), Algorithm::kCirculant) << "fewest messages";
}

// Between two hosts with several members each a ring moves nearly twice as much.
TEST(Choice, GoesHostByHostWhereTheNetworkIsTheLimit) {
  const cluster::Costs costs{{8e-6, 6e9}, {50e-6, 125e6}, 10e-6, 16};
  const Description what = called(OperationKind::kAllReduce, 25'000'000);
  for (const auto& [members, hosts] : {std::pair(4, 2), std::pair(16, 2), std::pair(64, 8)}) {
    const Placement placement = Placement::spread(members, hosts);
    EXPECT_EQ(*choose({}, what, {placement, costs}), Algorithm::kHierarchical) << members << " on " << hosts;
    const double least = 2.0 * (hosts - 1) / hosts * 100e6 / 125e6;
    EXPECT_NEAR(timeOf(Algorithm::kHierarchical, what, placement, costs), least, 0.1 * least) << members;
  }
  // The members of a host take turns on its cores before and after the network has anything to do.
  const cluster::Costs full{{8e-6, 6e9}, {18e-6, 1.18e9}, 10e-6, 2};
  EXPECT_EQ(*choose({}, what, {Placement::spread(16, 2), full}), Algorithm::kRing);
  EXPECT_NEAR(timeOf(Algorithm::kHierarchical, what, Placement::spread(16, 2), full), 0.228, 0.01);
  EXPECT_EQ(*choose({}, what, {Placement::spread(15, 2), costs}), Algorithm::kRing);
  EXPECT_EQ(*choose({}, what, {Placement::spread(8, 8), costs}), Algorithm::kRing);
}

// Of the member that moves most of it on its host.
double localBytesOf(const Description& what, const Placement& placement) {
  const std::vector<std::vector<int>> hosts = placement.ranksByHost();
  double most = 0;
  for (const std::vector<int>& ranks : hosts)
    for (int rank : ranks) {
      uint64_t count = 0;
      for (const Channel& channel : planOf({what, {}, {}}, placement, rank).channels)
        if (std::find(ranks.begin(), ranks.end(), channel.peer) != ranks.end())
          for (const Send& send : channel.sends) count += send.range().count();
      most = std::max(most, static_cast<double>(count * sizeOf(what.dataType)));
    }
  return most;
}

// All blocks have one size.
TEST(HierarchicalForm, IsWhatThePlansCount) {
  for (int hosts : {2, 3, 4})
    for (int each : {2, 3, 4, 6, 7}) {
      const Placement placement = Placement::spread(hosts * each, hosts);
      Description what =
          called(OperationKind::kAllReduce, static_cast<uint64_t>(240 * hosts * each), uint64_t{1} << 40);
      what.algorithm = Algorithm::kHierarchical;
      const Amounts form = amountsOf(what.algorithm, what, placement);
      const Cost counted = costOf(what, placement);
      SCOPED_TRACE(std::to_string(each) + " on each of " + std::to_string(hosts));
      EXPECT_EQ(form.steps, static_cast<double>(counted.steps));
      EXPECT_EQ(form.bytes, static_cast<double>(counted.bytes));
      EXPECT_EQ(form.allBytes, static_cast<double>(counted.allBytes));
      EXPECT_EQ(form.localBytes, localBytesOf(what, placement));
      EXPECT_NEAR(form.allMessages, static_cast<double>(counted.allMessages), 1e-9 * form.allMessages);
    }
}

// Rounds are fewer messages and more steps than direct blocks, and those of a reduce-scatter need memory.
TEST(Choice, TakesRoundsWhereMessagesCostMoreThanSteps) {
  constexpr uint64_t kBlock = 4096;
  for (OperationKind operation : {OperationKind::kReduceScatter, OperationKind::kAllGather}) {
    const Placement together = Placement::onOneHost(64), apart = Placement::spread(64, 64);
    const Description small = called(operation, 64 * kBlock / 4);
    EXPECT_EQ(*choose({}, small, {together, kTwoCores}), Algorithm::kCirculant) << describe(small);
    EXPECT_EQ(*choose({}, small, {apart, kTwoCores}), Algorithm::kCirculant) << describe(small);
    const cluster::Costs slowSteps{{10e-6, 5e9}, {1e-3, 1e9}, 1e-6, 64};
    EXPECT_EQ(*choose({}, small, {apart, slowSteps}), Algorithm::kDirect) << describe(small);
  }
  const Description large = called(OperationKind::kReduceScatter, 25'000'000);
  EXPECT_EQ(*choose({}, large, {Placement::onOneHost(64), kTwoCores}), Algorithm::kDirect) << "needs no memory";
}

// What the workers know of the job reaches each operation: here other algorithms would send more between the hosts.
TEST(Choice, GoesByTheHostsOfTheMembers) {
  test::GroupJob job(4);
  const cluster::Costs costs{{1e-6, 10e9}, {1e-6, 1e6}, 1e-6, 64};
  for (int rank = 0; rank < 4; ++rank)
    job.worker(rank).groups().setCosts(costs, [](int of) { return of < 2 ? "one" : "other"; });
  std::vector<ProcessGroup> groups = job.makeAll();
  std::vector<std::vector<float>> data(4, std::vector<float>(20'000, 1));
  std::vector<Future<void>> sums;
  for (size_t rank = 0; rank < 4; ++rank) {
    const Surroundings& known = groups[rank].core().surroundings();
    EXPECT_EQ(known.costs, costs);
    EXPECT_EQ(known.placement.hosts(), 2);
    EXPECT_EQ(*choose({}, called(OperationKind::kAllReduce, 20'000), known), Algorithm::kHierarchical);
    sums.push_back(allReduce(groups[rank], std::span(data[rank])));
  }
  test::waitAll(sums);
  EXPECT_EQ(data, std::vector(4, std::vector<float>(20'000, 4)));
}

Placement anyPlacement(test::Random& random, int size) {
  std::vector<int> hosts;
  const auto hostCount = 1 + test::pick(random, static_cast<uint64_t>(size));
  for (int rank = 0; rank < size; ++rank) hosts.push_back(static_cast<int>(test::pick(random, hostCount)));
  return Placement(std::move(hosts));
}

cluster::Costs anyCosts(test::Random& random) {
  const auto between = [&](double lowest, double highest) {
    return std::exp2(std::uniform_real_distribution<double>(std::log2(lowest), std::log2(highest))(random));
  };
  return {{between(1e-9, 1), between(1, 1e13)},
          {between(1e-9, 1), between(1, 1e13)},
          between(1e-9, 1),
          static_cast<uint32_t>(1 + test::pick(random, 1000))};
}

// Whatever the job and the call: the one that is chosen serves, takes the least time, or 3% more, and is the same for
// all members, which have the same values but made them apart.
TEST(Choice, IsTheFastestThatServesAndTheSameForAll) {
  constexpr std::array kSizes = {2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 200};
  constexpr std::array kTypes = {DataType::kFloat32, DataType::kFloat16, DataType::kInt64, DataType::kBool};
  test::Random random(test::seedOfRun());
  for (int i = 0; i < 20'000; ++i) {
    const int size = kSizes[test::pick(random, kSizes.size())];
    const OperationKind operation = kOperations[test::pick(random, kOperations.size())];
    Description what = called(operation, uint64_t{1} << test::pick(random, 40), 64ULL << test::pick(random, 19),
                              kTypes[test::pick(random, kTypes.size())]);
    if (what.dataType == DataType::kBool) what.reduceOp = ReduceOp::kMax;
    what.count = test::pick(random, what.count + 1);
    if (operation == OperationKind::kBarrier) what.count = 0;
    what.smallBytes = test::pick(random, kMostSmallBytes);
    what.root = static_cast<uint32_t>(test::pick(random, static_cast<uint64_t>(size)));
    const GroupOptions options{.sumOrder = test::pick(random, 2) == 0 ? SumOrder::kAny : SumOrder::kRank};
    const Surroundings one{anyPlacement(random, size), anyCosts(random)}, other = one;
    const Algorithm chosen = *choose(options, what, one);
    ASSERT_EQ(chosen, *choose(options, Description(what), other));
    ASSERT_TRUE(serves(chosen, what, one.placement, options.sumOrder)) << describe(what) << " " << nameOf(chosen);
    const double time = timeOf(chosen, what, one.placement, one.costs);
    ASSERT_TRUE(std::isfinite(time) && time > 0) << describe(what) << " " << describe(one.costs);
    for (Algorithm algorithm : kAlgorithms) {
      if (!serves(algorithm, what, one.placement, options.sumOrder)) continue;
      ASSERT_LE(time * 0.97, timeOf(algorithm, what, one.placement, one.costs))
          << describe(what) << ": " << nameOf(chosen) << " and not " << nameOf(algorithm);
    }
  }
}

// ---- placements

std::array<int, 3> countsOf(const Placement& placement) {
  return {placement.hosts(), placement.mostTogether(), placement.mostAtBorder()};
}

// By the lowest rank of a host: it is the order of the blocks between hosts.
TEST(Placement, HasRanksByHostInTheOrderOfFirstRanks) {
  using Ranks = std::vector<std::vector<int>>;
  EXPECT_EQ(Placement({4, 9, 4, 9}).ranksByHost(), (Ranks{{0, 2}, {1, 3}}));
  EXPECT_EQ(Placement({9, 4, 4, 9}).ranksByHost(), (Ranks{{0, 3}, {1, 2}}));
  EXPECT_EQ(Placement::spread(5, 2).ranksByHost(), (Ranks{{0, 1, 2}, {3, 4}}));
}

TEST(Placement, CountsHostsMembersAndBorders) {
  const Placement one = Placement::onOneHost(5), inTurn({4, 9, 4, 9}), ranges({7, 7, 7, 1, 1});
  EXPECT_EQ(one.members(), 5);
  EXPECT_EQ(countsOf(one), (std::array{1, 5, 0}));
  EXPECT_EQ(countsOf(inTurn), (std::array{2, 2, 2}));
  EXPECT_EQ(countsOf(ranges), (std::array{2, 3, 1}));
  EXPECT_EQ(ranges.pair(0, 2).hosts(), 1);
  EXPECT_EQ(ranges.pair(0, 3).hosts(), 2);
  EXPECT_EQ(ranges.pair(0, 3).members(), 2);
}

TEST(Placement, SpreadsMembersOverHostsInRanges) {
  for (int members : {2, 5, 8, 64})
    for (int hosts = 1; hosts <= members; ++hosts) {
      const Placement placement = Placement::spread(members, hosts);
      EXPECT_EQ(placement.hosts(), hosts);
      EXPECT_EQ(placement.mostTogether(), (members + hosts - 1) / hosts);
      EXPECT_EQ(placement.mostAtBorder(), hosts == 1 ? 0 : 1);
    }
}

}  // namespace
}  // namespace treadle::group::prediction_test
