// Stored gradients belong to the context alone: no tensor that somebody else holds is taken over or written
// to.

#include "treadle/tensor/autograd/gradients.h"

#include <gtest/gtest.h>

#include "tests/tensor/autograd/loopback.h"
#include "treadle/tensor/autograd/accumulate.h"

namespace treadle::autograd::gradients_test {
namespace {

TEST(Gradients, HasNothingAtFirst) {
  Gradients gradients;
  EXPECT_FALSE(gradients.gradient(parameter({2})).defined());
  EXPECT_FALSE(gradients.gradient(at::Tensor()).defined());
  EXPECT_TRUE(gradients.all().empty());
}

TEST(Gradients, TakesOverWhatNobodyElseHolds) {
  Gradients gradients;
  at::Tensor leaf = parameter({2}), gradient = at::ones({2}, at::kDouble);
  void* memory = gradient.data_ptr();
  gradients.add(leaf, std::move(gradient));
  EXPECT_EQ(gradients.gradient(leaf).data_ptr(), memory);
}

// What a linear layer's weight gets is a transposed product.
TEST(Gradients, TakesOverAViewOfWhatNobodyElseHolds) {
  Gradients gradients;
  at::Tensor leaf = parameter({2, 3}), view = at::ones({2, 3}, at::kDouble).t().t();
  ASSERT_TRUE(view.is_view());
  void* memory = view.data_ptr();
  gradients.add(leaf, std::move(view));
  EXPECT_EQ(gradients.gradient(leaf).data_ptr(), memory);
  EXPECT_FALSE(gradients.gradient(leaf).is_view());
  gradients.add(leaf, at::ones({2, 3}, at::kDouble));
  EXPECT_EQ(gradients.gradient(leaf).data_ptr(), memory) << "and adds to it in place";
}

TEST(Gradients, CopiesWhatSomebodyElseHolds) {
  Gradients gradients;
  at::Tensor leaf = parameter({2}), other = parameter({2}), held = at::ones({2}, at::kDouble);
  gradients.add(leaf, at::Tensor(held));
  gradients.add(other, held.view({2}));  // the tensor is its own, the memory is not
  held.zero_();
  gradients.add(leaf, at::ones({2}, at::kDouble));
  EXPECT_TRUE(at::equal(gradients.gradient(leaf), at::full({2}, 2.0, at::kDouble)));
  EXPECT_TRUE(at::equal(gradients.gradient(other), at::ones({2}, at::kDouble)));
  EXPECT_TRUE(at::equal(held, at::zeros({2}, at::kDouble)));
}

TEST(Gradients, AreReplacedWhole) {
  Gradients gradients;
  at::Tensor leaf = parameter({2}), other = parameter({2}), held = at::ones({2}, at::kDouble);
  gradients.add(leaf, at::full({2}, 5.0, at::kDouble));
  const at::Tensor before = gradients.gradient(leaf);
  gradients.replace(leaf, at::Tensor(held));
  gradients.replace(other, at::Tensor(held));
  held.zero_();
  for (const at::Tensor& one : {leaf, other})
    EXPECT_TRUE(at::equal(gradients.gradient(one), at::ones({2}, at::kDouble)));
  EXPECT_TRUE(at::equal(before, at::full({2}, 5.0, at::kDouble)));
  EXPECT_EQ(gradients.all().size(), 2U);
}

TEST(Gradients, HaveTheLayoutOfTheirLeaf) {
  Gradients gradients;
  at::Tensor leaf = at::randn({3, 2}, at::kDouble).t().requires_grad_(true);
  gradients.add(leaf, at::ones({1}, at::kDouble).expand({2, 3}));
  EXPECT_EQ(gradients.gradient(leaf).strides(), leaf.strides());
  EXPECT_TRUE(at::equal(gradients.gradient(leaf), at::ones({2, 3}, at::kDouble)));
  at::Tensor rowMajor = parameter({2, 3}), columnMajor = at::empty_strided({2, 3}, {1, 2}, at::kDouble);
  columnMajor.fill_(3);
  gradients.add(rowMajor, std::move(columnMajor));
  EXPECT_TRUE(gradients.gradient(rowMajor).is_contiguous());
}

TEST(Gradients, AddInPlaceOnlyWhileNobodyLooks) {
  Gradients gradients;
  at::Tensor leaf = parameter({2});
  gradients.add(leaf, at::ones({2}, at::kDouble));
  void* memory = gradients.gradient(leaf).data_ptr();
  gradients.add(leaf, at::ones({2}, at::kDouble));
  EXPECT_EQ(gradients.gradient(leaf).data_ptr(), memory);
  at::Tensor seen = gradients.gradient(leaf);
  gradients.add(leaf, at::ones({2}, at::kDouble));
  EXPECT_TRUE(at::equal(seen, at::full({2}, 2.0, at::kDouble)));
  EXPECT_TRUE(at::equal(gradients.gradient(leaf), at::full({2}, 3.0, at::kDouble)));
}

TEST(Gradients, SparseOnesAddUpAlsoWithDenseOnes) {
  Gradients gradients;
  at::Tensor leaf = parameter({4, 2});
  auto sparse = [](int64_t row) {
    return at::sparse_coo_tensor(at::tensor({row}, at::kLong).view({1, 1}), at::ones({1, 2}, at::kDouble), {4, 2});
  };
  gradients.add(leaf, sparse(1));
  gradients.add(leaf, sparse(3));
  EXPECT_TRUE(gradients.gradient(leaf).is_sparse());
  gradients.add(leaf, at::ones({4, 2}, at::kDouble));
  at::Tensor expected = at::ones({4, 2}, at::kDouble);
  expected[1] += 1;
  expected[3] += 1;
  EXPECT_TRUE(at::equal(gradients.gradient(leaf), expected));
}

TEST(Gradients, KeepTheirLeavesAliveAndInOrder) {
  Gradients gradients;
  for (int i = 0; i < 3; ++i) gradients.add(parameter({i + 1}), at::ones({i + 1}, at::kDouble));
  auto all = gradients.all();
  ASSERT_EQ(all.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(all[static_cast<size_t>(i)].first.numel(), i + 1);
  gradients.clear();
  EXPECT_TRUE(gradients.all().empty());
}

TEST(AddGradient, NeverWritesToMemoryThatIsSeenElsewhere) {
  at::NoGradGuard noGrad;
  at::Tensor held = at::ones({2}), sum = held;
  addGradient(sum, at::ones({2}));
  EXPECT_TRUE(at::equal(held, at::ones({2})));
  sum = held.view({2});
  addGradient(sum, at::ones({2}));
  EXPECT_TRUE(at::equal(held, at::ones({2})));
  {
    // What kernels make below autograd: a view that does not hold its base, so that nothing but its strides
    // tells.
    at::AutoDispatchBelowADInplaceOrView below;
    sum = at::ones({1}).expand({2});
  }
  addGradient(sum, at::ones({2}));
  EXPECT_TRUE(at::equal(sum, at::full({2}, 2.0)));
  addGradient(sum, at::Tensor());
  EXPECT_TRUE(at::equal(sum, at::full({2}, 2.0)));
}

TEST(AddGradient, AddsSparseOnesToAPartOfATensor) {
  const at::NoGradGuard noGrad;
  const at::Tensor index = at::tensor({0, 1}, at::kLong), one = at::ones({1});
  const auto whole = [] { return at::zeros({12}); };
  at::Tensor sum = whole().narrow(0, 3, 4);
  ASSERT_TRUE(isUnshared(sum));
  addGradient(sum, at::sparse_coo_tensor(index.slice(0, 1).view({1, 1}), one, {4}));
  EXPECT_TRUE(at::equal(sum, at::tensor({0, 1, 0, 0}, at::kFloat)));
  sum = whole().narrow(0, 4, 4).view({2, 2});
  addGradient(sum, at::sparse_coo_tensor(index.view({2, 1}), one, {2, 2}));
  EXPECT_TRUE(at::equal(sum, at::tensor({0, 1, 0, 0}, at::kFloat).view({2, 2})));
  sum = whole().narrow(0, 4, 4).view({2, 2});
  addGradient(sum, at::sparse_coo_tensor(index.slice(0, 1).view({1, 1}), at::ones({1, 2}), {2, 2}));
  EXPECT_TRUE(at::equal(sum, at::tensor({0, 0, 1, 1}, at::kFloat).view({2, 2})));
}

}  // namespace
}  // namespace treadle::autograd::gradients_test
