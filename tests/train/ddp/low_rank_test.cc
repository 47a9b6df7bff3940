// The arithmetic of PowerSGD: what is promised of it, on matrices of all kinds.

#include "treadle/train/ddp/low_rank.h"

#include "tests/support/seeds.h"
#include "tests/train/ddp/hooks.h"

namespace treadle::test::low_rank_test {
namespace {

using namespace ddp_test;

double toleranceOf(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-12 : 1e-5; }

// Some are nearly parallel to the one before, and magnitudes differ by 1e24.
at::Tensor rowsOfAllKinds(Random& random, int64_t rows, int64_t columns, at::ScalarType dtype) {
  at::Tensor all = ddp_test::random({rows, columns}, random());
  for (int64_t row = 1; row < rows; ++row) {
    const uint64_t kind = pick(random, 4);
    at::Tensor own = all[row];
    if (kind == 0) own.copy_(all[row - 1] + 1e-3 * all[row - 1].norm() * own);
    if (kind == 1) own.mul_(1e-12);
    if (kind == 2) own.mul_(1e12);
  }
  return all.to(dtype);
}

TEST(LowRank, RowsBecomeOrthonormalAndKeepTheirSpan) {
  forSeeds(30, [](Random& random) {
    const at::ScalarType dtype = pick(random, 2) == 0 ? at::kFloat : at::kDouble;
    const auto rows = static_cast<int64_t>(1 + pick(random, 6));
    const auto columns = rows + static_cast<int64_t>(pick(random, 30));
    const at::Tensor before = rowsOfAllKinds(random, rows, columns, dtype);
    at::Tensor after = before.clone();
    EXPECT_EQ(ddp::orthonormalize(after), 0);
    EXPECT_TRUE(close(after.mm(after.t()), at::eye(rows, dtype), toleranceOf(dtype)));
    const at::Tensor lengths = before.norm(2, {1}, /*keepdim=*/true);
    EXPECT_TRUE(close(before.mm(after.t()).mm(after) / lengths, before / lengths, toleranceOf(dtype)));
  });
}

TEST(LowRank, RowsThatDependOnOthersBecomeZeroAndAreReplaced) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    at::Tensor rows = random({5, 9}, 3).to(dtype);
    rows[1].copy_(rows[0] * 1e-20);
    rows[3].zero_();
    rows[4].copy_(rows[0] - 3 * rows[2]);
    at::Tensor completed = rows.clone(), again = rows.clone();
    EXPECT_EQ(ddp::orthonormalize(rows), 3);
    for (const int64_t row : {1, 3, 4}) EXPECT_EQ(rows[row].count_nonzero().item<int64_t>(), 0) << row;
    ddp::completeRandomly(completed, 7);
    EXPECT_TRUE(close(completed.mm(completed.t()), at::eye(5, dtype), toleranceOf(dtype)));
    EXPECT_TRUE(close(rows.mm(completed.t()).mm(completed), rows, toleranceOf(dtype))) << "the span stays";
    ddp::completeRandomly(again, 7);
    EXPECT_TRUE(haveEqualBits(completed, again));
  }
}

TEST(LowRank, ProductsAreThoseOfFloat64) {
  const at::Tensor p = random({3, 70}, 1), q = random({3, 500}, 2);
  at::Tensor product = at::empty({70, 500}, at::kDouble), single = at::empty({70, 500}, at::kFloat);
  ddp::multiplyTransposed(p, q, product);
  EXPECT_TRUE(close(product, p.t().mm(q), 1e-13));
  ddp::multiplyTransposed(p.to(at::kFloat), q.to(at::kFloat), single);
  EXPECT_TRUE(close(single.to(at::kDouble), p.t().mm(q), 1e-5));
}

TEST(LowRank, RandomNumbersAreSpreadAndDifferBySeed) {
  at::Tensor rows = at::zeros({2, 10000}, at::kDouble), others = at::zeros({2, 10000}, at::kDouble);
  for (const int64_t row : {0, 1}) {
    ddp::fillRandomly(rows, row, 1);
    ddp::fillRandomly(others, row, 2);
  }
  EXPECT_LT(rows.abs().max().item<double>(), 1.0000001);
  EXPECT_NEAR(rows.mean().item<double>(), 0, 0.02);
  EXPECT_NEAR(rows.square().mean().item<double>(), 1.0 / 3, 0.02);
  EXPECT_FALSE(at::equal(rows[0], rows[1]));
  EXPECT_FALSE(at::equal(rows, others));
}

}  // namespace
}  // namespace treadle::test::low_rank_test
