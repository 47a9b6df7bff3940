// GradScaler follows torch's rules, changes no bit with powers of two, and decides alike on all ranks.

#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <treadle/amp.h>

#include <limits>
#include <random>

#include "tests/train/ddp/net.h"

namespace treadle::test::grad_scaler_test {
namespace {

using namespace ddp_test;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.1).momentum(0.9); }

at::Tensor parameterWith(const at::Tensor& gradient) {
  at::Tensor parameter = at::ones(gradient.sizes(), gradient.options()).requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}

// The rules of the scale, as torch has them.
struct Model {
  float scale = 8;
  int64_t tracker = 0, skips = 0;
  void update(bool finite) {
    skips = finite ? 0 : skips + 1;
    if (!finite) {
      scale = std::max(scale * 0.5F, 0.25F);
      tracker = 0;
    } else if (++tracker == 3) {
      tracker = 0;
      if (scale * 2 < std::numeric_limits<float>::infinity()) scale *= 2;
    }
  }
};

TEST(GradScaler, FollowsTheModelThroughScriptedInfinities) {
  std::mt19937 random(1);
  GradScaler scaler({.initialScale = 8, .growthInterval = 3, .minScale = 0.25, .maxSkipsInARow = 1000});
  Model model;
  const at::Tensor parameter = parameterWith(at::ones({2}));
  torch::optim::SGD optimizer({parameter}, torch::optim::SGDOptions(0.5));
  for (int step = 0; step < 2000; ++step) {
    // Phases of many infinities, of few, and of none, which reach the floor and the largest float.
    const bool finite = step % 600 >= 400 || random() % 10 < (step % 600 < 100 ? 3U : 8U);
    const at::Tensor before = parameter.detach().clone();
    parameter.mutable_grad() = scaler.scale(at::tensor({1.0F, finite ? 1.0F : static_cast<float>(kInfinity)}));
    EXPECT_EQ(scaler.step(optimizer), finite);
    scaler.update();
    model.update(finite);
    ASSERT_EQ(scaler.currentScale(), model.scale) << step;
    ASSERT_EQ(scaler.state().at("grad_scaler.growth_tracker").item<int64_t>(), model.tracker) << step;
    ASSERT_EQ(scaler.state().at("grad_scaler.skips_in_a_row").item<int64_t>(), model.skips) << step;
    EXPECT_TRUE(at::equal(parameter.detach(), finite ? before - 0.5 : before));
  }
}

TEST(GradScaler, DoesNotGrowToInfinityOrBelowItsFloor) {
  const float largest = std::numeric_limits<float>::max();
  GradScaler scaler({.initialScale = largest, .growthInterval = 1});
  torch::optim::SGD optimizer({parameterWith(at::zeros({1}))}, sgd());
  scaler.step(optimizer);
  scaler.update();
  EXPECT_EQ(scaler.currentScale(), largest);
  GradScaler low({.initialScale = 3, .minScale = 2});
  optimizer.param_groups()[0].params()[0].mutable_grad().fill_(kNaN);
  EXPECT_FALSE(low.step(optimizer));
  low.update();
  EXPECT_EQ(low.currentScale(), 2);
}

TEST(GradScaler, ReportsTooManySkipsInARow) {
  GradScaler scaler({.initialScale = 4, .maxSkipsInARow = 3});
  torch::optim::SGD optimizer({parameterWith(at::full({1}, kInfinity))}, sgd());
  for (int skip = 0; skip < 3; ++skip) {
    EXPECT_FALSE(scaler.step(optimizer));
    if (skip < 2) {
      scaler.update();
    } else {
      EXPECT_TRUE(contains(messageOf<StateError>([&] { scaler.update(); }), "3 steps in a row"));
    }
  }
  EXPECT_EQ(scaler.currentScale(), 1) << "three times half, not below 1";
  optimizer.param_groups()[0].params()[0].mutable_grad().fill_(1);
  EXPECT_TRUE(scaler.step(optimizer)) << "the caller may go on";
  scaler.update();
}

// Twenty steps with and without a scale that grows and shrinks.
TEST(GradScaler, PowersOfTwoChangeNoBit) {
  auto trained = [](bool scaled, auto makeOptimizer) {
    Net net(0);
    net->to(at::kFloat);
    auto optimizer = makeOptimizer(net->parameters());
    GradScaler scaler({.growthInterval = 5});
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      at::Tensor loss = net->forward(inputOf(0, step).to(at::kFloat), step % 3 == 0).square().mean();
      (scaled ? scaler.scale(loss) : loss).backward();
      if (scaled) {
        EXPECT_TRUE(scaler.step(optimizer));
        scaler.update();
      } else {
        optimizer.step();
      }
    }
    EXPECT_EQ(scaler.currentScale(), scaled ? 65536 * 16 : 65536);
    return torch::nn::utils::parameters_to_vector(net->parameters()).detach();
  };
  auto makeSgd = [](auto parameters) { return torch::optim::SGD(parameters, sgd()); };
  auto makeAdam = [](auto parameters) { return torch::optim::Adam(parameters, torch::optim::AdamOptions(0.01)); };
  EXPECT_TRUE(at::equal(trained(true, makeSgd), trained(false, makeSgd)));
  EXPECT_TRUE(at::equal(trained(true, makeAdam), trained(false, makeAdam)));
}

// 1 / scale in float64, rounded to float32, then the product in float32.
TEST(GradScaler, UnscalesByTheRoundedInverse) {
  for (double scale : {3.0, 1000.0, 12345.678}) {
    const at::Tensor gradient = random({50}, 3).to(at::kFloat), before = gradient.clone();
    torch::optim::SGD optimizer({parameterWith(gradient)}, sgd());
    GradScaler scaler({.initialScale = scale});
    EXPECT_TRUE(scaler.unscale(optimizer));
    const auto inverse = static_cast<float>(1.0 / static_cast<double>(static_cast<float>(scale)));
    EXPECT_TRUE(at::equal(gradient, before * at::scalar_tensor(inverse, at::kFloat))) << "in place";
  }
}

TEST(GradScaler, LossesKeepTheirTypeAndSmallOnesDoNotOverflow) {
  GradScaler scaler;
  EXPECT_EQ(scaler.scale(at::ones({}, at::kDouble)).scalar_type(), at::kDouble);
  EXPECT_EQ(scaler.scale(at::ones({2}, at::kBFloat16)).scalar_type(), at::kBFloat16);
  EXPECT_EQ(scaler.scale(at::ones({}, at::kHalf)).item<float>(), 65536);
  messageOf<ArgumentError>([&] { scaler.scale(at::ones({}, at::kLong)); });
  messageOf<ArgumentError>([&] { scaler.scale(at::Tensor()); });
}

TEST(GradScaler, EachOptimizerIsUnscaledAndSteppedOncePerUpdate) {
  GradScaler scaler({.initialScale = 2});
  const at::Tensor good = parameterWith(at::full({1}, 4.0)), bad = parameterWith(at::full({1}, kInfinity));
  torch::optim::SGD first({good}, sgd()), second({bad}, sgd());
  messageOf<StateError>([&] { scaler.update(); });
  EXPECT_TRUE(scaler.unscale(first));
  EXPECT_TRUE(contains(messageOf<StateError>([&] { scaler.unscale(first); }), "unscaled since"));
  EXPECT_EQ(good.grad().item<float>(), 2) << "once";
  EXPECT_TRUE(scaler.step(first));
  EXPECT_EQ(good.grad().item<float>(), 2) << "step did not unscale again";
  EXPECT_TRUE(contains(messageOf<StateError>([&] { scaler.step(first); }), "second step"));
  EXPECT_TRUE(contains(messageOf<StateError>([&] { scaler.unscale(first); }), "after step"));
  EXPECT_FALSE(scaler.step(second)) << "the other one found an infinity";
  scaler.update();
  EXPECT_EQ(scaler.currentScale(), 1);
  EXPECT_TRUE(scaler.unscale(first));
}

TEST(GradScaler, NoGradientsAreFiniteAndFloat16IsRefused) {
  GradScaler scaler({.initialScale = 2});
  torch::optim::SGD none({at::ones({1}).requires_grad_()}, sgd());
  EXPECT_TRUE(scaler.step(none));
  const at::Tensor first = parameterWith(at::full({1}, 4.0));
  torch::optim::SGD half({first, parameterWith(at::ones({1}, at::kHalf))}, sgd());
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { scaler.step(half); }), "float16"));
  EXPECT_EQ(first.grad().item<float>(), 4) << "nothing was changed";
}

TEST(GradScaler, ContinuesFromItsState) {
  auto run = [](GradScaler& scaler, int from, int to) {
    torch::optim::SGD optimizer({parameterWith(at::ones({1}))}, sgd());
    for (int step = from; step < to; ++step) {
      optimizer.param_groups()[0].params()[0].mutable_grad().fill_(step % 7 == 3 ? kNaN : 1.0);
      scaler.step(optimizer);
      scaler.update();
    }
  };
  const GradScalerOptions options = {.growthInterval = 4};
  GradScaler whole(options), half(options), resumed(options);
  run(whole, 0, 30);
  run(half, 0, 18);
  resumed.load(half.state());
  run(resumed, 18, 30);
  EXPECT_EQ(resumed.currentScale(), whole.currentScale());
  for (const auto& [name, value] : whole.state()) EXPECT_TRUE(at::equal(resumed.state().at(name), value)) << name;

  OptimizerState bad = half.state();
  bad["grad_scaler.scale"] = at::scalar_tensor(-1.0, at::kDouble);
  messageOf<ArgumentError>([&] { resumed.load(bad); });
  bad = half.state();
  bad["another"] = at::ones({});
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { resumed.load(bad); }), "another"));
  messageOf<ArgumentError>([&] { resumed.load({}); });
  auto refuses = [&](const char* name, const at::Tensor& value) {
    bad = half.state();
    bad[name] = value;
    messageOf<ArgumentError>([&] { resumed.load(bad); });
  };
  for (double scale : {0.0, 1e-45, 1e39, kInfinity, kNaN})
    refuses("grad_scaler.scale", at::scalar_tensor(scale, at::kDouble));
  for (int64_t count : {int64_t{-1}, std::numeric_limits<int64_t>::max()})
    for (const char* name : {"grad_scaler.growth_tracker", "grad_scaler.skips_in_a_row"})
      refuses(name, at::scalar_tensor(count, at::kLong));
  refuses("grad_scaler.scale", at::ones({}, at::TensorOptions(at::kDouble).device(at::kMeta)));
  EXPECT_EQ(resumed.currentScale(), whole.currentScale());
}

TEST(GradScaler, RefusesOptionsOutOfRange) {
  for (const GradScalerOptions& options :
       {GradScalerOptions{.initialScale = 0}, GradScalerOptions{.initialScale = 1e300},
        GradScalerOptions{.initialScale = kNaN}, GradScalerOptions{.growthFactor = 1},
        GradScalerOptions{.backoffFactor = 1}, GradScalerOptions{.backoffFactor = 0},
        GradScalerOptions{.growthInterval = 0}, GradScalerOptions{.initialScale = 1, .minScale = 2},
        GradScalerOptions{.minScale = 0}, GradScalerOptions{.initialScale = 1e-50, .minScale = 1e-60},
        GradScalerOptions{.maxSkipsInARow = 0}})
    messageOf<ArgumentError>([&] { GradScaler{options}; });
}

// ---- several ranks

TEST(GradScalerOfRanks, MustHaveEqualScalesAndStates) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    std::string why =
        messageOf<ArgumentError>([&] { GradScaler(group, {.initialScale = rank == 2 ? 1024.0 : 2048.0}); });
    EXPECT_TRUE(contains(why, "another scale") && contains(why, "rank 2") && contains(why, "1024")) << why;
    why = messageOf<ArgumentError>([&] { GradScaler(group, {.growthInterval = rank == 1 ? 5 : 6}); });
    EXPECT_TRUE(contains(why, "growthInterval") && contains(why, "rank 1")) << why;
    if (rank == 0) {
      messageOf<ArgumentError>([&] { GradScaler(group, {.growthFactor = 0}); });
    } else {
      EXPECT_TRUE(contains(messageOf<StateError>([&] { GradScaler(group, {}); }), "rank 0"));
    }
    GradScaler scaler(group, {});
    OptimizerState state = scaler.state();
    if (rank == 1) state["grad_scaler.growth_tracker"] = at::scalar_tensor(7, at::kLong);
    why = messageOf<ArgumentError>([&] { scaler.load(state); });
    EXPECT_TRUE(contains(why, "growthTracker") && contains(why, "rank 1")) << why;
    EXPECT_EQ(scaler.state().at("grad_scaler.growth_tracker").item<int64_t>(), 0);
    // A value that cannot be read keeps no other rank waiting.
    state = scaler.state();
    if (rank == 1) {
      state["grad_scaler.scale"] = at::ones({}, at::TensorOptions(at::kDouble).device(at::kMeta));
      messageOf<ArgumentError>([&] { scaler.load(state); });
    } else {
      EXPECT_TRUE(contains(messageOf<StateError>([&] { scaler.load(state); }), "rank 1"));
    }
    scaler.load(scaler.state());
  });
}

// In step 2 a gradient overflows on rank 1 alone: averaging spreads it, and all skip. With a scale of 2^k the training
// is, bit by bit, that without a scaler and without step 2.
TEST(GradScalerOfRanks, AnInfinityOnOneRankIsSkippedByAllInAPlainPass) {
  constexpr int kSize = 2, kSteps = 6;
  std::vector<at::Tensor> scaled(kSize), plain(kSize);
  for (bool withScaler : {true, false}) {
    TensorJob job(ranks(kSize));
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      Net net(0);
      net->to(at::kFloat);
      ProcessGroup group = ProcessGroup::make(worker, job.names());
      DistributedDataParallel<Net> ddp(net, group, smallBuckets());
      torch::optim::SGD optimizer(net->parameters(), sgd());
      GradScaler scaler(group, {.growthInterval = 2});
      for (int step = 0; step < kSteps; ++step) {
        if (step == 2 && !withScaler) continue;
        optimizer.zero_grad();
        const at::Tensor input = inputOf(rank, step).to(at::kFloat);
        at::Tensor loss = ddp.forward(step == 2 && rank == 1 ? input * kInfinity : input, false).square().mean();
        (withScaler ? scaler.scale(loss) : loss).backward();
        if (withScaler) {
          EXPECT_EQ(scaler.step(optimizer), step != 2);
          scaler.update();
        } else {
          optimizer.step();
        }
      }
      EXPECT_EQ(scaler.currentScale(), withScaler ? 65536 * 2 : 65536) << "x 2, x 0.5, x 2";
      (withScaler ? scaled : plain)[static_cast<size_t>(rank)] =
          torch::nn::utils::parameters_to_vector(net->parameters()).detach();
    });
  }
  for (int rank : {0, 1}) {
    EXPECT_TRUE(at::equal(scaled[static_cast<size_t>(rank)], plain[0]));
    EXPECT_TRUE(at::equal(plain[static_cast<size_t>(rank)], plain[0]));
  }
}

RRef<at::Tensor> makeTable(CallContext& call) { return call.worker().makeRRef(at::ones({4}).requires_grad_()); }
at::Tensor lookUp(const RRef<at::Tensor>& table, const at::Tensor& factor) {
  return (table.localValue() * factor).sum();
}

// Each rank has a context of its own and a gradient on a server that is not averaged: the infinity of one rank is
// there alone, and all skip.
TEST(GradScalerOfRanks, AnInfinityOnAServerIsSkippedByAllInADistributedPass) {
  TensorJob job({"rank0", "rank1", "server"}, Functions().add<&makeTable>("makeTable").add<&lookUp>("lookUp"));
  std::vector<at::Tensor> replicas(2);
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    if (rank == 2) return;
    Net net(0);
    net->to(at::kFloat);
    ProcessGroup group = ProcessGroup::make(worker, ranks(2));
    DistributedDataParallel<Net> ddp(net, group, smallBuckets());
    const RRef<at::Tensor> own = worker.call<&makeTable>("server");
    std::vector<RRef<at::Tensor>> parameters = parameterRefs(worker, *net);
    parameters.push_back(own);
    auto optimizer = DistributedOptimizer::make<torch::optim::SGD>(worker, parameters, torch::optim::SGDOptions(0.5));
    GradScaler scaler(group, {.initialScale = 1024});
    for (int step = 0; step < 3; ++step) {
      const bool overflows = step == 1;
      const at::Tensor before = own.toHere().detach().clone(), weight = net->last.detach().clone();
      AutogradContext context(worker);
      const at::Tensor factor = at::full({4}, overflows && rank == 0 ? kInfinity : 0.25, at::kFloat);
      at::Tensor there = worker.call<&lookUp>("server", own, factor);
      at::Tensor loss = ddp.forward(inputOf(rank, step).to(at::kFloat), false).square().mean() + there;
      context.backward({scaler.scale(loss)});
      if (step == 2) {
        EXPECT_TRUE(scaler.unscale(optimizer, context));
        EXPECT_GT(clipGradNorm(optimizer, context, ddp, 1e6), 0.5) << "of the true gradients";
      }
      EXPECT_EQ(scaler.step(optimizer, context), !overflows);
      scaler.update();
      EXPECT_EQ(scaler.currentScale(), step == 0 ? 1024 : 512);
      EXPECT_TRUE(at::equal(own.toHere().detach(), overflows ? before : before - 0.125)) << step;
      EXPECT_EQ(at::equal(net->last.detach(), weight), overflows) << step;
    }
    replicas[static_cast<size_t>(rank)] = torch::nn::utils::parameters_to_vector(net->parameters()).detach();
  });
  EXPECT_TRUE(at::equal(replicas[0], replicas[1]));
}

TEST(GradScalerOfRanks, ARankThatFailsToUnscaleIsNamedByTheOthers) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    GradScaler scaler(ProcessGroup::make(worker, job.names()), {});
    const at::Tensor parameter = at::ones({2}, rank == 1 ? at::kHalf : at::kFloat).requires_grad_();
    auto optimizer = DistributedOptimizer::make<torch::optim::SGD>(worker, {worker.makeRRef(parameter)},
                                                                   torch::optim::SGDOptions(1));
    AutogradContext context(worker);
    context.backward({parameter.sum()});
    if (rank == 1) {
      EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { scaler.step(optimizer, context); }), "float16"));
    } else {
      EXPECT_TRUE(contains(messageOf<StateError>([&] { scaler.step(optimizer, context); }), "rank 1"));
    }
    EXPECT_TRUE(at::equal(parameter.detach(), at::ones({2}, parameter.options())));
  });
}

}  // namespace
}  // namespace treadle::test::grad_scaler_test
