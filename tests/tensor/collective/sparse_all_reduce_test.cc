// Sums of sparse tensors against the dense sum in one process.

#include <ATen/ATen.h>
#include <treadle/group.h>

#include "tests/support/seeds.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::sparse_all_reduce_test {
namespace {

struct Form {
  std::vector<int64_t> sizes;
  int64_t sparseDims;
};

// `count` elements or rows at random places, some of them twice; small whole numbers, which every type adds exactly.
at::Tensor randomSparse(const Form& form, int64_t count, at::ScalarType type, Random& random) {
  at::Tensor indices = at::zeros({form.sparseDims, count}, at::kLong);
  for (int64_t dim = 0; dim < form.sparseDims; ++dim)
    for (int64_t i = 0; i < count; ++i)
      indices[dim][i] = static_cast<int64_t>(pick(random, static_cast<uint64_t>(form.sizes[static_cast<size_t>(dim)])));
  std::vector<int64_t> valueSizes = {count};
  valueSizes.insert(valueSizes.end(), form.sizes.begin() + form.sparseDims, form.sizes.end());
  at::Tensor values = at::zeros(valueSizes, at::kDouble);
  for (double& value : std::span(values.mutable_data_ptr<double>(), static_cast<size_t>(values.numel())))
    value = static_cast<double>(pick(random, 8));
  return at::sparse_coo_tensor(indices, values.to(type), form.sizes);
}

// What sparseAllReduce gives each member for these inputs.
std::vector<at::Tensor> sumsOf(TensorJob& job, const std::vector<at::Tensor>& inputs, ReduceOp op = ReduceOp::kSum,
                               const GroupOptions& options = {}) {
  std::vector<at::Tensor> sums(inputs.size());
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    const ProcessGroup group = ProcessGroup::make(worker, job.names(), options);
    sums[rank] = sparseAllReduce(group, inputs[rank], op).wait();
  });
  return sums;
}

at::Tensor denseSum(const std::vector<at::Tensor>& inputs) {
  at::Tensor sum = at::zeros(inputs[0].sizes(), at::kDouble);
  for (const at::Tensor& input : inputs)
    sum += at::sparse_coo_tensor(input._indices(), input._values().to(at::kDouble), input.sizes()).to_dense();
  return sum;
}

// The indices of rows of one sparse dimension.
at::Tensor rowsAt(std::initializer_list<int64_t> rows) {
  return at::tensor(at::IntArrayRef(rows), at::kLong).view({1, static_cast<int64_t>(rows.size())});
}

at::Tensor unchecked(const at::Tensor& indices, const at::Tensor& values, at::IntArrayRef sizes) {
  return at::_sparse_coo_tensor_unsafe(indices, values, sizes, values.options().layout(at::kSparse));
}

// The rows that any input has, each once and in order.
at::Tensor unionOf(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> marks;
  for (const at::Tensor& input : inputs) {
    const at::IntArrayRef rows = input.sizes().slice(0, static_cast<size_t>(input.sparse_dim()));
    marks.push_back(at::sparse_coo_tensor(input._indices(), at::ones({input._nnz()}), rows).to_dense());
  }
  return at::stack(marks).sum(0).nonzero().t();
}

void expectSum(const std::vector<at::Tensor>& sums, const std::vector<at::Tensor>& inputs, const at::Tensor& dense) {
  for (const at::Tensor& sum : sums) {
    ASSERT_EQ(sum.layout(), at::kSparse);
    EXPECT_TRUE(sum.is_coalesced());
    EXPECT_EQ(sum.scalar_type(), inputs[0].scalar_type());
    EXPECT_EQ(sum.sparse_dim(), inputs[0].sparse_dim());
    EXPECT_TRUE(at::equal(sum.to_dense(), dense.to(sum.scalar_type())));
    EXPECT_TRUE(at::equal(sum._indices(), unionOf(inputs)));
    EXPECT_TRUE(at::equal(sum._values(), sums[0]._values()));
  }
}

const Form kForms[] = {{{40}, 1}, {{40, 3}, 1}, {{6, 7}, 2}, {{6, 7, 2, 2}, 2}, {{3, 4, 5}, 3}, {{5, 0}, 1}};

class SparseTensors : public ::testing::TestWithParam<int> {
 protected:
  static std::vector<std::string> names() {
    std::vector<std::string> names;
    for (int rank = 0; rank < GetParam(); ++rank) names.push_back("r" + std::to_string(rank));
    return names;
  }

  TensorJob job_{names()};
  Random random_{seedOfRun()};
};

TEST_P(SparseTensors, SumAsDenseOnesDo) {
  for (const Form& form : kForms)
    for (at::ScalarType type : {at::kFloat, at::kDouble, at::kLong, at::kHalf, at::kBFloat16, at::kInt})
      for (int64_t most : {0, 5, 60}) {
        SCOPED_TRACE(std::string(c10::toString(type)) + ", up to " + std::to_string(most));
        std::vector<at::Tensor> inputs;
        for (int rank = 0; rank < GetParam(); ++rank)
          inputs.push_back(
              randomSparse(form, static_cast<int64_t>(pick(random_, static_cast<uint64_t>(most) + 1)), type, random_));
        expectSum(sumsOf(job_, inputs), inputs, denseSum(inputs));
      }
}

TEST_P(SparseTensors, AverageOverAllMembers) {
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < GetParam(); ++rank) inputs.push_back(randomSparse({{40, 3}, 1}, 10, at::kDouble, random_));
  expectSum(sumsOf(job_, inputs, ReduceOp::kAverage), inputs, denseSum(inputs) / GetParam());
}

// Every row of every member.
TEST_P(SparseTensors, MayBeDense) {
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < GetParam(); ++rank)
    inputs.push_back((at::arange(3000, at::kDouble).view({1000, 3}) + rank + 1).to_sparse(1));
  expectSum(sumsOf(job_, inputs), inputs, denseSum(inputs));
  expectSum(sumsOf(job_, inputs, ReduceOp::kSum, {.smallBytes = 0, .chunkBytes = 256}), inputs, denseSum(inputs));
}

INSTANTIATE_TEST_SUITE_P(Sparse, SparseTensors, ::testing::Values(1, 2, 3, 4, 5));

class SparseTensor : public ::testing::Test {
 protected:
  TensorJob job_{{"r0", "r1"}};
  const at::Tensor sparse_ = at::sparse_coo_tensor(rowsAt({3, 1, 3}), at::ones({3, 2}), {4, 2});
};

TEST_F(SparseTensor, StaysAsItIs) {
  const at::Tensor indices = sparse_._indices().clone(), values = sparse_._values().clone();
  const std::vector<at::Tensor> sums = sumsOf(job_, {sparse_, sparse_});
  EXPECT_FALSE(sparse_.is_coalesced());
  EXPECT_TRUE(at::equal(sparse_._indices(), indices) && at::equal(sparse_._values(), values));
  EXPECT_TRUE(at::equal(sums[0].to_dense(), at::tensor({0, 0, 2, 2, 0, 0, 4, 4}, at::kFloat).view({4, 2})));
}

// The input is read before the call returns.
TEST_F(SparseTensor, MayBeChangedOnceTheCallHasReturned) {
  job_.onAll([&](Worker& worker) {
    const ProcessGroup group = ProcessGroup::make(worker, job_.names());
    at::Tensor mine = at::sparse_coo_tensor(rowsAt({3, 1, 3}), at::ones({3, 2}), {4, 2});
    Future<at::Tensor> sum = sparseAllReduce(group, mine);
    mine._values().fill_(100);
    EXPECT_EQ(sum.wait().to_dense().sum().item<float>(), 12);
  });
}

// 2048 + 1 is no float16: a member that rounded its two parts would lose one.
TEST_F(SparseTensor, IsRoundedOnceInHalves) {
  const at::Tensor twice = rowsAt({0, 0});
  const std::vector<at::Tensor> inputs = {at::sparse_coo_tensor(twice, at::tensor({2048.0, 1.0}).to(at::kHalf), {5}),
                                          at::sparse_coo_tensor(twice, at::tensor({1.0, 1.0}).to(at::kHalf), {5})};
  for (const at::Tensor& sum : sumsOf(job_, inputs)) EXPECT_EQ(sum._values().item<float>(), 2052);
}

TEST_F(SparseTensor, MayBeAComplexOrAStridedView) {
  const at::Tensor wide = at::full({2, 2}, c10::complex<double>(1, 2), at::kComplexDouble);
  const at::Tensor input = unchecked(rowsAt({0, 2}), wide.conj().t(), {4, 2});
  for (const at::Tensor& sum : sumsOf(job_, {input, input}))
    EXPECT_TRUE(at::equal(sum._values(), at::full({2, 2}, c10::complex<double>(2, -4), at::kComplexDouble)));
}

// A tensor without sparse dimensions is one row.
TEST_F(SparseTensor, MayHaveNoSparseDimension) {
  const at::Tensor input = at::sparse_coo_tensor(at::zeros({0, 2}, at::kLong), at::ones({2, 3}), {3});
  for (const at::Tensor& sum : sumsOf(job_, {input, input})) {
    EXPECT_EQ(sum._nnz(), 1);
    EXPECT_TRUE(at::equal(sum._values(), at::full({1, 3}, 4.0f)));
  }
}

TEST_F(SparseTensor, LeavesTheGraphOfAGradient) {
  at::Tensor weight = at::ones({5, 2}).requires_grad_();
  at::embedding(weight, at::tensor({1, 4, 1}, at::kLong), -1, false, /*sparse=*/true).sum().backward();
  ASSERT_EQ(weight.grad().layout(), at::kSparse);
  for (const at::Tensor& sum : sumsOf(job_, {weight.grad(), weight.grad()})) {
    EXPECT_FALSE(sum.requires_grad());
    EXPECT_TRUE(at::equal(sum.to_dense().select(1, 0), at::tensor({0.0f, 4.0f, 0.0f, 0.0f, 2.0f})));
  }
}

TEST_F(SparseTensor, ThatMembersGiveInOtherShapesFailsOnAllAndNamesThem) {
  job_.onAll([&](Worker& worker) {
    const ProcessGroup group = ProcessGroup::make(worker, job_.names());
    const bool first = worker.self().rank == 0;
    const std::string why = messageOf<ArgumentError>([&] {
      const std::vector<int64_t> sizes = first ? std::vector<int64_t>{4, 2} : std::vector<int64_t>{2, 4};
      sparseAllReduce(group, at::zeros(sizes).to_sparse(1)).wait();
    });
    for (const char* part : {"worker 'r0' (rank 0) calls sparseAllReduce (sum) of 8 float32 in [4, 2]",
                             "worker 'r1' (rank 1) calls sparseAllReduce (sum) of 8 float32 in [2, 4]"})
      EXPECT_TRUE(contains(why, part));
    EXPECT_EQ(sparseAllReduce(group, sparse_).wait()._nnz(), 2) << "the group goes on";
  });
}

TEST_F(SparseTensor, ThatCannotBeSummedIsRefused) {
  const ProcessGroup group = ProcessGroup::make(job_[0], {"r0"});
  const auto refused = [&](const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) {
    return messageOf<ArgumentError>([&] { sparseAllReduce(group, tensor, op).wait(); });
  };
  EXPECT_TRUE(contains(refused(at::ones({2})), "sparse tensors (COO)"));
  EXPECT_TRUE(contains(refused(at::ones({2, 2}).to_sparse_csr()), "sparse tensors (COO)"));
  EXPECT_TRUE(contains(refused(at::Tensor()), "sparse tensors (COO)"));
  EXPECT_TRUE(contains(refused(sparse_, ReduceOp::kMin), "no min"));
  EXPECT_TRUE(contains(refused(sparse_.to(at::kBool)), "bool have no sum"));
  for (int64_t index : {-1, 4}) {
    const at::Tensor wrong = unchecked(rowsAt({index}), at::ones({1, 2}), {4, 2});
    EXPECT_TRUE(contains(refused(wrong), "the index " + std::to_string(index) +
                                             " in dimension 0 is outside of [4, 2] with 1 sparse dimension"));
  }
}

}  // namespace
}  // namespace treadle::test::sparse_all_reduce_test
