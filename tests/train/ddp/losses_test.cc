// The losses of 50 steps on several ranks are those of one process on the whole batch: up to rounding without a hook,
// and within the bounds that their headers state with a lossy hook, LocalSgd or Autocast.

#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <treadle/amp.h>
#include <treadle/nn.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/seeds.h"
#include "tests/train/ddp/hooks.h"
#include "tests/train/ddp/optimizers.h"

namespace treadle::test::losses_test {
namespace {

using namespace ddp_test;

constexpr int kSteps = 50, kLast = 10, kBatches = 5;
constexpr int64_t kSamples = 16, kInputs = 16, kHidden = 32, kOutputs = 8;
constexpr double kRate = 0.1;

// Its matrices are large enough for PowerSGD, and its vectors for top-k.
struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(uint64_t seed, at::ScalarType dtype = at::kDouble) {
    const auto add = [&](const char* name, const at::Tensor& value) {
      return register_parameter(name, value.to(dtype));
    };
    first = add("first", random({kInputs, kHidden}, seed) / std::sqrt(kInputs));
    firstBias = add("first_bias", at::zeros({kHidden}));
    last = add("last", random({kHidden, kOutputs}, seed + 1) / std::sqrt(kHidden));
    lastBias = add("last_bias", at::zeros({kOutputs}));
  }
  at::Tensor forward(const at::Tensor& input) { return at::tanh(input.mm(first) + firstBias).mm(last) + lastBias; }

  at::Tensor first, firstBias, last, lastBias;
};
TORCH_MODULE(Mlp);

// The ranks learn one function, and each has an offset of its own added to it. The offsets add up to zero. So a rank's
// gradient has large parts that its average does not have: a rank that trained by its own, or by the largest parts
// alone, would learn something else.
class Task {
 public:
  Task(int size, Random& draw) : size(size), seed_(1000 * pick(draw, 1 << 20)) {
    function_ = random({kInputs, kOutputs}, seed_ + 2) / std::sqrt(kInputs);
    offsets_ = random({size, kOutputs}, seed_ + 3);
    offsets_ -= offsets_.mean(0);
  }
  // All replicas begin with it.
  Mlp net(at::ScalarType dtype = at::kDouble) const { return Mlp(seed_, dtype); }
  at::Tensor loss(MlpImpl& net, int rank, int step) const { return lossOn(net, input(rank, step), target(rank, step)); }
  // The loss of one process, by one forward on the samples of all ranks.
  at::Tensor lossOfAll(MlpImpl& net, int step) const {
    std::vector<at::Tensor> inputs, targets;
    for (int rank = 0; rank < size; ++rank) {
      inputs.push_back(input(rank, step));
      targets.push_back(target(rank, step));
    }
    return lossOn(net, at::cat(inputs), at::cat(targets));
  }

  const int size;

 private:
  at::Tensor input(int rank, int step) const {
    return random({kSamples, kInputs}, seed_ + 100 + static_cast<uint64_t>(10 * (step % kBatches) + rank));
  }
  at::Tensor target(int rank, int step) const { return at::sin(input(rank, step).mm(function_)) + offsets_[rank]; }
  static at::Tensor lossOn(MlpImpl& net, const at::Tensor& input, const at::Tensor& target) {
    const at::ScalarType dtype = net.first.scalar_type();
    return torch::nn::functional::mse_loss(net.forward(input.to(dtype)), target.to(dtype));
  }

  const uint64_t seed_;
  at::Tensor function_, offsets_;
};

using Losses = std::vector<double>;

template <class Optimizer, class Options>
Losses lossesAlone(const Task& task, const Options& options) {
  Mlp net = task.net();
  Optimizer optimizer(net->parameters(), options);
  Losses losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = task.lossOfAll(*net, step);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

Losses lossesAlone(const Task& task) { return lossesAlone<torch::optim::SGD>(task, torch::optim::SGDOptions(kRate)); }

// Ranks have as many samples, so the mean of their losses is that of the whole batch.
Losses meanOverRanks(int size, const std::function<Losses(Worker&, const ProcessGroup&)>& train) {
  TensorJob job(ranks(size));
  std::vector<Losses> all(static_cast<size_t>(size));
  job.onAll([&](Worker& worker) {
    all[static_cast<size_t>(worker.self().rank)] = train(worker, ProcessGroup::make(worker, job.names()));
  });
  Losses mean(kSteps);
  for (const Losses& losses : all)
    for (size_t step = 0; step < kSteps; ++step) mean[step] += losses.at(step) / size;
  return mean;
}

double lastOf(const Losses& losses) { return std::accumulate(losses.end() - kLast, losses.end(), 0.0) / kLast; }

// The largest difference in a step, as a part of the first loss; infinite for losses that are NaN.
double distanceOf(const Losses& losses, const Losses& alone) {
  double largest = 0;
  for (size_t step = 0; step < kSteps; ++step) {
    if (!std::isfinite(losses[step])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(losses[step] - alone[step]));
  }
  return largest / alone.front();
}

// The difference at the end, as a part of what one process has learned.
double distanceAtTheEndOf(const Losses& losses, const Losses& alone) {
  return std::abs(lastOf(losses) - lastOf(alone)) / (alone.front() - lastOf(alone));
}

// Losses that do not change would be equal too.
void expectThatItLearns(const Losses& alone) { EXPECT_LT(lastOf(alone), 0.8 * alone.front()); }

template <class Optimizer>
class LossesOf : public ::testing::Test {
 protected:
  // `train(task, worker, group)` returns the losses of a rank.
  template <class Train>
  static void expectThoseOfOneProcess(Train train) {
    for (const int size : {1, 2, 3, 5}) {
      Random draw(seedOfRun());
      const Task task(size, draw);
      const Losses alone = lossesAlone<Optimizer>(task, OptimizerWith<Optimizer>::options());
      expectThatItLearns(alone);
      const Losses losses =
          meanOverRanks(size, [&](Worker& worker, const ProcessGroup& group) { return train(task, worker, group); });
      for (size_t step = 0; step < kSteps; ++step)
        EXPECT_NEAR(losses[step], alone[step], 1e-10 * alone[step]) << size << " ranks, step " << step;
    }
  }
};
using SgdAndAdamW = ::testing::Types<torch::optim::SGD, torch::optim::AdamW>;
TYPED_TEST_SUITE(LossesOf, SgdAndAdamW);

// By plain passes. All ranks end with the same bits.
template <class Optimizer, class Options>
Losses trainRank(const Task& task, const ProcessGroup& group, const Options& optimizerOptions,
                 const DdpOptions& options) {
  Mlp net = task.net();
  DistributedDataParallel<Mlp> ddp(net, group, options);
  Optimizer optimizer(net->parameters(), optimizerOptions);
  Losses losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = task.loss(*net, group.rank(), step);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  ddp.verifyReplicas();
  return losses;
}

TYPED_TEST(LossesOf, PlainPassesAreThoseOfOneProcess) {
  this->expectThoseOfOneProcess([](const Task& task, Worker&, const ProcessGroup& group) {
    return trainRank<TypeParam>(task, group, OptimizerWith<TypeParam>::options(), smallBuckets());
  });
}

TYPED_TEST(LossesOf, PassesWithASummationServiceAreThoseOfOneProcess) {
  this->expectThoseOfOneProcess([](const Task& task, Worker&, const ProcessGroup& group) {
    DdpOptions options = smallBuckets();
    options.averageBy = AverageBy::kService;
    return trainRank<TypeParam>(task, group, OptimizerWith<TypeParam>::options(), options);
  });
}

TYPED_TEST(LossesOf, DistributedPassesAreThoseOfOneProcess) {
  this->expectThoseOfOneProcess([](const Task& task, Worker& worker, const ProcessGroup& group) {
    Mlp net = task.net();
    DistributedDataParallel<Mlp> ddp(net, group, smallBuckets());
    auto optimizer =
        DistributedOptimizer::make<TypeParam>(worker, parameterRefs(worker, *net), OptimizerWith<TypeParam>::options());
    Losses losses;
    for (int step = 0; step < kSteps; ++step) {
      AutogradContext context(worker);
      const at::Tensor loss = task.loss(*net, group.rank(), step);
      context.backward({loss});
      optimizer.step(context);
      losses.push_back(loss.item<double>());
    }
    ddp.verifyReplicas();
    return losses;
  });
}

TYPED_TEST(LossesOf, StepsWithinThePassAreThoseOfOneProcess) {
  this->expectThoseOfOneProcess([](const Task& task, Worker&, const ProcessGroup& group) {
    Mlp net = task.net();
    DdpOptions options = smallBuckets();
    options.optimizerInBackward = std::make_shared<TypeParam>(net->parameters(), OptimizerWith<TypeParam>::options());
    DistributedDataParallel<Mlp> ddp(net, group, options);
    Losses losses;
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor loss = task.loss(*net, group.rank(), step);
      loss.backward();
      losses.push_back(loss.item<double>());
    }
    ddp.verifyReplicas();
    return losses;
  });
}

// `check(task, alone)` for some tasks of two and three ranks.
template <class Check>
void forTasks(Check check) {
  for (const int size : {2, 3})
    forSeeds(3, [&](Random& draw) {
      const Task task(size, draw);
      const Losses alone = lossesAlone(task);
      expectThatItLearns(alone);
      check(task, alone);
    });
}

Losses lossesWith(const Task& task, const std::function<std::shared_ptr<CommHook>()>& makeHook) {
  return meanOverRanks(task.size, [&](Worker&, const ProcessGroup& group) {
    return trainRank<torch::optim::SGD>(task, group, torch::optim::SGDOptions(kRate), smallBucketsWith(makeHook()));
  });
}

// A 16-bit type, and the largest relative error of rounding to it.
struct Format {
  at::ScalarType dtype;
  double u;
};

class LossesIn16Bits : public ::testing::TestWithParam<Format> {};

INSTANTIATE_TEST_SUITE_P(Formats, LossesIn16Bits,
                         ::testing::Values(Format{at::kHalf, 0x1p-11}, Format{at::kBFloat16, 0x1p-8}),
                         [](const auto& info) { return std::string(c10::toString(info.param.dtype)); });

TEST_P(LossesIn16Bits, OfCastHookAreWithinItsBound) {
  forTasks([](const Task& task, const Losses& alone) {
    const Losses losses = lossesWith(task, [] { return std::make_shared<CastHook>(GetParam().dtype); });
    EXPECT_LE(distanceOf(losses, alone), GetParam().u / 10);
    EXPECT_GE(distanceOf(losses, alone), GetParam().u / 10000) << "gradients were not cast";
  });
}

// Makes losses so small that their gradients are below the normal numbers of float16.
constexpr double kSmall = 0x1p-16;

// Trains by small losses with a GradScaler, and returns them without the factor.
Losses trainRankBySmallLosses(const Task& task, const ProcessGroup& group, at::ScalarType dtype,
                              const AutocastOptions& autocast, std::shared_ptr<CommHook> hook) {
  Mlp net = task.net(dtype);
  DistributedDataParallel<Mlp> ddp(net, group, smallBucketsWith(std::move(hook)));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(kRate / kSmall));
  GradScaler scaler(group);
  Losses losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Autocast guard(autocast);
      loss = task.loss(*net, group.rank(), step) * kSmall;
    }
    scaler.scale(loss).backward();
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
    losses.push_back(loss.item<double>() / kSmall);
  }
  ddp.verifyReplicas();
  return losses;
}

TEST_P(LossesIn16Bits, OfCastHookWithAGradScalerAreWithinItsBound) {
  forTasks([](const Task& task, const Losses& alone) {
    const Losses losses = meanOverRanks(task.size, [&](Worker&, const ProcessGroup& group) {
      return trainRankBySmallLosses(task, group, at::kDouble, {.enabled = false},
                                    std::make_shared<CastHook>(GetParam().dtype));
    });
    EXPECT_LE(distanceOf(losses, alone), GetParam().u / 10);
  });
}

TEST_P(LossesIn16Bits, OfAutocastAreWithinItsBound) {
  forTasks([](const Task& task, const Losses& alone) {
    const Losses losses = meanOverRanks(task.size, [&](Worker&, const ProcessGroup& group) {
      return trainRankBySmallLosses(task, group, at::kFloat, {.dtype = GetParam().dtype}, nullptr);
    });
    EXPECT_LE(distanceOf(losses, alone), GetParam().u);
    EXPECT_GE(distanceOf(losses, alone), GetParam().u / 1000) << "it was computed in another type";
  });
}

// A hook sends some steps later what it holds back, so the losses are those of one process at the end, and not before.
void expectToFollow(const Task& task, const Losses& alone, const std::function<std::shared_ptr<CommHook>()>& makeHook) {
  const Losses losses = lossesWith(task, makeHook);
  EXPECT_LE(distanceOf(losses, alone), 0.15);
  EXPECT_LE(distanceAtTheEndOf(losses, alone), 0.05);
  EXPECT_GE(distanceOf(losses, alone), 0.01) << "nothing was held back";
}

TEST(LossesOfTopKHook, AreWithinItsBounds) {
  forTasks([](const Task& task, const Losses& alone) {
    expectToFollow(task, alone, [] { return std::make_shared<TopKHook>(TopKOptions{.ratio = 0.1}); });
  });
}

TEST(LossesOfPowerSgdHook, AreWithinItsBounds) {
  for (const int64_t rank : {1, 2})
    forTasks([&](const Task& task, const Losses& alone) {
      expectToFollow(task, alone,
                     [&] { return std::make_shared<PowerSgdHook>(PowerSgdOptions{.rank = rank, .startAfter = 0}); });
    });
}

// Replicas differ between the means. So the losses of each are those of the whole batch: a rank that learned for
// itself alone would have lower ones of its own samples.
TEST(LossesOfLocalSgd, AreWithinItsBound) {
  forTasks([](const Task& task, const Losses& alone) {
    const Losses losses = meanOverRanks(task.size, [&](Worker&, const ProcessGroup& group) {
      Mlp net = task.net();
      DistributedDataParallel<Mlp> ddp(net, group, smallBuckets());
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(kRate));
      auto local = ddp.localSgd({.period = 4, .startAfter = 0});
      Losses own;
      for (int step = 0; step < kSteps; ++step) {
        own.push_back(task.lossOfAll(*net, step).item<double>());
        optimizer.zero_grad();
        task.loss(*net, group.rank(), step).backward();
        optimizer.step();
        local.step();
      }
      local.finish();
      ddp.verifyReplicas();
      return own;
    });
    EXPECT_LE(distanceOf(losses, alone), 0.05);
    EXPECT_GE(distanceOf(losses, alone), 1e-4) << "the replicas did not differ";
  });
}

}  // namespace
}  // namespace treadle::test::losses_test
