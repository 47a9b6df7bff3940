// Which workers of a summation service are a team.

#include "treadle/core/summation/teams.h"

#include <gtest/gtest.h>

namespace treadle::summation::teams_test {
namespace {

const std::vector<std::string> kWorkers = {"a", "b", "c", "d", "e"};
const Teams kAlone = {{"a"}, {"b"}, {"c"}, {"d"}, {"e"}};

TEST(Teams, AreTheWorkersOfEachHost) {
  EXPECT_EQ((Teams{{"a", "b"}, {"c", "d", "e"}}), teamsByHost(kWorkers, group::Placement({0, 0, 1, 1, 1})));
  EXPECT_EQ((Teams{{"a", "c"}, {"b", "e"}, {"d"}}), teamsByHost(kWorkers, group::Placement({7, 3, 7, 5, 3})));
  EXPECT_EQ(kAlone, teamsByHost(kWorkers, group::Placement({0, 1, 2, 3, 4})));
}

TEST(Teams, AreNotNeededWhereAllWorkersAreOnOneHost) {
  EXPECT_EQ(kAlone, teamsByHost(kWorkers, group::Placement::onOneHost(5)));
}

TEST(Teams, AreWhoIsNamedTogether) {
  EXPECT_EQ(kAlone, *teamsOf(kWorkers, {}));
  EXPECT_EQ((Teams{{"a"}, {"b", "d"}, {"c"}, {"e"}}), *teamsOf(kWorkers, {{"d", "b"}}));
  EXPECT_EQ((Teams{{"a", "e"}, {"b", "c", "d"}}), *teamsOf(kWorkers, {{"d", "c", "b"}, {"e", "a"}}));
}

TEST(Teams, AreOfWorkersAndDisjoint) {
  for (const Teams& none : {Teams{{"a", "f"}}, {{"a", "a"}}, {{"a", "b"}, {"b"}}, {{}}})
    EXPECT_EQ(Code::kInvalidArgument, teamsOf(kWorkers, none).status().code());
}

}  // namespace
}  // namespace treadle::summation::teams_test
