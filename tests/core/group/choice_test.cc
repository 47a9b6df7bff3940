// The choice of an algorithm, and each algorithm through the whole engine against closed forms.

#include "treadle/core/group/choice.h"

#include <cmath>
#include <cstring>

#include "tests/core/group/group_job.h"
#include "treadle/core/group/prediction.h"

namespace treadle::group::choice_test {
namespace {

using test::contains;
using test::failureOf;
using test::GroupJob;
using test::onAll;

constexpr Algorithm kAll[] = {Algorithm::kExchange, Algorithm::kTree,      Algorithm::kRoot,
                              Algorithm::kRing,     Algorithm::kCirculant, Algorithm::kDirect};

Description reduction(uint64_t count, DataType type = DataType::kFloat32) {
  return {OperationKind::kAllReduce, type, ReduceOp::kSum, 0, count, 0, 65'536, 262'144};
}

Description of(OperationKind operation, uint64_t count) {
  Description what = reduction(count);
  what.operation = operation;
  return what;
}

Surroundings among(int size) { return Surroundings::onOneHost(size); }

Algorithm automatic(const Description& what, int size) { return *choose({}, what, among(size)); }

TEST(ChoiceTest, GoesByOperationSizeAndMembers) {
  constexpr uint64_t kSmall = 100, kLarge = 1'000'000;
  for (int size : {2, 16}) {
    for (OperationKind operation :
         {OperationKind::kAllReduce, OperationKind::kBroadcast, OperationKind::kReduce, OperationKind::kAllGather,
          OperationKind::kAllToAll, OperationKind::kBarrier, OperationKind::kSend})
      EXPECT_EQ(automatic(of(operation, operation == OperationKind::kBarrier ? 0 : kSmall), size),
                Algorithm::kExchange);
    EXPECT_EQ(automatic(reduction(kLarge), size), Algorithm::kRing);
  }
  EXPECT_EQ(automatic(of(OperationKind::kReduce, kLarge), 2), Algorithm::kRoot) << "each byte travels once";
  EXPECT_EQ(automatic(of(OperationKind::kReduce, kLarge), 16), Algorithm::kDirect);
  EXPECT_EQ(automatic(reduction(kSmall), 17), Algorithm::kTree);
  EXPECT_EQ(automatic(of(OperationKind::kBroadcast, kSmall), 17), Algorithm::kTree);
  EXPECT_EQ(automatic(of(OperationKind::kBarrier, 0), 17), Algorithm::kTree);
  EXPECT_EQ(automatic(reduction(kSmall, DataType::kFloat16), 17), Algorithm::kTree);
  EXPECT_EQ(automatic(of(OperationKind::kReduce, kSmall), 17), Algorithm::kRoot);
  for (int size : {8, 16, 32, 64})
    EXPECT_EQ(automatic(reduction(262'144), size), Algorithm::kCirculant) << "one member would add 1 MiB of each";
  for (OperationKind operation : {OperationKind::kAllGather, OperationKind::kReduceScatter})
    EXPECT_EQ(automatic(of(operation, kSmall), 17), Algorithm::kCirculant) << "5 messages in place of 16";
  EXPECT_EQ(automatic(reduction(kLarge), 64), Algorithm::kCirculant) << "a ring's messages would be small, and many";
  EXPECT_EQ(automatic(of(OperationKind::kBroadcast, kLarge), 17), Algorithm::kRing);
  for (int size : {2, 17}) {
    EXPECT_EQ(automatic(reduction(kLarge, DataType::kBFloat16), size), Algorithm::kDirect);
    EXPECT_EQ(automatic(of(OperationKind::kAllToAll, kLarge), size), Algorithm::kDirect);
    EXPECT_EQ(automatic(of(OperationKind::kAllToAllV, 0), size), Algorithm::kDirect);
    EXPECT_EQ(automatic(of(OperationKind::kSparseAllReduce, kSmall), size),
              size == 2 ? Algorithm::kDirect : Algorithm::kTree);
  }
}

// Between hosts direct blocks of 16-bit floats take longest, so these go by hosts as float32.
TEST(ChoiceTest, SendsPartialSumsOfHalvesWhereThatIsFaster) {
  Surroundings twoHosts{Placement::spread(16, 2)};
  twoHosts.costs.cores = 16;
  const Description what = reduction(1 << 22, DataType::kBFloat16);
  EXPECT_EQ(*choose({}, what, twoHosts), Algorithm::kHierarchical);
  EXPECT_EQ(*choose({.sumOrder = SumOrder::kRank}, what, twoHosts), Algorithm::kDirect);
  const auto time = [&](Algorithm algorithm) { return timeOf(algorithm, what, twoHosts.placement, twoHosts.costs); };
  EXPECT_GT(time(Algorithm::kDirect), 2 * time(Algorithm::kHierarchical));
}

TEST(ChoiceTest, ChoosesOnlyAlgorithmsThatServe) {
  for (int size : {2, 3, 16, 17, 64})
    for (uint8_t operation = 1; isOperation(operation); ++operation)
      for (uint64_t count : {0, 1, 16'384, 16'385})
        for (DataType type : {DataType::kFloat32, DataType::kFloat16}) {
          Description what = reduction(count, type);
          what.operation = static_cast<OperationKind>(operation);
          if (what.operation == OperationKind::kBarrier) what.count = 0;
          if (what.operation == OperationKind::kSend && size > kMostAllToAll) continue;  // is between two
          EXPECT_TRUE(serves(automatic(what, size), what, Placement::onOneHost(size)))
              << describe(what) << " among " << size;
        }
}

TEST(ChoiceTest, ARefusalNamesTheAlgorithmsThatCan) {
  const Status why =
      choose({.algorithm = Algorithm::kRing}, of(OperationKind::kReduceScatter, 100'000), among(4)).status();
  EXPECT_EQ(why.code(), Code::kInvalidArgument);
  EXPECT_EQ(why.message(),
            "the algorithm 'ring' cannot do reduceScatter (sum) of 100000 float32 among 4 members: it does other "
            "operations; these can: circulant, direct");
  const auto refusal = [](const Placement& placement) {
    return choose({.algorithm = Algorithm::kHierarchical}, reduction(100'000), {placement}).status().message();
  };
  EXPECT_TRUE(contains(refusal(Placement::onOneHost(4)), "all members are on one host; these can: root, ring"));
  EXPECT_TRUE(contains(refusal(Placement::spread(4, 4)), "no host has two members"));
  EXPECT_TRUE(contains(refusal(Placement::spread(5, 2)), "hosts have different numbers of members"));
  EXPECT_EQ(refusal(Placement::spread(4, 2)), "");
  EXPECT_FALSE(choose({.algorithm = Algorithm::kTree}, reduction(10), among(16)).ok());
  EXPECT_FALSE(choose({.algorithm = Algorithm::kExchange}, reduction(10), among(17)).ok());
  EXPECT_FALSE(choose({.algorithm = Algorithm::kExchange}, reduction(100'000), among(2)).ok());
  EXPECT_EQ(*choose({.algorithm = Algorithm::kRing}, of(OperationKind::kBarrier, 0), among(2)), Algorithm::kExchange)
      << "has no choice";
}

// The reduction or copy of doubles that hold small integers, on each rank, by definition.
class AlgorithmTest : public ::testing::TestWithParam<std::tuple<Algorithm, int>> {
 protected:
  Algorithm algorithm() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }

  static double valueOf(int rank, size_t i) {
    return static_cast<double>((i * 7 + static_cast<size_t>(rank) * 3) % 11);
  }
  std::vector<double> sums(size_t count) const {
    std::vector<double> sums(count);
    for (int rank = 0; rank < size(); ++rank)
      for (size_t i = 0; i < count; ++i) sums[i] += valueOf(rank, i);
    return sums;
  }
  static std::vector<double> valuesOf(int rank, size_t count) {
    std::vector<double> values;
    for (size_t i = 0; i < count; ++i) values.push_back(valueOf(rank, i));
    return values;
  }
  bool can(OperationKind operation, size_t count) const {
    Description what = of(operation, count);
    what.dataType = DataType::kFloat64;
    what.smallBytes = kSmallBytes;
    return serves(algorithm(), what, Placement::onOneHost(size()));
  }

  static constexpr size_t kSmallBytes = 65'536;
  static constexpr size_t kCounts[] = {0, 1, 2, 101, 8192, 8193, 50'021};
  GroupJob job_{size()};
  std::vector<ProcessGroup> groups_ =
      job_.makeAll({.smallBytes = kSmallBytes, .chunkBytes = 8192, .algorithm = algorithm()});
};

TEST_P(AlgorithmTest, AllReducesAsDefined) {
  for (size_t count : kCounts) {
    if (!can(OperationKind::kAllReduce, count)) continue;
    std::vector<std::vector<double>> data;
    for (int rank = 0; rank < size(); ++rank) data.push_back(valuesOf(rank, count));
    onAll(groups_, [&](const ProcessGroup& group, size_t rank) { return allReduce(group, std::span(data[rank])); });
    const std::vector<double> want = sums(count);
    for (const auto& mine : data) ASSERT_EQ(mine, want) << count;
  }
}

TEST_P(AlgorithmTest, ReducesAsDefined) {
  for (size_t count : kCounts) {
    if (!can(OperationKind::kReduce, count)) continue;
    const int root = size() - 1;
    std::vector<std::vector<double>> data;
    for (int rank = 0; rank < size(); ++rank) data.push_back(valuesOf(rank, count));
    std::vector<double> result(count);
    onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
      const bool isRoot = static_cast<int>(rank) == root;
      return reduce(group, std::span<const double>(data[rank]), isRoot ? std::span(result) : std::span<double>(), root);
    });
    ASSERT_EQ(result, sums(count)) << count;
  }
}

TEST_P(AlgorithmTest, BroadcastsAsDefined) {
  for (size_t count : kCounts) {
    if (!can(OperationKind::kBroadcast, count)) continue;
    for (int root : {0, size() - 1}) {
      std::vector<std::vector<double>> data(static_cast<size_t>(size()), std::vector<double>(count));
      data[static_cast<size_t>(root)] = valuesOf(root, count);
      onAll(groups_,
            [&](const ProcessGroup& group, size_t rank) { return broadcast(group, std::span(data[rank]), root); });
      for (const auto& mine : data) ASSERT_EQ(mine, valuesOf(root, count)) << count;
    }
  }
}

TEST_P(AlgorithmTest, MovesBlocksAsDefined) {
  const auto members = static_cast<size_t>(size());
  for (size_t count : kCounts) {
    if (!can(OperationKind::kReduceScatter, count * members) || !can(OperationKind::kAllGather, count * members * 8))
      continue;
    std::vector<std::vector<double>> inputs, parts(members, std::vector<double>(count)),
        all(members, std::vector<double>(count * members));
    for (int rank = 0; rank < size(); ++rank) inputs.push_back(valuesOf(rank, count * members));
    onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
      return reduceScatter(group, std::span<const double>(inputs[rank]), std::span(parts[rank]));
    });
    onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
      return allGather(group, std::as_bytes(std::span(parts[rank])), std::as_writable_bytes(std::span(all[rank])));
    });
    const std::vector<double> want = sums(count * members);
    for (const auto& mine : all) ASSERT_EQ(mine, want) << count;
  }
}

TEST_P(AlgorithmTest, ABarrierAndASendGoByWhatTheyCan) {
  onAll(groups_, [](const ProcessGroup& group, size_t) { return barrier(group); });
  std::vector<double> sent = valuesOf(0, 10'000), got(10'000);
  std::vector<Future<void>> futures = {send(groups_[0], std::span(sent), 1), recv(groups_[1], std::span(got), 0)};
  test::waitAll(futures);
  EXPECT_EQ(got, sent);
}

INSTANTIATE_TEST_SUITE_P(EachAndEverySize, AlgorithmTest,
                         ::testing::Combine(::testing::ValuesIn(kAll), ::testing::Values(2, 3, 4, 5, 6, 7, 8, 9, 17)),
                         [](const auto& info) {
                           return std::string(nameOf(std::get<0>(info.param))) +
                                  std::to_string(std::get<1>(info.param)) + "Members";
                         });

TEST(ForcedAlgorithmTest, ThatCannotServeIsRefusedAtOnceAndCountsForNothing) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll({.algorithm = Algorithm::kRing});
  std::vector<float> values(10);
  try {
    reduce(groups[0], std::span<const float>(values), std::span(values), 0);
    ADD_FAILURE() << "a ring reduces to all";
  } catch (const ArgumentError& error) {
    EXPECT_TRUE(contains(error.what(), "these can: exchange, root, direct")) << error.what();
  }
  std::vector<Future<void>> futures = {barrier(groups[0]), barrier(groups[1])};
  test::waitAll(futures);
}

TEST(ForcedAlgorithmTest, OnOneMemberAloneFailsOnAllAndNamesBoth) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = {job.make(0, {.name = "pair", .algorithm = Algorithm::kDirect}),
                                      job.make(1, {.name = "pair"})};
  std::vector<std::vector<float>> data(2, std::vector<float>(100'000));
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < 2; ++rank) futures.push_back(allReduce(groups[rank], std::span(data[rank])));
  for (Future<void>& future : futures) {
    const Status why = failureOf(future);
    EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
    for (const char* part : {"worker 'w0'", "worker 'w1'", "algorithm direct", "algorithm ring"})
      EXPECT_TRUE(contains(why.message(), part)) << why.message();
  }
}

TEST(AlgorithmOfAHandle, TakesThePlaceOfThatOfTheGroup) {
  GroupJob job(2);
  std::vector<std::vector<float>> data(2, std::vector<float>(10));
  const auto sum = [&](const ProcessGroup& group, size_t rank) {
    return reduce(group, std::span<const float>(data[rank]), std::span(data[rank]).first(rank == 0 ? 10 : 0), 0);
  };
  const std::vector<ProcessGroup> ring = job.makeAll({.algorithm = Algorithm::kRing}),
                                  any = job.makeAll({.name = "any"});
  test::onAll(ring, [&](const ProcessGroup& group, size_t rank) {
    return sum(group.withAlgorithm(Algorithm::kAutomatic), rank);
  });
  EXPECT_EQ(ring[0].algorithm(), Algorithm::kRing);
  EXPECT_EQ(ring[0].withAlgorithm(Algorithm::kAutomatic).algorithm(), Algorithm::kAutomatic);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_THROW(sum(any[rank].withAlgorithm(Algorithm::kRing), rank), ArgumentError) << "a ring reduces to all";
    EXPECT_THROW(sum(ring[rank], rank), ArgumentError) << "the handle itself stays as it is";
  }
  std::vector<Future<void>> futures = {sum(any[0].withAlgorithm(Algorithm::kRoot), 0), sum(any[1], 1)};
  for (Future<void>& future : futures) {
    const Status why = failureOf(future);
    EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
    EXPECT_TRUE(contains(why.message(), "algorithm root")) << why.message();
  }
}

TEST(AlgorithmOfAHandle, CountsNotForWhatHasNoChoice) {
  GroupJob job(2);
  std::vector<std::vector<float>> data(2, std::vector<float>(10, 1));
  test::onAll(job.makeAll(), [&](const ProcessGroup& group, size_t rank) {
    const ProcessGroup tree = group.withAlgorithm(Algorithm::kTree);
    std::vector<Future<void>> all;
    all.push_back(barrier(tree));
    all.push_back(pushPull(tree, "a", std::span(data[rank])));
    return whenAll(std::move(all));
  });
  EXPECT_EQ(data[0], std::vector<float>(10, 2));
}

TEST(SumOrderTest, LeavesOutAlgorithmsThatAddInAnotherOrder) {
  const GroupOptions byRank{.sumOrder = SumOrder::kRank};
  EXPECT_EQ(*choose(byRank, reduction(100), among(4)), Algorithm::kExchange);
  EXPECT_EQ(*choose(byRank, reduction(1'000'000), among(4)), Algorithm::kDirect);
  EXPECT_EQ(*choose(byRank, reduction(100), among(17)), Algorithm::kRoot);
  EXPECT_EQ(*choose(byRank, reduction(1'000'000), among(17)), Algorithm::kDirect);
  EXPECT_EQ(*choose(byRank, of(OperationKind::kBroadcast, 100), among(17)), Algorithm::kTree) << "adds nothing";
  EXPECT_EQ(*choose(byRank, of(OperationKind::kBroadcast, 1'000'000), among(4)), Algorithm::kRing);
  const Status why =
      choose({.algorithm = Algorithm::kRing, .sumOrder = SumOrder::kRank}, reduction(100'000), among(4)).status();
  EXPECT_TRUE(contains(why.message(), "it does not add in the order of ranks; these can: root, direct"))
      << why.message();
  EXPECT_EQ(*choose(byRank, of(OperationKind::kReduceScatter, 100), among(64)), Algorithm::kDirect);
  EXPECT_EQ(*choose(byRank, of(OperationKind::kSparseAllReduce, 100), among(64)), Algorithm::kDirect);
  for (const auto& [order, size] : {std::pair{SumOrder::kRank, 64}, std::pair{SumOrder::kAny, 16}})
    EXPECT_FALSE(choose({.algorithm = Algorithm::kTree, .sumOrder = order}, of(OperationKind::kSparseAllReduce, 100),
                        among(size))
                     .ok());
  EXPECT_EQ(*choose(byRank, of(OperationKind::kAllGather, 100), among(64)), Algorithm::kCirculant) << "adds nothing";
}

// The sum of an element has the same bits at every size of data and chunk, by every algorithm that is left, and in
// every place: those of a loop over the ranks.
TEST(SumOrderTest, ByRankGivesTheBitsOfALoop) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int size : {2, 3, 5, 16, 17}) {
    constexpr size_t kMost = 40'003;
    std::vector<std::vector<float>> values(static_cast<size_t>(size), std::vector<float>(kMost));
    for (auto& mine : values)
      for (float& value : mine) value = normal(random) * std::exp2(static_cast<float>(random() % 30));
    std::vector<float> sums = values[0];
    for (size_t rank = 1; rank < values.size(); ++rank)
      for (size_t i = 0; i < kMost; ++i) sums[i] += values[rank][i];
    GroupJob job(size);
    for (Algorithm algorithm : {Algorithm::kAutomatic, Algorithm::kRoot, Algorithm::kDirect})
      for (size_t chunkBytes : {size_t{4096}, size_t{100'000}}) {
        std::vector<ProcessGroup> groups = job.makeAll({.name = std::string(nameOf(algorithm)),
                                                        .chunkBytes = chunkBytes,
                                                        .algorithm = algorithm,
                                                        .sumOrder = SumOrder::kRank});
        for (auto [first, count] : {std::pair<size_t, size_t>{0, kMost}, {17, 1}, {1001, 7}, {3, 20'000}}) {
          std::vector<std::vector<float>> data;
          for (const auto& mine : values)
            data.emplace_back(mine.begin() + static_cast<ptrdiff_t>(first),
                              mine.begin() + static_cast<ptrdiff_t>(first + count));
          std::vector<Future<void>> futures;
          for (size_t rank = 0; rank < data.size(); ++rank)
            futures.push_back(allReduce(groups[rank], std::span(data[rank])));
          test::waitAll(futures);
          for (const auto& mine : data)
            ASSERT_EQ(0, std::memcmp(mine.data(), sums.data() + first, count * sizeof(float)))
                << size << " members, " << nameOf(algorithm) << ", " << count << " from " << first;
        }
        if (algorithm == Algorithm::kRoot) continue;
        const size_t block = kMost / values.size();
        std::vector<std::vector<float>> blocks(values.size(), std::vector<float>(block));
        std::vector<Future<void>> futures;
        for (size_t rank = 0; rank < blocks.size(); ++rank)
          futures.push_back(reduceScatter(groups[rank],
                                          std::span<const float>(values[rank]).first(block * blocks.size()),
                                          std::span(blocks[rank])));
        test::waitAll(futures);
        for (size_t rank = 0; rank < blocks.size(); ++rank)
          ASSERT_EQ(0, std::memcmp(blocks[rank].data(), sums.data() + rank * block, block * sizeof(float)))
              << size << " members, " << nameOf(algorithm) << ", reduceScatter, rank " << rank;
      }
  }
}

}  // namespace
}  // namespace treadle::group::choice_test
