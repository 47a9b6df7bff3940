// DistributedOptimizer steps what a local optimizer would, wherever the parameters live.

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <treadle/autograd.h>
#include <treadle/optim.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/support/gate.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::distributed_optimizer_test {
namespace {

at::Tensor begun() { return at::arange(1, 7, at::kDouble).reshape({2, 3}) / 3; }

RRef<at::Tensor> makeParameter(CallContext& call) { return call.worker().makeRRef(begun().requires_grad_()); }
RRef<at::Tensor> makePlain(CallContext& call) { return call.worker().makeRRef(begun()); }
at::Tensor lossThere(const RRef<at::Tensor>& parameter, const at::Tensor& x) {
  return (parameter.localValue().pow(2) * x).sum();
}

at::Tensor linearLossThere(const RRef<at::Tensor>& parameter, const at::Tensor& x) {
  return (parameter.localValue() * x).sum();
}

// Counts the threads within its step, and lets others run meanwhile.
struct Counted : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    most = std::max(most.load(), ++threads);
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    const at::Tensor loss = SGD::step(std::move(closure));
    --threads;
    return loss;
  }
  static inline std::atomic<int> threads{0}, most{0};
};

// An optimizer that no worker offers.
struct Unoffered : torch::optim::SGD {
  using torch::optim::SGD::SGD;
};

// Steps with the context of the call.
void stepThere(CallContext& call, const RRef<at::Tensor>& parameter) {
  DistributedOptimizer::make<torch::optim::SGD>(call.worker(), {parameter}, torch::optim::SGDOptions(1)).step();
}

class Optimizers : public ::testing::Test {
 protected:
  static Functions functions() {
    Functions functions;
    functions.add<&makeParameter>("makeParameter").add<&makePlain>("makePlain").add<&lossThere>("lossThere");
    functions.add<&stepThere>("stepThere").add<&linearLossThere>("linearLossThere");
    addOptimizer<Counted, torch::optim::SGDOptions>(functions, "Counted");
    return functions.declare<&optim::makePart<Unoffered, torch::optim::SGDOptions>>("Unoffered");
  }

  // Five steps over a parameter here and one on each of two other workers; and the same by one optimizer in one
  // process.
  template <class Optimizer, class Options>
  void expectAsLocal(const Options& options) {
    std::vector<at::Tensor> alone;
    for (int i = 0; i < 3; ++i) alone.push_back(begun().requires_grad_());
    Optimizer local(alone, options);
    std::vector<RRef<at::Tensor>> references = {a.makeRRef(begun().requires_grad_()), a.call<&makeParameter>("B"),
                                                a.call<&makeParameter>("C")};
    auto optimizer = DistributedOptimizer::make<Optimizer>(a, references, options);
    for (int step = 1; step <= 5; ++step) {
      at::Tensor x = begun().cos() * step;
      AutogradContext context(a);
      at::Tensor loss = lossThere(references[0], x);
      for (int i : {1, 2}) loss = loss + i * a.call<&lossThere>(i, references[static_cast<size_t>(i)], x);
      context.backward({loss});
      optimizer.step(context);
      local.zero_grad();
      ((alone[0].pow(2) * x).sum() + (alone[1].pow(2) * x).sum() + 2 * (alone[2].pow(2) * x).sum()).backward();
      local.step();
    }
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(close(references[i].toHere().detach(), alone[i].detach())) << i;
  }

  TensorJob job{{"A", "B", "C"}, functions()};
  Worker& a = job[0];
};

TEST_F(Optimizers, SgdStepsLikeALocalOne) {
  expectAsLocal<torch::optim::SGD>(torch::optim::SGDOptions(0.05));
  expectAsLocal<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.1).nesterov(true));
  expectAsLocal<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.5).dampening(0.3));
}

TEST_F(Optimizers, AdamStepsLikeALocalOne) {
  expectAsLocal<torch::optim::Adam>(torch::optim::AdamOptions(0.05));
  expectAsLocal<torch::optim::Adam>(
      torch::optim::AdamOptions(0.05).betas({0.7, 0.8}).eps(1e-3).weight_decay(0.1).amsgrad(true));
}

TEST_F(Optimizers, AdamWStepsLikeALocalOne) {
  expectAsLocal<torch::optim::AdamW>(torch::optim::AdamWOptions(0.05));
  expectAsLocal<torch::optim::AdamW>(
      torch::optim::AdamWOptions(0.05).betas({0.7, 0.8}).eps(1e-3).weight_decay(0.2).amsgrad(true));
}

TEST_F(Optimizers, AdagradStepsLikeALocalOne) {
  expectAsLocal<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.05));
  expectAsLocal<torch::optim::Adagrad>(
      torch::optim::AdagradOptions(0.05).lr_decay(0.1).weight_decay(0.1).initial_accumulator_value(0.5).eps(1e-3));
}

TEST_F(Optimizers, RMSpropStepsLikeALocalOne) {
  expectAsLocal<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.05));
  expectAsLocal<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(0.05).alpha(0.8).eps(1e-3).weight_decay(0.1).momentum(0.5).centered(true));
}

TEST_F(Optimizers, LbfgsIsRefusedWithAReason) {
  auto parameter = a.makeRRef(begun().requires_grad_());
  std::string why = messageOf<ArgumentError>(
      [&] { DistributedOptimizer::make<torch::optim::LBFGS>(a, {parameter}, torch::optim::LBFGSOptions(1)); });
  EXPECT_TRUE(contains(why, "closure"));
}

TEST_F(Optimizers, AStepWithoutAContextTakesTheCurrentOne) {
  auto here = a.makeRRef(begun().requires_grad_()), elsewhere = a.call<&makeParameter>("C");
  auto optimizer = DistributedOptimizer::make<torch::optim::SGD>(a, {here, elsewhere}, torch::optim::SGDOptions(1));
  const at::Tensor x = at::ones({2, 3}, at::kDouble);
  {
    AutogradContext outer(a);
    outer.backward({here.localValue().sum()});
    AutogradContext context(a);
    context.backward({lossThere(here, x) + a.call<&lossThere>("C", elsewhere, x)});
    optimizer.step();
    optimizer.stepAsync().wait();
    EXPECT_TRUE(close(here.localValue().detach(), begun() - 4 * begun())) << "the gradient is 2 * begun(), twice";
    EXPECT_TRUE(close(elsewhere.toHere().detach(), begun() - 4 * begun()));
    a.call<&stepThere>("B", elsewhere);
    EXPECT_TRUE(close(elsewhere.toHere().detach(), begun() - 6 * begun())) << "B is in the same context";
  }
  EXPECT_TRUE(contains(messageOf<StateError>([&] { optimizer.step(); }), "context"));
  EXPECT_TRUE(contains(messageOf<StateError>([&] { optimizer.stepAsync(); }), "'A'"));
}

TEST_F(Optimizers, AStepNeedsNoGradientForEveryParameterOrWorker) {
  auto here = a.makeRRef(begun().requires_grad_());
  auto unused = a.makeRRef(begun().requires_grad_());
  auto elsewhere = a.call<&makeParameter>("C");
  auto optimizer =
      DistributedOptimizer::make<torch::optim::SGD>(a, {here, unused, elsewhere}, torch::optim::SGDOptions(1));
  AutogradContext context(a);
  context.backward({here.localValue().sum()});
  optimizer.step(context);
  optimizer.stepAsync(context).wait();
  EXPECT_TRUE(close(here.localValue().detach(), begun() - 2));
  EXPECT_TRUE(close(unused.localValue().detach(), begun()));
  EXPECT_TRUE(close(elsewhere.toHere().detach(), begun())) << "the pass never came there";
}

// Two optimizers over one parameter exclude each other, and no step is lost.
TEST_F(Optimizers, ConcurrentStepsOfTwoOptimizersAllCount) {
  auto parameter = a.call<&makeParameter>("B");
  std::vector<DistributedOptimizer> optimizers;
  for (double rate : {0.25, 0.5})
    optimizers.push_back(DistributedOptimizer::make<Counted>(a, {parameter}, torch::optim::SGDOptions(rate)));
  constexpr int kSteps = 20;
  const at::Tensor x = at::ones({2, 3}, at::kDouble);
  std::vector<std::thread> threads;
  for (DistributedOptimizer& optimizer : optimizers)
    threads.emplace_back([&] {
      for (int step = 0; step < kSteps; ++step) {
        AutogradContext context(a);
        context.backward({a.call<&linearLossThere>("B", parameter, x)});
        optimizer.step(context);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Counted::most, 1);
  EXPECT_TRUE(close(parameter.toHere().detach(), begun() - kSteps * (0.25 + 0.5) * x));
}

TEST_F(Optimizers, AStepDoesNotBreakAnotherContextsPendingBackward) {
  at::Tensor parameter = begun().requires_grad_();
  auto reference = a.makeRRef(parameter);
  auto optimizer = DistributedOptimizer::make<torch::optim::Adam>(a, {reference}, torch::optim::AdamOptions(0.1));
  AutogradContext pending(a);
  at::Tensor loss = a.call<&lossThere>("A", reference, begun());
  {
    AutogradContext other(a);
    other.backward({a.call<&lossThere>("A", reference, begun())});
    optimizer.step(other);
  }
  EXPECT_FALSE(at::equal(parameter.detach(), begun())) << "the step went to the parameter itself";
  pending.backward({loss});
  EXPECT_TRUE(pending.gradient(parameter).defined());
}

TEST_F(Optimizers, ParametersOfAModuleHereAreGivenAsReferences) {
  torch::nn::Linear linear(3, 2);
  std::vector<RRef<at::Tensor>> references = parameterRefs(a, *linear);
  ASSERT_EQ(2U, references.size());
  EXPECT_TRUE(references[0].localValue().is_same(linear->weight) && references[1].localValue().is_same(linear->bias));
  auto optimizer = DistributedOptimizer::make<torch::optim::SGD>(a, references, torch::optim::SGDOptions(1));
  const at::Tensor before = linear->bias.detach().clone();
  AutogradContext context(a);
  context.backward({linear->forward(at::ones({3})).sum()});
  optimizer.step(context);
  EXPECT_TRUE(close(linear->bias.detach(), before - 1));
}

TEST_F(Optimizers, WhatCannotBeMadeIsRefused) {
  using torch::optim::SGD, torch::optim::SGDOptions;
  auto make = [&](std::vector<RRef<at::Tensor>> parameters) {
    DistributedOptimizer::make<SGD>(a, std::move(parameters), SGDOptions(0.1));
  };
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { make({}); }), "at least one parameter"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { make({a.makeRRef(begun())}); }), "require gradients"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { make({a.call<&makePlain>("B")}); }), "require gradients"));
  messageOf<ArgumentError>([&] { make({a.makeRRef(begun().requires_grad_() * 2)}); });
  messageOf<StateError>([&] { make({RRef<at::Tensor>()}); });
  auto there = a.call<&makeParameter>("B");
  std::string why =
      messageOf<NotFoundError>([&] { DistributedOptimizer::make<Unoffered>(a, {there}, SGDOptions(0.1)); });
  EXPECT_TRUE(contains(why, "Unoffered"));
  EXPECT_TRUE(contains(messageOf<RemoteError>([&] { DistributedOptimizer::make<SGD>(a, {there}, SGDOptions(-1)); }),
                       "Invalid learning rate"));
}

}  // namespace
}  // namespace treadle::test::distributed_optimizer_test
