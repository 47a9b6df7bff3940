#include "treadle/core/summation/overdue.h"

#include <gtest/gtest.h>

namespace treadle::summation::overdue_test {
namespace {

using std::chrono::seconds;

TEST(Overdue, YieldsWhatIsWaitedForAsLongAsTheLimit) {
  Overdue overdue(seconds(10));
  const TimePoint begin{};
  EXPECT_EQ(std::nullopt, overdue.look({{1, 0}}, begin));
  EXPECT_EQ(std::nullopt, overdue.look({{0, 0}, {1, 0}}, begin + seconds(9)));
  EXPECT_EQ((Overdue::Awaited{1, 0}), overdue.look({{0, 0}, {1, 0}}, begin + seconds(10)));
}

// The next round of a part, and one that was not waited for in between, begin anew.
TEST(Overdue, CountsFromTheFirstLookOfTheSameWait) {
  Overdue overdue(seconds(10));
  const TimePoint begin{};
  EXPECT_EQ(std::nullopt, overdue.look({{1, 0}, {2, 0}}, begin));
  EXPECT_EQ(std::nullopt, overdue.look({{1, 1}}, begin + seconds(5)));
  EXPECT_EQ(std::nullopt, overdue.look({{1, 1}, {2, 0}}, begin + seconds(12)));
  EXPECT_EQ((Overdue::Awaited{1, 1}), overdue.look({{1, 1}, {2, 0}}, begin + seconds(15)));
}

}  // namespace
}  // namespace treadle::summation::overdue_test
