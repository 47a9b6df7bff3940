#include "treadle/core/group/row_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace treadle::group::row_ranges_test {
namespace {

TEST(RowRanges, GiveEachRowToOneMemberAtItsNextOffset) {
  for (int members : {1, 2, 3, 8, 17})
    for (uint64_t rows : {0, 1, 2, 16, 100, 255, 256, 257, 5000, 100'001}) {
      const RowRanges ranges(rows, members);
      std::vector<uint64_t> next(static_cast<size_t>(members));
      for (uint64_t row = 0; row < rows; ++row) {
        const int owner = ranges.ownerOf(row);
        ASSERT_TRUE(owner >= 0 && owner < members);
        ASSERT_EQ(ranges.offsetOf(row), next[static_cast<size_t>(owner)]++);
        ASSERT_EQ(ranges.rowAt(owner, ranges.offsetOf(row)), row);
      }
      for (int member = 0; member < members; ++member)
        ASSERT_EQ(ranges.count(member), next[static_cast<size_t>(member)]) << rows << " of " << members;
    }
}

TEST(RowRanges, DifferByOneRunAtMost) {
  for (uint64_t rows : {3, 100, 1000, 100'000}) {
    const RowRanges ranges(rows, 8);
    EXPECT_LE(ranges.runRows(), std::max<uint64_t>(1, rows / 8 / RowRanges::kRunsPerMember));
    for (int member = 0; member < 8; ++member) {
      EXPECT_LE(ranges.count(member), rows / 8 + ranges.runRows());
      EXPECT_GE(ranges.count(member) + ranges.runRows(), rows / 8);
    }
  }
}

// All rows of a frequent eighth: of 50,000 words, by frequency, the first 6,250.
TEST(RowRanges, SpreadRowsThatCrowdTogether) {
  const RowRanges ranges(50'000, 8);
  std::vector<uint64_t> owned(8);
  for (uint64_t row = 0; row < 6'250; ++row) ++owned[static_cast<size_t>(ranges.ownerOf(row))];
  for (uint64_t rows : owned) EXPECT_LE(rows, 6'250 / 8 + ranges.runRows());
}

TEST(RowRanges, HoldMoreRowsThanAnyMemory) {
  constexpr uint64_t kRows = (uint64_t{1} << 59) - 1;
  const RowRanges ranges(kRows, 7);
  uint64_t all = 0;
  for (int member = 0; member < 7; ++member) all += ranges.count(member);
  EXPECT_EQ(all, kRows);
  EXPECT_EQ(ranges.rowAt(ranges.ownerOf(kRows - 1), ranges.offsetOf(kRows - 1)), kRows - 1);
}

}  // namespace
}  // namespace treadle::group::row_ranges_test
