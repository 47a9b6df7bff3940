// What each algorithm promises: the plans of all members together yield what the operation's definition says, whatever
// the order of arrival, and send what the algorithm's description says.

#include "tests/core/group/group_job.h"
#include "tests/core/group/simulation.h"
#include "treadle/core/group/circulant.h"
#include "treadle/core/group/direct.h"
#include "treadle/core/group/hierarchical.h"
#include "treadle/core/group/ring.h"
#include "treadle/core/group/tree.h"

namespace treadle::group::plan_test {
namespace {

using test::Numbers;
using test::Simulation;
using Algorithm = Plan (*)(const Shape&);

constexpr uint64_t kWhole = UINT64_MAX;  // elements of a chunk: a transfer is one

int64_t valueOf(int rank, uint64_t i) { return static_cast<int64_t>(i) * 10 + rank + 1; }

int64_t sumAt(int size, uint64_t i) {
  int64_t sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += valueOf(rank, i);
  return sum;
}

Numbers valuesOf(int rank, uint64_t count) {
  Numbers values;
  for (uint64_t i = 0; i < count; ++i) values.push_back(valueOf(rank, i));
  return values;
}

struct Named {
  const char* name;
  Algorithm algorithm;
  bool small = false;  // for data that travels with the starts
};

using Case = std::tuple<Named, int>;  // algorithm, members

class PlanTest : public ::testing::TestWithParam<Case> {
 protected:
  int size() const { return std::get<1>(GetParam()); }

  // Calls `f` for several numbers of elements and sizes of chunks.
  void forShapes(const std::function<void(uint64_t count, uint64_t chunkElements)>& f) const {
    for (uint64_t count : {0, 1, 2, 3, 8, 257})
      for (uint64_t chunkElements : {uint64_t{1}, uint64_t{3}, kWhole}) {
        SCOPED_TRACE(std::to_string(count) + " elements in chunks of " + std::to_string(chunkElements));
        f(count, std::get<0>(GetParam()).small ? kWhole : chunkElements);
      }
  }

  Simulation simulate(uint64_t count, uint64_t chunkElements, int root, bool average) {
    Simulation all(average, random_);
    const Named& what = std::get<0>(GetParam());
    for (int rank = 0; rank < size(); ++rank)
      all.add(what.algorithm({size(), rank, root, count}), chunkElements, std::nullopt, valuesOf(rank, count));
    if (what.small) all.sendFirst();
    all.run();
    EXPECT_TRUE(all.done());
    return all;
  }

  std::mt19937 random_{test::seedOfRun()};
};

std::string nameOf(const ::testing::TestParamInfo<Case>& info) {
  const auto& [what, size] = info.param;
  return what.name + std::to_string(size) + "Members";
}

auto casesOf(std::vector<Named> algorithms) {
  return ::testing::Combine(::testing::ValuesIn(algorithms), ::testing::Values(2, 3, 4, 5, 6, 7, 8, 9, 16, 17));
}

using AllReducePlan = PlanTest;

TEST_P(AllReducePlan, AddsEverythingEverywhere) {
  forShapes([&](uint64_t count, uint64_t chunkElements) {
    for (bool average : {false, true}) {
      const Simulation all = simulate(count, chunkElements, 0, average);
      for (uint64_t i = 0; i < count; ++i) {
        const int64_t sum = sumAt(size(), i);
        for (int rank = 0; rank < size(); ++rank)
          ASSERT_EQ(all.member(rank).output[i], average ? sum / size() : sum) << rank << " " << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Algorithms, AllReducePlan,
                         casesOf({{"Ring", ringAllReduce},
                                  {"Circulant", circulantAllReduce},
                                  {"Direct", directAllReduce},
                                  {"Exchange", exchangeAllReduce, true},
                                  {"Tree", treeAllReduce, true},
                                  {"Root", rootAllReduce}}),
                         nameOf);

INSTANTIATE_TEST_SUITE_P(ManyMembers, AllReducePlan,
                         ::testing::Combine(::testing::Values(Named{"Circulant", circulantAllReduce},
                                                              Named{"Tree", treeAllReduce, true}),
                                            ::testing::Values(33, 50)),
                         nameOf);

// So many hosts, with so many members each, whose ranks are in any order.
class HierarchicalPlan : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  HierarchicalPlan() {
    std::vector<int> hostOf;
    for (int rank = 0; rank < size_; ++rank) hostOf.push_back(rank % hosts_);
    std::shuffle(hostOf.begin(), hostOf.end(), random_);
    hostOf_ = hostOf;
  }

  Simulation simulate(uint64_t count, uint64_t chunkElements, bool average) {
    Simulation all(average, random_);
    for (int rank = 0; rank < size_; ++rank)
      all.add(hierarchicalAllReduce({size_, rank, 0, count}, Placement(hostOf_)), chunkElements, std::nullopt,
              valuesOf(rank, count));
    all.run();
    EXPECT_TRUE(all.done());
    return all;
  }

  const int hosts_ = std::get<0>(GetParam()), size_ = hosts_ * std::get<1>(GetParam());
  std::mt19937 random_{test::seedOfRun()};
  std::vector<int> hostOf_;
};

TEST_P(HierarchicalPlan, AddsEverythingEverywhere) {
  for (uint64_t count : {0, 1, 2, 3, 8, 257})
    for (uint64_t chunkElements : {uint64_t{1}, uint64_t{3}, kWhole})
      for (bool average : {false, true}) {
        const Simulation all = simulate(count, chunkElements, average);
        for (int rank = 0; rank < size_; ++rank)
          for (uint64_t i = 0; i < count; ++i)
            ASSERT_EQ(all.member(rank).output[i], average ? sumAt(size_, i) / size_ : sumAt(size_, i))
                << count << " elements in chunks of " << chunkElements << ", rank " << rank << " " << i;
      }
}

// Rank 2 of the hosts {0, 3} and {1, 2}: the second place of the second host.
TEST(HierarchicalPlanOfAMember, HasTheBlocksOfItsPlaces) {
  const Plan plan = hierarchicalAllReduce({4, 2, 0, 8}, Placement({9, 4, 4, 9}));
  ASSERT_EQ(plan.channels.size(), 2U);
  const Channel& host = plan.channels[*plan.channelTo(1)];
  const Channel& across = plan.channels[*plan.channelTo(3)];
  const auto rangesOf = [](const std::vector<Send>& sends) {
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    for (const Send& send : sends) ranges.emplace_back(send.range().begin, send.range().end);
    return ranges;
  };
  using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(rangesOf(host.sends), (Ranges{{0, 4}, {4, 8}}));    // the other's block, then the result of its own
  EXPECT_EQ(rangesOf(across.sends), (Ranges{{4, 6}, {6, 8}}));  // of its own block, likewise
}

// 2 (h-1) / h of the data (P. Patarasuk and X. Yuan, 2009, with a host as one member).
TEST_P(HierarchicalPlan, SendsBetweenHostsWhatHostsWouldAsMembers) {
  const auto size = static_cast<uint64_t>(size_), hosts = static_cast<uint64_t>(hosts_), count = 12 * size;
  std::vector<uint64_t> leaving(hosts);
  for (int rank = 0; rank < size_; ++rank)
    for (const Channel& channel : hierarchicalAllReduce({size_, rank, 0, count}, Placement(hostOf_)).channels)
      for (const Send& send : channel.sends) {
        const int from = hostOf_[static_cast<size_t>(rank)], to = hostOf_[static_cast<size_t>(channel.peer)];
        if (from != to) leaving[static_cast<size_t>(from)] += send.range().count();
      }
  for (uint64_t one : leaving) EXPECT_EQ(one, 2 * (hosts - 1) * count / hosts);
}

INSTANTIATE_TEST_SUITE_P(HostsAndMembers, HierarchicalPlan,
                         ::testing::Combine(::testing::Values(2, 3, 4, 5), ::testing::Values(2, 3, 4, 7)));

using BroadcastPlan = PlanTest;

TEST_P(BroadcastPlan, BringsTheRootsEverywhere) {
  forShapes([&](uint64_t count, uint64_t chunkElements) {
    for (int root = 0; root < size(); ++root) {
      const Simulation all = simulate(count, chunkElements, root, false);
      for (int rank = 0; rank < size(); ++rank) ASSERT_EQ(all.member(rank).output, valuesOf(root, count)) << rank;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Algorithms, BroadcastPlan,
    casesOf({{"Ring", ringBroadcast}, {"Exchange", exchangeBroadcast, true}, {"Tree", treeBroadcast, true}}), nameOf);

// How many elements a block has, when all members agree on it: some are empty, some larger than others.
std::vector<uint64_t> unevenBlocks(int size, uint64_t count) {
  std::vector<uint64_t> counts;
  for (int rank = 0; rank < size; ++rank) counts.push_back(rank % 3 == 1 ? 0 : count + static_cast<uint64_t>(rank) % 2);
  return counts;
}

// All elements are in one block.
std::vector<uint64_t> oneBlock(int size, uint64_t count) {
  std::vector<uint64_t> counts(static_cast<size_t>(size));
  counts[counts.size() / 2] = count;
  return counts;
}

// Out of place, by `counts`. The simulation has ended when this returns.
class BlocksPlan : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }

  void forShapes(const std::function<void(const std::vector<uint64_t>& counts, uint64_t chunkElements)>& f) const {
    for (uint64_t count : {0, 1, 20})
      for (uint64_t chunkElements : {uint64_t{3}, kWhole}) {
        SCOPED_TRACE(std::to_string(count) + " elements a block, in chunks of " + std::to_string(chunkElements));
        f(std::vector<uint64_t>(static_cast<size_t>(size()), count), chunkElements);
        f(unevenBlocks(size(), count), chunkElements);
        f(oneBlock(size(), count), chunkElements);
      }
  }

  // `input` and `output`: elements of the member.
  template <class Input, class Output>
  Simulation simulate(Algorithm algorithm, const std::vector<uint64_t>& counts, uint64_t chunkElements, int root,
                      Input input, Output output, bool average = false) {
    Simulation all(average, random_);
    Shape shape{size(), 0, root, Blocks(counts).count(), counts};
    for (shape.self = 0; shape.self < size(); ++shape.self)
      all.add(algorithm(shape), chunkElements, valuesOf(shape.self, input(shape.self)), Numbers(output(shape.self)));
    all.run();
    EXPECT_TRUE(all.done());
    return all;
  }

  void expectReduceScatter(Algorithm algorithm) {
    forShapes([&](const std::vector<uint64_t>& counts, uint64_t chunkElements) {
      for (bool average : {false, true}) {
        const Blocks blocks(counts);
        const Simulation all = simulate(
            algorithm, counts, chunkElements, 0, [&](int) { return blocks.count(); },
            [&](int rank) { return blocks[rank].count(); }, average);
        for (int rank = 0; rank < size(); ++rank) {
          Numbers want;
          for (uint64_t i = blocks[rank].begin; i < blocks[rank].end; ++i)
            want.push_back(sumAt(size(), i) / (average ? size() : 1));
          ASSERT_EQ(all.member(rank).output, want) << rank;
          ASSERT_EQ(all.member(rank).input, valuesOf(rank, blocks.count())) << "stays as it is";
        }
      }
    });
  }

  void expectAllGather(Algorithm algorithm) {
    forShapes([&](const std::vector<uint64_t>& counts, uint64_t chunkElements) {
      const Blocks blocks(counts);
      Numbers want;
      for (int rank = 0; rank < size(); ++rank)
        for (int64_t value : valuesOf(rank, blocks[rank].count())) want.push_back(value);
      const Simulation all = simulate(
          algorithm, counts, chunkElements, 0, [&](int rank) { return blocks[rank].count(); },
          [&](int) { return blocks.count(); });
      for (int rank = 0; rank < size(); ++rank) ASSERT_EQ(all.member(rank).output, want) << rank;
    });
  }

  std::mt19937 random_{test::seedOfRun()};
};

TEST_P(BlocksPlan, ReduceScatterReducesEachBlockOnItsMember) { expectReduceScatter(directReduceScatter); }

TEST_P(BlocksPlan, AllGatherBringsAllInputsToAll) { expectAllGather(directAllGather); }

TEST_P(BlocksPlan, ReduceBringsTheRootTheSums) {
  forShapes([&](const std::vector<uint64_t>& counts, uint64_t chunkElements) {
    const Blocks blocks(counts);
    for (int root = 0; root < size(); ++root) {
      const Simulation all = simulate(
          directReduce, counts, chunkElements, root, [&](int) { return blocks.count(); },
          [&](int rank) { return rank == root ? blocks.count() : 0; });
      for (uint64_t i = 0; i < blocks.count(); ++i) ASSERT_EQ(all.member(root).output[i], sumAt(size(), i)) << root;
    }
  });
}

TEST_P(BlocksPlan, GatherBringsAllInputsToTheRoot) {
  forShapes([&](const std::vector<uint64_t>& counts, uint64_t chunkElements) {
    const Blocks blocks(counts);
    Numbers want;
    for (int rank = 0; rank < size(); ++rank)
      for (int64_t value : valuesOf(rank, blocks[rank].count())) want.push_back(value);
    const auto own = [&](int rank) { return blocks[rank].count(); };
    for (int root = 0; root < size(); ++root)
      ASSERT_EQ(simulate(directGather, counts, chunkElements, root, own,
                         [&](int rank) { return rank == root ? blocks.count() : 0; })
                    .member(root)
                    .output,
                want);
  });
}

TEST_P(BlocksPlan, ScatterBringsEachItsBlock) {
  forShapes([&](const std::vector<uint64_t>& counts, uint64_t chunkElements) {
    const Blocks blocks(counts);
    for (int root = 0; root < size(); ++root) {
      const Simulation all = simulate(
          directScatter, counts, chunkElements, root, [&](int rank) { return rank == root ? blocks.count() : 0; },
          [&](int rank) { return blocks[rank].count(); });
      const Numbers roots = valuesOf(root, blocks.count());
      for (int rank = 0; rank < size(); ++rank)
        for (uint64_t i = 0; i < blocks[rank].count(); ++i)
          ASSERT_EQ(all.member(rank).output[i], roots[blocks[rank].begin + i]) << rank;
    }
  });
}

// Member r sends r + 2 m elements to the member m.
TEST_P(BlocksPlan, AllToAllBringsEachTheBlocksThatAreForIt) {
  const auto sent = [](int from, int to) { return static_cast<uint64_t>(from + 2 * to); };
  for (uint64_t chunkElements : {uint64_t{1}, uint64_t{7}, kWhole}) {
    Simulation all(false, random_);
    std::vector<Shape> shapes;
    for (int self = 0; self < size(); ++self) {
      Shape& shape = shapes.emplace_back(Shape{size(), self, 0, 0});
      for (int peer = 0; peer < size(); ++peer) {
        shape.counts.push_back(sent(self, peer));
        shape.incoming.push_back(sent(peer, self));
      }
      all.add(directAllToAll(shape), chunkElements, valuesOf(self, shape.blocks().count()),
              Numbers(shape.incomingBlocks().count()));
    }
    all.run();
    EXPECT_TRUE(all.done());
    for (int self = 0; self < size(); ++self)
      for (int from = 0; from < size(); ++from)
        for (uint64_t i = 0; i < sent(from, self); ++i)
          ASSERT_EQ(all.member(self).output[shapes[static_cast<size_t>(self)].incomingBlocks()[from].begin + i],
                    valueOf(from, shapes[static_cast<size_t>(from)].blocks()[self].begin + i));
  }
}

INSTANTIATE_TEST_SUITE_P(Members, BlocksPlan, ::testing::Values(2, 3, 4, 5, 6, 7, 8, 9, 17));

// Rounds have another form for each number of members.
using RoundsPlan = BlocksPlan;

TEST_P(RoundsPlan, ReduceScatterReducesEachBlockOnItsMember) { expectReduceScatter(circulantReduceScatter); }

TEST_P(RoundsPlan, AllGatherBringsAllInputsToAll) { expectAllGather(circulantAllGather); }

INSTANTIATE_TEST_SUITE_P(Members, RoundsPlan, ::testing::Range(2, 41));

// The blocks that are left after the first round; none where that is the only one.
TEST(RoundsPlanScratch, HoldsHalfOfTheBlocks) {
  EXPECT_EQ(circulantReduceScatter({2, 0, 0, 200}).scratch, 0);
  EXPECT_EQ(circulantReduceScatter({3, 1, 0, 300}).scratch, 200);
  EXPECT_EQ(circulantReduceScatter({64, 63, 0, 6400}).scratch, 3200);
  EXPECT_EQ(circulantReduceScatter({4, 3, 0, 10, {1, 2, 3, 4}}).scratch, 5) << "the blocks of the ranks 3 and 0";
  EXPECT_EQ(circulantReduceScatter({4, 3, 0, 1000, {1000, 0, 0, 0}}).scratch, 1000);
  EXPECT_EQ(circulantAllGather({64, 63, 0, 6400}).scratch, 0);
}

// Elements sent by one member, of 5 members and 1,000 elements, which are cut evenly.
uint64_t sentBy(int rank, Algorithm algorithm) {
  std::mt19937 random(1);
  Simulation all(false, random);
  for (int self = 0; self < 5; ++self) all.add(algorithm({5, self, 1, 1000}), 7, std::nullopt, valuesOf(self, 1000));
  all.run();
  return all.member(rank).elements;
}

// Chunks of all others may come at once, and each of them takes memory until they have all come.
TEST(PlanWindow, OfAMemberThatReceivesFromAllHoldsSixteenChunksTogether) {
  for (int size : {2, 5, 17, 40})
    for (Algorithm algorithm :
         {directAllReduce, directReduce, directReduceScatter, directGather, rootAllReduce, exchangeReduce}) {
      uint64_t chunks = 0;
      for (const Channel& channel : algorithm({size, 0, 0, 1'000'000}).channels)
        if (!channel.receives.empty()) chunks += channel.window;
      EXPECT_LE(chunks, std::max<uint64_t>(16, static_cast<uint64_t>(size) - 1));
    }
}

TEST(PlanCost, IsWhatTheAlgorithmsSay) {
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(sentBy(rank, ringAllReduce), 2 * 4 * 1000 / 5);
    EXPECT_EQ(sentBy(rank, circulantAllReduce), 2 * 4 * 1000 / 5);
    EXPECT_EQ(sentBy(rank, directAllReduce), 2 * 4 * 1000 / 5);
    EXPECT_EQ(sentBy(rank, ringBroadcast), rank == 0 ? 0 : 1000) << "the root is rank 1, the last one rank 0";
    EXPECT_EQ(sentBy(rank, directReduce), rank == 1 ? 4 * 1000 / 5 : 1000);
    EXPECT_EQ(sentBy(rank, directReduceScatter), 4 * 1000 / 5);
    EXPECT_EQ(sentBy(rank, directAllGather), 4 * 1000 / 5);
    EXPECT_EQ(sentBy(rank, circulantReduceScatter), 4 * 1000 / 5);
    EXPECT_EQ(sentBy(rank, circulantAllGather), 4 * 1000 / 5);
    EXPECT_EQ(sentBy(rank, directGather), rank == 1 ? 0 : 1000 / 5);
    EXPECT_EQ(sentBy(rank, directScatter), rank == 1 ? 4 * 1000 / 5 : 0);
    EXPECT_EQ(sentBy(rank, directAllToAll), 4 * 1000 / 5);
    EXPECT_EQ(sentBy(rank, exchangeAllReduce), 4 * 1000);
    EXPECT_EQ(sentBy(rank, exchangeBroadcast), rank == 1 ? 4 * 1000 : 0);
    // Rank 0 has the children 1, 2 and 4, rank 2 has 3.
    const int children = rank == 0 ? 3 : rank == 2 ? 1 : 0;
    EXPECT_EQ(sentBy(rank, treeAllReduce), (children + (rank == 0 ? 0 : 1)) * 1000);
    EXPECT_EQ(sentBy(rank, rootAllReduce), (children + (rank == 0 ? 0 : 1)) * 1000);
    EXPECT_EQ(sentBy(rank, treeBroadcast), (rank == 0 ? 2 : rank == 1 ? 1 : children) * 1000) << "from rank 1";
  }
}

}  // namespace
}  // namespace treadle::group::plan_test
