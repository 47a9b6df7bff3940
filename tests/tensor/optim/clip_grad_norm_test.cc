// Clipping gives the gradients that torch's gives, in `.grad` and over the workers of a context.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <treadle/autograd.h>
#include <treadle/optim.h>

#include <limits>

#include "tests/support/tensor_job.h"
#include "treadle/tensor/optim/gradient_power.h"

namespace treadle::test::clip_grad_norm_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

at::Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  return at::empty(sizes, at::kDouble).normal_(0, 1, at::make_generator<at::CPUGeneratorImpl>(seed));
}
at::Tensor withGradient(const at::Tensor& gradient) {
  at::Tensor parameter = at::zeros(gradient.sizes(), gradient.options().layout(at::kStrided)).requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}
std::vector<at::Tensor> severalWithGradients() {
  return {withGradient(random({7, 3}, 1)), at::zeros({2}, at::kDouble).requires_grad_(), withGradient(random({5}, 2)),
          withGradient(random({0}, 3)), withGradient(random({2, 2, 2}, 4))};
}

TEST(GradientPower, IsThatOfTheElementsForEachTypeAndLayout) {
  for (auto type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble})
    for (int64_t count : {0, 1, 7, 8, 9, 32 * 1024, 70'003}) {
      SCOPED_TRACE(std::string(c10::toString(type)) + " " + std::to_string(count));
      const at::Tensor values = random({count}, 5).to(type), exact = values.to(at::kDouble);
      const double sum = exact.abs().sum().item<double>(), squares = exact.square().sum().item<double>();
      EXPECT_NEAR(optim::gradientPower(values, 1), sum, 1e-13 * sum);
      EXPECT_NEAR(optim::gradientPower(values, 2), squares, 1e-13 * squares);
      EXPECT_EQ(optim::gradientPower(values, kInfinity), count == 0 ? 0 : exact.abs().max().item<double>());
    }
  const at::Tensor matrix = random({6, 9}, 6);
  EXPECT_EQ(optim::gradientPower(matrix.t().contiguous().t(), 2), optim::gradientPower(matrix, 2))
      << "strides do not change the order";
  const at::Tensor sparse = at::sparse_coo_tensor(at::tensor({0, 2, 0}, at::kLong).view({1, 3}),
                                                  at::tensor({1.0, -3.0, 4.0}, at::kDouble), at::IntArrayRef{4});
  EXPECT_EQ(optim::gradientPower(sparse, 2), 34) << "an element that is there twice is the sum";
  EXPECT_EQ(optim::gradientPower(at::Tensor(), 2), 0);
}

TEST(GradientPower, HasTheSameBitsWithAnyNumberOfThreads) {
  const at::Tensor values = random({300'000}, 7).to(at::kFloat);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const double alone = optim::gradientPower(values, 2);
  at::set_num_threads(4);
  EXPECT_EQ(optim::gradientPower(values, 2), alone);
  at::set_num_threads(threads);
}

TEST(GradientPower, ShowsInfinitiesAndNaN) {
  for (double norm : {1.0, 2.0, kInfinity})
    for (int64_t place : {0, 5, 39'999}) {
      at::Tensor values = random({40'000}, 8);
      values[place] = -kInfinity;
      EXPECT_EQ(optim::gradientPower(values, norm), kInfinity);
      values[place] = kNaN;
      values[place + (place == 0 ? 1 : -1)] = kInfinity;
      EXPECT_TRUE(std::isnan(optim::gradientPower(values, norm))) << norm << " at " << place;
    }
}

TEST(ClipGradNorm, GivesTheGradientsThatTorchGives) {
  for (double norm : {1.0, 2.0, kInfinity})
    for (double maxNorm : {0.5, 1e6}) {
      std::vector<at::Tensor> parameters = severalWithGradients(), torchs = severalWithGradients();
      torchs.erase(torchs.begin() + 3);  // torch has no largest element of an empty gradient
      const double expected = torch::nn::utils::clip_grad_norm_(torchs, maxNorm, norm);
      EXPECT_NEAR(clipGradNorm(parameters, maxNorm, {.normType = norm}), expected, 1e-12 * expected);
      parameters.erase(parameters.begin() + 3);
      for (size_t i : {0U, 2U, 3U}) EXPECT_TRUE(close(parameters[i].grad(), torchs[i].grad(), 1e-12)) << norm << i;
      EXPECT_FALSE(parameters[1].grad().defined());
    }
}

TEST(ClipGradNorm, LeavesSmallGradientsAndMeasuresWithoutALimit) {
  std::vector<at::Tensor> parameters = severalWithGradients();
  for (double maxNorm : {1e6, kInfinity}) EXPECT_GT(clipGradNorm(parameters, maxNorm), 1);
  EXPECT_TRUE(at::equal(parameters[0].grad(), random({7, 3}, 1)));
  EXPECT_EQ(clipGradNorm(std::vector<at::Tensor>{}, 1), 0);
}

TEST(ClipGradNorm, ScalesInPlaceEachTypeAndSparseOnes) {
  for (auto type : {at::kHalf, at::kBFloat16, at::kFloat}) {
    const at::Tensor gradient = at::tensor({3.0, 4.0}).to(type), parameter = withGradient(gradient);
    EXPECT_EQ(clipGradNorm({parameter}, 2.5), 5);
    EXPECT_TRUE(at::allclose(gradient.to(at::kDouble), at::tensor({1.5, 2.0}, at::kDouble), 1e-2)) << "the same tensor";
  }
  const at::Tensor sparse = at::sparse_coo_tensor(at::tensor({0, 2, 0}, at::kLong).view({1, 3}),
                                                  at::tensor({1.0, -3.0, 3.0}, at::kDouble), at::IntArrayRef{4});
  const at::Tensor parameter = withGradient(sparse);
  EXPECT_EQ(clipGradNorm({parameter}, 2.5), 5);
  EXPECT_TRUE(close(parameter.grad().to_dense(), at::tensor({2.0, 0.0, -1.5, 0.0}, at::kDouble), 1e-6));
}

TEST(ClipGradNorm, CountsAParameterWithTwoNamesOnce) {
  torch::nn::Linear linear(torch::nn::LinearOptions(2, 2).bias(false));
  linear->to(at::kDouble);
  struct Tied : torch::nn::Module {
    explicit Tied(const torch::nn::Linear& linear) {
      register_module("first", linear);
      register_module("second", linear);
    }
  } tied(linear);
  linear->weight.mutable_grad() = at::full({2, 2}, 2.0, at::kDouble);
  EXPECT_EQ(tied.parameters().size(), 2U);
  EXPECT_EQ(clipGradNorm(tied, 2), 4);
  EXPECT_TRUE(close(linear->weight.grad(), at::full({2, 2}, 1.0, at::kDouble), 1e-6));
}

TEST(ClipGradNorm, LeavesGradientsThatAreNotFinite) {
  for (double bad : {kInfinity, kNaN}) {
    std::vector<at::Tensor> parameters = severalWithGradients();
    parameters[2].mutable_grad()[1] = bad;
    EXPECT_FALSE(std::isfinite(clipGradNorm(parameters, 0.5)));
    EXPECT_TRUE(contains(messageOf<StateError>([&] { clipGradNorm(parameters, 0.5, {.errorIfNonFinite = true}); }),
                         std::isnan(bad) ? "nan" : "inf"));
    EXPECT_TRUE(at::equal(parameters[0].grad(), random({7, 3}, 1)));
  }
}

TEST(ClipGradNorm, RefusesBadArgumentsAndChangesNothing) {
  std::vector<at::Tensor> parameters = severalWithGradients();
  auto refuses = [&](double maxNorm, const ClipOptions& options, const char* part) {
    EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { clipGradNorm(parameters, maxNorm, options); }), part));
    EXPECT_TRUE(at::equal(parameters[0].grad(), random({7, 3}, 1)));
  };
  for (double maxNorm : {0.0, -1.0, kNaN}) refuses(maxNorm, {}, "positive");
  for (double norm : {0.0, 3.0, -kInfinity, kNaN}) refuses(1, {.normType = norm}, "norm 1, 2 or infinity");
  refuses(1, {.notCounted = {5}}, "parameter 5");
  parameters.push_back(withGradient(at::ones({2}, at::kComplexDouble)));
  refuses(1, {}, "Complex");
  parameters.back() = withGradient(at::ones({2}).to(at::kFloat8_e5m2));
  refuses(1, {}, "Float8");
}

// ---- over workers

RRef<at::Tensor> makeParameter(CallContext& call) {
  return call.worker().makeRRef(at::ones({3}, at::kDouble).requires_grad_());
}
at::Tensor product(const RRef<at::Tensor>& parameter, const at::Tensor& x) {
  return (parameter.localValue() * x).sum();
}

class ClipOverWorkers : public ::testing::Test {
 protected:
  // The gradient of the loss is `gradients`, by parameter: one here, two on B, one on C.
  at::Tensor loss() {
    at::Tensor loss = product(references[0], gradients[0]);
    for (size_t i = 1; i < 4; ++i) loss = loss + a.call<&product>(references[i].owner(), references[i], gradients[i]);
    return loss;
  }
  // What the owners' gradients are, seen by what a step of rate 1 changes.
  std::vector<at::Tensor> stepped(const AutogradContext& context) {
    std::vector<at::Tensor> changes;
    for (const auto& reference : references) changes.push_back(reference.toHere().detach().clone());
    optimizer.step(context);
    for (size_t i = 0; i < 4; ++i) changes[i] = changes[i] - references[i].toHere().detach();
    return changes;
  }

  TensorJob job{{"A", "B", "C"}, Functions().add<&makeParameter>("makeParameter").add<&product>("product")};
  Worker& a = job[0];
  std::vector<RRef<at::Tensor>> references = {a.makeRRef(at::ones({3}, at::kDouble).requires_grad_()),
                                              a.call<&makeParameter>("B"), a.call<&makeParameter>("B"),
                                              a.call<&makeParameter>("C")};
  std::vector<at::Tensor> gradients = {random({3}, 11), random({3}, 12), random({3}, 13), random({3}, 14)};
  DistributedOptimizer optimizer =
      DistributedOptimizer::make<torch::optim::SGD>(a, references, torch::optim::SGDOptions(1));
};

TEST_F(ClipOverWorkers, ClipsLikeOneProcess) {
  for (double norm : {1.0, 2.0, kInfinity})
    for (double maxNorm : {0.5, 1e6}) {
      std::vector<at::Tensor> alone;
      for (const at::Tensor& gradient : gradients) alone.push_back(withGradient(gradient.clone()));
      const double expected = clipGradNorm(alone, maxNorm, {.normType = norm});
      AutogradContext context(a);
      context.backward({loss()});
      const at::Tensor before = context.gradient(references[0].localValue()), copy = before.clone();
      EXPECT_EQ(optimizer.clipGradNorm(context, maxNorm, {.normType = norm}), expected) << "the same order of sums";
      EXPECT_TRUE(at::equal(before, copy)) << "what was handed out does not change";
      EXPECT_TRUE(at::equal(context.gradient(references[0].localValue()), alone[0].grad()));
      std::vector<at::Tensor> changes = stepped(context);
      for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(close(changes[i], alone[i].grad(), 1e-12)) << i;
    }
}

// Two replicas in one context: the one on C is scaled with the one here, and the norm is that of the others.
TEST_F(ClipOverWorkers, CountsReplicasOnceIfTold) {
  gradients[3] = gradients[0];
  AutogradContext context(a);
  context.backward({loss()});
  std::vector<double> powers = optimizer.gradientPowers(context, 2);
  ASSERT_EQ(powers.size(), 4U);
  EXPECT_EQ(powers[0], powers[3]);
  EXPECT_EQ(optimizer.clipGradNorm(context, 0.5, {.notCounted = {3}}), std::sqrt(powers[0] + powers[1] + powers[2]));
  std::vector<at::Tensor> changes = stepped(context);
  EXPECT_TRUE(close(changes[3], changes[0], 1e-15));
}

TEST_F(ClipOverWorkers, AContextThatNeverCameToAnOwnerHasNoGradientsThere) {
  AutogradContext context(a);
  context.backward({product(references[0], gradients[0])});
  EXPECT_EQ(optimizer.clipGradNorm(context, 1e-3, {.normType = kInfinity}), gradients[0].abs().max().item<double>());
  EXPECT_TRUE(
      close(context.gradient(references[0].localValue()).abs().max(), at::scalar_tensor(1e-3, at::kDouble), 1e-5));
}

TEST_F(ClipOverWorkers, ClipsSparseGradientsToo) {
  const at::Tensor rows = random({6, 2}, 15).requires_grad_();
  auto sparse = DistributedOptimizer::make<torch::optim::SGD>(a, {a.makeRRef(rows)}, torch::optim::SGDOptions(1));
  AutogradContext context(a);
  const at::Tensor looked = at::embedding(rows, at::tensor({1, 4, 1}, at::kLong), -1, false, /*sparse=*/true);
  context.backward({looked.sum()});
  EXPECT_TRUE(context.gradient(rows).is_sparse());
  EXPECT_EQ(sparse.clipGradNorm(context, 1, {.normType = 1}), 6);
  EXPECT_TRUE(close(context.gradient(rows).to_dense()[1], at::full({2}, 1.0 / 3, at::kDouble), 1e-6));
}

TEST_F(ClipOverWorkers, LeavesGradientsThatAreNotFiniteAnywhere) {
  gradients[3] = at::full({3}, kInfinity, at::kDouble);
  AutogradContext context(a);
  context.backward({loss()});
  EXPECT_EQ(optimizer.clipGradNorm(context, 0.5), kInfinity);
  messageOf<StateError>([&] { optimizer.clipGradNorm(context, 0.5, {.errorIfNonFinite = true}); });
  messageOf<ArgumentError>([&] { optimizer.clipGradNorm(context, 0.5, {.normType = 3}); });
  messageOf<ArgumentError>([&] { optimizer.clipGradNorm(context, -1); });
  messageOf<ArgumentError>([&] { optimizer.clipGradNorm(context, 0.5, {.notCounted = {4}}); });
  EXPECT_TRUE(at::equal(context.gradient(references[0].localValue()), gradients[0]));
}

TEST_F(ClipOverWorkers, HalvesOfClippingAreThereForOtherUses) {
  AutogradContext context(a);
  context.backward({loss()});
  EXPECT_EQ(optimizer.numbersOf({references[0].localValue(), at::ones({3})}), std::vector<size_t>{0});
  optimizer.scaleGradients(context, 0.25);
  std::vector<at::Tensor> changes = stepped(context);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(close(changes[i], gradients[i] / 4, 1e-12)) << i;
}

TEST_F(ClipOverWorkers, AScaleIsTakenOutAndInfinitiesAreFound) {
  for (bool overflowed : {false, true}) {
    if (overflowed) gradients[2][0] = kInfinity;
    AutogradContext context(a);
    context.backward({loss()});
    EXPECT_EQ(optimizer.unscaleGradients(context, 0.5), !overflowed) << "on B";
    EXPECT_TRUE(at::equal(context.gradient(references[0].localValue()), gradients[0] / 2));
  }
}

}  // namespace
}  // namespace treadle::test::clip_grad_norm_test
