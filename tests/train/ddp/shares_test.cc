// How much each rank counts, from what the ranks report.

#include "treadle/train/ddp/divisor.h"

#include <cmath>
#include <limits>

#include "tests/support/expect_error.h"

namespace treadle::test::shares_test {
namespace {

TEST(Shares, RefuseWeightsThatNoRankOfOursSends) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto shares = ddp::sharesOf(Divisor::kWeights, {{.weight = 1}, {.weight = nan}});
  EXPECT_TRUE(contains(shares.status().message(), "rank 1 of the group has the weight nan"));
  EXPECT_FALSE(ddp::sharesOf(Divisor::kWeights, {{.weight = -1}}).ok());
  EXPECT_TRUE(ddp::sharesOf(Divisor::kSum, {{.weight = nan}}).ok());
}

// Their sum, or the number of ranks divided by it, is no finite number.
TEST(Shares, RefuseWeightsWithWhoseSumNothingCanBeDivided) {
  for (const double weight : {1e308, std::numeric_limits<double>::denorm_min()}) {
    const auto shares = ddp::sharesOf(Divisor::kWeights, {{.weight = weight}, {.weight = weight}});
    ASSERT_FALSE(shares.ok());
    EXPECT_TRUE(contains(shares.status().message(), "by which a double cannot be divided"));
  }
  const ddp::Shares small = ddp::sharesOf(Divisor::kWeights, {{.weight = 1e-300}, {.weight = 3e-300}}).value();
  EXPECT_TRUE(std::isfinite(small.factor));
  EXPECT_DOUBLE_EQ(small.ofRanks[1], 0.75);
}

TEST(Shares, AreThoseOfTheWeights) {
  const ddp::Shares shares =
      ddp::sharesOf(Divisor::kWeights,
                    {{.weight = 0}, {.active = true, .weight = 3}, {.active = true, .weight = 1}, {.weight = 0}})
          .value();
  EXPECT_EQ(shares.ofRanks, (std::vector<double>{0, 0.75, 0.25, 0}));
  EXPECT_EQ(shares.factor, 1);
  EXPECT_EQ(shares.authority, 1);
  EXPECT_FALSE(shares.isEmpty);
  const ddp::Shares none = ddp::sharesOf(Divisor::kActiveRanks, {{}, {}}).value();
  EXPECT_TRUE(none.isEmpty);
  EXPECT_EQ(none.ofRanks, (std::vector<double>{0.5, 0.5}));
}

}  // namespace
}  // namespace treadle::test::shares_test
