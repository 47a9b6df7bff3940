#include "treadle/core/memory/free_ranges.h"

#include <algorithm>
#include <vector>

#include "tests/support/seeds.h"

namespace treadle::memory::free_ranges_test {
namespace {

TEST(FreeRanges, areTakenFromTheFrontAndJoinedAgain) {
  FreeRanges ranges(100);
  EXPECT_EQ(0U, ranges.take(40));
  EXPECT_EQ(40U, ranges.take(40));
  EXPECT_EQ(std::nullopt, ranges.take(40));
  EXPECT_EQ(80U, ranges.take(20));
  ranges.give(40, 40);
  ranges.give(0, 40);
  ranges.give(80, 20);
  EXPECT_EQ(0U, ranges.take(100));
}

TEST(FreeRanges, ofNothingGiveNothing) { EXPECT_EQ(std::nullopt, FreeRanges(0).take(1)); }

// Against a plain map of bytes: no byte is given twice, and what is free next to each other can be taken at once.
TEST(FreeRanges, agreeWithAMapOfBytes) {
  test::forSeeds(200, [](test::Random& random) {
    constexpr size_t kSize = 64;
    FreeRanges ranges(kSize);
    std::vector<bool> used(kSize);
    std::vector<std::pair<size_t, size_t>> taken;
    for (int step = 0; step < 200; ++step) {
      if (test::pick(random, 2) == 0) {
        size_t size = 1 + test::pick(random, 12);
        size_t run = 0, longest = 0;
        for (bool one : used) longest = std::max(longest, run = one ? 0 : run + 1);
        std::optional<size_t> begin = ranges.take(size);
        ASSERT_EQ(longest >= size, begin.has_value());
        if (!begin) continue;
        for (size_t at = *begin; at < *begin + size; ++at) {
          ASSERT_FALSE(used[at]);
          used[at] = true;
        }
        taken.emplace_back(*begin, size);
      } else if (!taken.empty()) {
        std::swap(taken[test::pick(random, taken.size())], taken.back());
        auto [begin, size] = taken.back();
        taken.pop_back();
        ranges.give(begin, size);
        std::fill_n(used.begin() + static_cast<ptrdiff_t>(begin), size, false);
      }
    }
  });
}

}  // namespace
}  // namespace treadle::memory::free_ranges_test
