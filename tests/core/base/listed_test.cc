#include "treadle/core/base/listed.h"

#include <gtest/gtest.h>

#include <vector>

namespace treadle {
namespace {

std::string listOf(const std::vector<int>& numbers, size_t most) {
  return listed(numbers, most, [](int number) { return std::to_string(number); });
}

TEST(Listed, hasAllItemsUpToTheMost) {
  EXPECT_EQ(listOf({}, 2), "");
  EXPECT_EQ(listOf({7}, 2), "7");
  EXPECT_EQ(listOf({7, 0}, 2), "7, 0");
}

TEST(Listed, countsTheOthers) {
  EXPECT_EQ(listOf({7, 0, 5}, 2), "7, 0 and 1 more");
  EXPECT_EQ(listOf({7, 0, 5, 6}, 1), "7 and 3 more");
}

}  // namespace
}  // namespace treadle
