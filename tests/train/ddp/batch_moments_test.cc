// Moments of parts of a batch, merged, are those of the whole batch.

#include "treadle/train/ddp/batch_moments.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/var_mean.h>

#include "tests/train/ddp/net.h"

namespace treadle::test::batch_moments_test {
namespace {

TEST(BatchMoments, AreMergedInOrderWithoutPartsThatHaveNoValues) {
  const at::Tensor values = ddp_test::random({7, 2}, 5) + 100;
  auto packedRows = [&](int64_t from, int64_t to) { return ddp::packed(ddp::momentsOf(values.slice(0, from, to))); };
  const ddp::BatchMoments whole = ddp::merged(
      at::stack({packedRows(0, 0), packedRows(0, 1), packedRows(1, 1), packedRows(1, 5), packedRows(5, 7)}));
  EXPECT_EQ(whole.count, 7);
  const auto [variance, mean] = at::var_mean(values, {0}, /*correction=*/1);
  for (size_t c = 0; c < 2; ++c) {
    const auto channel = static_cast<int64_t>(c);
    EXPECT_NEAR(whole.mean[c], mean[channel].item<double>(), 1e-12);
    EXPECT_NEAR(whole.unbiasedVariance(c), variance[channel].item<double>(), 1e-12);
  }
  const ddp::BatchMoments none = ddp::merged(at::stack({packedRows(3, 3), packedRows(0, 0)}));
  EXPECT_EQ(none.count, 0);
  EXPECT_EQ(none.variance(0), 0);
}

}  // namespace
}  // namespace treadle::test::batch_moments_test
