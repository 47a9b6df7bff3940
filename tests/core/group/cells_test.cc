// The cells of the fault matrix: none is missing, and each operation by each algorithm gives what it promises.

#include "tests/core/group/cell_run.h"
#include "tests/core/group/fault_job.h"

namespace treadle::cells_test {
namespace {

using test::Cell;
using test::GroupJob;
using test::Phase;
using test::Setting;

// "reduce by direct"; "allToAllV by direct" where blocks have any sizes.
std::string textOf(const Cell& cell) {
  const std::string name = cell.name();
  return name.substr(0, name.find(' ')) + (cell.description().sizesVary() ? "V" : "") + " by " +
         std::string(group::nameOf(cell.algorithm));
}

using Names = std::vector<std::string>;

// Without those of other roots.
Names namesOf(const std::vector<Cell>& cells) {
  Names names;
  for (const Cell& cell : cells)
    if (std::string text = textOf(cell); names.empty() || names.back() != text) names.push_back(std::move(text));
  return names;
}

// The table of docs/protocol/group.md.
TEST(Cells, HaveEachOperationByEachAlgorithmThatCanDoIt) {
  const auto few = test::cellsOf({.size = 3, .victim = 1}), many = test::cellsOf({.size = 17, .victim = 12});
  EXPECT_EQ(namesOf(few), (Names{"allReduce by exchange",
                                 "allReduce by root",
                                 "allReduce by ring",
                                 "allReduce by circulant",
                                 "allReduce by direct",
                                 "broadcast by exchange",
                                 "broadcast by ring",
                                 "barrier by exchange",
                                 "reduce by exchange",
                                 "reduce by root",
                                 "reduce by direct",
                                 "reduceScatter by exchange",
                                 "reduceScatter by circulant",
                                 "reduceScatter by direct",
                                 "allGather by exchange",
                                 "allGather by circulant",
                                 "allGather by direct",
                                 "gather by exchange",
                                 "gather by direct",
                                 "scatter by exchange",
                                 "scatter by direct",
                                 "allToAll by exchange",
                                 "allToAll by direct",
                                 "send by exchange",
                                 "send by ring",
                                 "allToAllV by direct"}));
  EXPECT_EQ(few.size(), 38U);  // eleven are there with two roots, and a ring's broadcast with a third one
  EXPECT_EQ(namesOf(many), (Names{"allReduce by tree",
                                  "allReduce by root",
                                  "allReduce by ring",
                                  "allReduce by circulant",
                                  "allReduce by direct",
                                  "broadcast by tree",
                                  "broadcast by ring",
                                  "barrier by tree",
                                  "reduce by root",
                                  "reduce by direct",
                                  "reduceScatter by circulant",
                                  "reduceScatter by direct",
                                  "allGather by circulant",
                                  "allGather by direct",
                                  "gather by direct",
                                  "scatter by direct",
                                  "allToAll by direct",
                                  "send by exchange",
                                  "send by ring",
                                  "allToAllV by direct"}));
  EXPECT_EQ(many.size(), 29U);
  const Names spread = namesOf(test::cellsOf({.size = 4, .victim = 1, .hosts = 2}));
  EXPECT_EQ(std::count(spread.begin(), spread.end(), "allReduce by hierarchical"), 1);
}

// The cells in which the victim always ends last.
Names withoutLastPhase(const Setting& setting) {
  Names names;
  for (const Cell& cell : test::cellsOf(setting))
    if (!test::caseOf(cell, Phase::kDone, setting.victim))
      names.push_back(textOf(cell) + (cell.root == setting.victim ? " from or to it" : " from or to another"));
  return names;
}

// The victim takes the last chunk of a ring, or its result needs those of all others. In small groups a member also
// waits for the start of another with which it exchanges no data; along the tree it does not.
TEST(Cells, HaveALastPhaseUnlessTheVictimAlwaysEndsLast) {
  const std::string ring = "broadcast by ring from or to another", reduce = "reduce by direct from or to it",
                    send = "send by ring from or to another";
  EXPECT_EQ(withoutLastPhase({.size = 3, .victim = 1}), (Names{ring, reduce, send}));
  EXPECT_EQ(withoutLastPhase({.size = 5, .victim = 3}), (Names{reduce, send}));
  EXPECT_EQ(withoutLastPhase({.size = 17, .victim = 12}),
            (Names{ring, "reduce by root from or to it", reduce, "gather by direct from or to it", send}));
}

TEST(Cells, HaveDataOnTheirWayInAllPhasesUnlessTheyAreSmall) {
  const auto cases = test::casesOf({.size = 3, .victim = 1, .most = 3}, {Phase::kAgreed, Phase::kMoving});
  EXPECT_EQ(cases.size(), 4U * (38 - 15));  // 15 are small; three numbers of messages while data moves
}

// Members, and hosts.
class CellsAmong : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(CellsAmong, GiveTheirClosedForms) {
  const auto& [size, hosts] = GetParam();
  GroupJob job(size);
  job.spreadOver(hosts);
  for (Cell cell : test::cellsOf({.size = size, .victim = size / 2, .hosts = hosts})) {
    const std::vector<ProcessGroup> groups = job.makeAll(cell.options("closed forms"));
    for (size_t count : {size_t{0}, size_t{1}, size_t{1009}}) {
      cell.count = cell.isBarrier() ? 0 : count;
      test::runCell(cell, groups);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Members, CellsAmong,
                         ::testing::Combine(::testing::Values(2, 3, 4, 5, 6, 7, 8, 9, 17), ::testing::Values(1)));
INSTANTIATE_TEST_SUITE_P(Hosts, CellsAmong,
                         ::testing::Values(std::tuple(4, 2), std::tuple(6, 2), std::tuple(6, 3), std::tuple(20, 4)));

}  // namespace
}  // namespace treadle::cells_test
