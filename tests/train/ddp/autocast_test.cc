// Autocast is libtorch's, put back as it was; with GradScaler it trains what float32 trains.

#include <ATen/autocast_mode.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <treadle/amp.h>

#include <optional>
#include <thread>

#include "tests/train/ddp/net.h"

namespace treadle::test::autocast_test {
namespace {

using namespace ddp_test;

at::ScalarType typeOfProduct() { return at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); }

TEST(Autocast, ComputesInTheTypeAndPutsBackTheState) {
  EXPECT_EQ(typeOfProduct(), at::kFloat);
  const at::ScalarType before = at::autocast::get_autocast_dtype(at::kCPU);
  {
    Autocast outer({.dtype = at::kBFloat16});
    EXPECT_EQ(typeOfProduct(), at::kBFloat16);
    {
      Autocast inner(at::kHalf);
      EXPECT_EQ(typeOfProduct(), at::kHalf);
      {
        Autocast off({.enabled = false, .cacheWeights = false});
        EXPECT_EQ(typeOfProduct(), at::kFloat);
        EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
      }
      EXPECT_EQ(typeOfProduct(), at::kHalf);
      EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    }
    EXPECT_EQ(typeOfProduct(), at::kBFloat16);
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), before);
}

TEST(Autocast, IsOfOneThread) {
  Autocast guard;
  at::ScalarType elsewhere = at::kDouble;
  std::thread([&] { elsewhere = typeOfProduct(); }).join();
  EXPECT_EQ(elsewhere, at::kFloat);
}

TEST(Autocast, EndsWithAnExceptionAndRefusesOtherTypes) {
  try {
    Autocast guard;
    throw std::runtime_error("in the forward pass");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(typeOfProduct(), at::kFloat);
  }
  EXPECT_TRUE(contains(messageOf<ArgumentError>([] { Autocast guard(at::kDouble); }), "Double"));
  EXPECT_EQ(typeOfProduct(), at::kFloat);
}

// The casts of parameters are kept while the outermost guard lives, and no longer: a step is seen by the next pass.
TEST(Autocast, KeepsNoCastOfAParameterBeyondThePass) {
  at::Tensor weight = at::ones({2, 2}).requires_grad_();
  auto product = [&] {
    Autocast guard;
    return at::mm(at::ones({2, 2}), weight).sum().item<float>();
  };
  EXPECT_EQ(product(), 8);
  torch::NoGradGuard noGradients;
  weight.mul_(2);
  EXPECT_EQ(product(), 16);
}

// libtorch keeps one cast for each parameter, and does not look at its type.
TEST(Autocast, NestedGuardsOfOtherTypesCastParametersAnew) {
  const at::Tensor weight = at::ones({2, 2}).requires_grad_();
  auto typeOf = [&] { return at::mm(at::ones({2, 2}), weight).scalar_type(); };
  Autocast outer(at::kBFloat16);
  EXPECT_EQ(typeOf(), at::kBFloat16);
  {
    Autocast inner(at::kHalf);
    EXPECT_EQ(typeOf(), at::kHalf);
  }
  EXPECT_EQ(typeOf(), at::kBFloat16);
}

TEST(Autocast, CastsWithoutGradientsAreNotKept) {
  const at::Tensor weight = at::ones({2, 2}).requires_grad_();
  Autocast guard(at::kBFloat16);
  {
    torch::NoGradGuard noGradients;
    at::mm(at::ones({2, 2}), weight);
  }
  EXPECT_TRUE(at::mm(at::ones({2, 2}), weight).requires_grad());
}

constexpr uint64_t kBatches = 32;

// A network of two layers learns a function of its input, under noise of variance 0.04. All runs begin alike and see
// the same data.
struct Trained {
  double loss = 0;  // in float32, over all batches
  int skipped = 0;
};

Trained train(std::optional<at::ScalarType> type, int64_t growthInterval, const ProcessGroup& group) {
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  uint64_t seed = 50;
  for (at::Tensor& parameter : net->parameters()) parameter.data().copy_(random(parameter.sizes(), seed++) * 0.3);
  auto input = [](uint64_t number) { return random({32, 8}, 1000 + number).to(at::kFloat); };
  auto target = [&](uint64_t number) {
    return at::tanh(input(number).sum(1, true) / 2) + random({32, 1}, 2000 + number).to(at::kFloat) * 0.2;
  };
  auto lossOf = [&](uint64_t batch) {
    return torch::nn::functional::mse_loss(net->forward(input(batch)), target(batch));
  };
  DistributedDataParallel<torch::nn::Sequential> ddp(net, group);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  GradScaler scaler(group, {.growthInterval = growthInterval});
  Trained trained;
  for (uint64_t step = 0; step < 400; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      Autocast guard({.dtype = type.value_or(at::kBFloat16), .enabled = type.has_value()});
      loss = lossOf(2 * (step % (kBatches / 2)) + static_cast<uint64_t>(group.rank()));
    }
    scaler.scale(loss).backward();
    if (!scaler.step(optimizer)) ++trained.skipped;
    scaler.update();
  }
  torch::NoGradGuard noGradients;
  for (uint64_t batch = 0; batch < kBatches; ++batch) trained.loss += lossOf(batch).item<double>() / kBatches;
  return trained;
}

// Bounds: within 1% of the float32 loss, which is mostly the noise (untrained it is above 0.4). Where the scale grows
// until float16 overflows again and again, skipped batches are missing: within 10%.
TEST(MixedPrecision, TrainsToTheLossOfFloat32) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    const double exact = train({}, 2000, group).loss;
    EXPECT_LT(exact, 0.06);
    for (at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      const Trained mixed = train(type, 2000, group);
      EXPECT_NEAR(mixed.loss, exact, 0.01 * exact) << c10::toString(type);
      EXPECT_NE(mixed.loss, exact) << "it was computed in another type";
    }
    const Trained skipping = train(at::kHalf, 50, group);
    EXPECT_GT(skipping.skipped, 0);
    EXPECT_NEAR(skipping.loss, exact, 0.1 * exact);
  });
}

}  // namespace
}  // namespace treadle::test::autocast_test
