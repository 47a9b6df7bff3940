// What each algorithm promises: the plans of all members together yield what the operation's definition says, whatever
// the order of arrival, and send what the algorithm's description says.

#include "tests/core/group/group_job.h"
#include "tests/core/group/simulation.h"
#include "treadle/core/group/direct.h"
#include "treadle/core/group/ring.h"

namespace treadle::group::plan_test {
namespace {

using test::Numbers;
using test::Simulation;
using Algorithm = Plan (*)(const Shape&);

constexpr uint64_t kWhole = UINT64_MAX;  // elements of a chunk: a transfer is one

int64_t valueOf(int rank, uint64_t i) { return static_cast<int64_t>(i) * 10 + rank + 1; }

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
      all.add(what.algorithm({size(), rank, root, count}), chunkElements, {}, valuesOf(rank, count));
    if (what.small) all.sendFirst();
    all.run();
    EXPECT_TRUE(all.done());
    return all;
  }

  std::mt19937 random_{test::newSeed()};
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
        int64_t sum = 0;
        for (int rank = 0; rank < size(); ++rank) sum += valueOf(rank, i);
        for (int rank = 0; rank < size(); ++rank)
          ASSERT_EQ(all.member(rank).output[i], average ? sum / size() : sum) << rank << " " << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Algorithms, AllReducePlan,
    casesOf({{"Ring", ringAllReduce}, {"Direct", directAllReduce}, {"Exchange", exchangeAllReduce, true}}), nameOf);

using BroadcastPlan = PlanTest;

TEST_P(BroadcastPlan, BringsTheRootsEverywhere) {
  forShapes([&](uint64_t count, uint64_t chunkElements) {
    for (int root = 0; root < size(); ++root) {
      const Simulation all = simulate(count, chunkElements, root, false);
      for (int rank = 0; rank < size(); ++rank) ASSERT_EQ(all.member(rank).output, valuesOf(root, count)) << rank;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Algorithms, BroadcastPlan,
                         casesOf({{"Ring", ringBroadcast}, {"Exchange", exchangeBroadcast, true}}), nameOf);

// Elements sent by one member, of 5 members and 1,000 elements, which are cut evenly.
uint64_t sentBy(int rank, Algorithm algorithm) {
  std::mt19937 random(1);
  Simulation all(false, random);
  for (int self = 0; self < 5; ++self) all.add(algorithm({5, self, 1, 1000}), 7, {}, valuesOf(self, 1000));
  all.run();
  return all.member(rank).elements;
}

TEST(PlanCost, IsWhatTheAlgorithmsSay) {
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(sentBy(rank, ringAllReduce), 2 * 4 * 1000 / 5);
    EXPECT_EQ(sentBy(rank, directAllReduce), 2 * 4 * 1000 / 5);
    EXPECT_EQ(sentBy(rank, ringBroadcast), rank == 0 ? 0 : 1000) << "the root is rank 1, the last one rank 0";
    EXPECT_EQ(sentBy(rank, exchangeAllReduce), 4 * 1000);
    EXPECT_EQ(sentBy(rank, exchangeBroadcast), rank == 1 ? 4 * 1000 : 0);
  }
}

}  // namespace
}  // namespace treadle::group::plan_test
