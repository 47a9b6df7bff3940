// What travels in a distributed pass besides plain float64 tensors: mixed dtypes, sparse tensors and gradients, bags of
// embeddings, and steps with such gradients. In both modes, beside the same in one process.

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <treadle/autograd.h>
#include <treadle/optim.h>

#include "tests/support/tensor_job.h"

namespace treadle::test::pass_values_test {
namespace {

using Tensors = std::vector<at::Tensor>;

// Types are promoted in it, so gradients have to be cast back on the way.
Tensors mixed(const Tensors& given) {
  return {given[0] * given[1], given[1] + given[2].to(at::kDouble), given[3] * given[0]};
}
at::Tensor bagOf(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& offsets) {
  return std::get<0>(
      at::embedding_bag(table, indices, offsets, /*scale_grad_by_freq=*/false, /*mode=*/0, /*sparse=*/true));
}
at::Tensor bagThere(const RRef<at::Tensor>& table, const at::Tensor& indices, const at::Tensor& offsets) {
  return bagOf(table.localValue(), indices, offsets);
}
at::Tensor twice(const at::Tensor& x) { return x * 2; }
RRef<at::Tensor> makeTable(CallContext& call, const at::Tensor& value) {
  return call.worker().makeRRef(value.clone().requires_grad_());
}

class PassValues : public ::testing::TestWithParam<AutogradMode> {
 protected:
  static Functions functions() {
    return Functions()
        .add<&mixed>("mixed")
        .add<&bagOf>("bagOf")
        .add<&bagThere>("bagThere")
        .add<&twice>("twice")
        .add<&makeTable>("makeTable");
  }

  TensorJob job{{"A", "B"}, functions(), {GetParam()}};
  Worker& a = job[0];
  const at::Tensor indices = at::tensor({1, 4, 1, 0}, at::kLong), offsets = at::tensor({0, 3}, at::kLong);
};
INSTANTIATE_TEST_SUITE_P(Modes, PassValues, ::testing::Values(AutogradMode::kSmart, AutogradMode::kFast));

at::Tensor sumOf(const Tensors& tensors) {
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const at::Tensor& one : tensors) sum = sum + at::view_as_real(one.to(at::kComplexDouble)).pow(2).sum();
  return sum;
}

TEST_P(PassValues, OfSeveralTypesInOneMessage) {
  const Tensors given = {
      at::tensor({1.5, -2.0}, at::kFloat).requires_grad_(), at::tensor({0.25, 3.0}, at::kDouble).requires_grad_(),
      at::tensor({1.0, 0.5}, at::kDouble).to(at::kBFloat16).requires_grad_(),
      at::complex(at::tensor({1.0, 2.0}, at::kDouble), at::tensor({-1.0, 0.5}, at::kDouble)).requires_grad_()};
  const auto expected = torch::autograd::grad({sumOf(mixed(given))}, given);
  AutogradContext context(a);
  context.backward({sumOf(a.call<&mixed>("B", given))});
  for (size_t i = 0; i < given.size(); ++i) EXPECT_TRUE(close(context.gradient(given[i]), expected[i])) << i;
}

TEST_P(PassValues, BagsOfEmbeddingsHaveSparseGradients) {
  at::Tensor table = at::rand({5, 3}, at::kDouble).requires_grad_();
  at::Tensor expected = torch::autograd::grad({bagOf(table, indices, offsets).pow(2).sum()}, {table})[0].to_dense();
  AutogradContext context(a);
  context.backward({a.call<&bagOf>("B", table, indices, offsets).pow(2).sum()});
  EXPECT_TRUE(context.gradient(table).is_sparse());
  EXPECT_TRUE(close(context.gradient(table).to_dense(), expected));
}

TEST_P(PassValues, SparseTensorsThatRequireAGradient) {
  at::Tensor x = at::eye(3, at::kDouble).to_sparse().requires_grad_();
  AutogradContext context(a);
  at::Tensor y = a.call<&twice>("B", x);
  ASSERT_TRUE(y.is_sparse() && y.requires_grad());
  context.backward({y.to_dense().pow(2).sum()});
  EXPECT_TRUE(close(context.gradient(x).to_dense(), 8 * at::eye(3, at::kDouble)));
}

// Beside libtorch's own over the same steps.
template <class Optimizer, class Options>
void expectSameSteps(Worker& a, const Options& options, const at::Tensor& indices, const at::Tensor& offsets) {
  at::Tensor begun = at::arange(15, at::kDouble).reshape({5, 3}) / 7, local = begun.clone().requires_grad_();
  auto table = a.call<&makeTable>("B", begun);
  auto optimizer = DistributedOptimizer::make<Optimizer>(a, {table}, options);
  Optimizer alone({local}, options);
  for (int step = 0; step < 3; ++step) {
    AutogradContext context(a);
    context.backward({a.call<&bagThere>("B", table, indices, offsets).pow(2).sum()});
    optimizer.step(context);
    alone.zero_grad();
    bagOf(local, indices, offsets).pow(2).sum().backward();
    alone.step();
  }
  EXPECT_TRUE(close(table.toHere().detach(), local.detach()));
}

// The first momentum is as sparse as the gradient.
TEST_P(PassValues, StateOfSparseGradientsResumes) {
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  auto one = a.call<&makeTable>("B", at::ones({5, 3}, at::kDouble)),
       other = a.call<&makeTable>("B", at::ones({5, 3}, at::kDouble));
  auto straight = DistributedOptimizer::make<torch::optim::SGD>(a, {one}, options);
  auto step = [&](DistributedOptimizer& optimizer, const RRef<at::Tensor>& table) {
    AutogradContext context(a);
    context.backward({a.call<&bagThere>("B", table, indices, offsets).pow(2).sum()});
    optimizer.step(context);
  };
  step(straight, one), step(straight, one);
  auto before = DistributedOptimizer::make<torch::optim::SGD>(a, {other}, options);
  step(before, other);
  auto after = DistributedOptimizer::make<torch::optim::SGD>(a, {other}, options);
  after.load(before.state());
  step(after, other);
  EXPECT_TRUE(close(other.toHere().detach(), one.toHere().detach()));
}

TEST_P(PassValues, OptimizersStepWithSparseGradients) {
  expectSameSteps<torch::optim::SGD>(a, torch::optim::SGDOptions(0.1), indices, offsets);
  expectSameSteps<torch::optim::Adagrad>(a, torch::optim::AdagradOptions(0.1), indices, offsets);
  auto table = a.call<&makeTable>("B", at::ones({5, 3}, at::kDouble));
  auto adam = DistributedOptimizer::make<torch::optim::Adam>(a, {table}, torch::optim::AdamOptions(0.1));
  AutogradContext context(a);
  context.backward({a.call<&bagThere>("B", table, indices, offsets).sum()});
  EXPECT_TRUE(contains(messageOf<Error>([&] { adam.step(context); }), "sparse"));
}

}  // namespace
}  // namespace treadle::test::pass_values_test
