// Distributed autograd over real connections: gradients through calls of any shape, many contexts at once, failures
// that name who failed, and contexts that leave nothing behind.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>
#include <treadle/autograd.h>
#include <treadle/optim.h>

#include <thread>

#include "tests/support/gate.h"
#include "tests/support/tensor_job.h"
#include "treadle/core/wire/writer.h"

namespace treadle::test {
namespace {

// ---- what the workers offer

at::Tensor cube(const at::Tensor& x) { return x * x * x; }
at::Tensor detached(const at::Tensor& x) { return x.detach(); }
std::vector<at::Tensor> bothWays(const at::Tensor& x) { return {x * 2, x * 3}; }
at::Tensor weighted(const RRef<at::Tensor>& weight, const at::Tensor& x) { return (weight.local() * x).sum(); }
at::Tensor cubeAtC(Call& call, const at::Tensor& x) { return call.worker().call<&cube>("C", x.sin()) * 2; }

// To the caller and back, `depth` times.
at::Tensor pingPong(Call& call, const at::Tensor& x, int64_t depth) {
  if (depth == 0) return x * x;
  return call.worker().call<&pingPong>(call.caller(), x.sin(), depth - 1) * 1.5 + x;
}

struct FailingNode : torch::autograd::Function<FailingNode> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("the glue came off");
  }
};
at::Tensor failsInBackward(const at::Tensor& x) { return FailingNode::apply(x); }

// Of the test that runs; each makes new ones.
Gate* reached = nullptr;
Gate* released = nullptr;

struct GatedNode : torch::autograd::Function<GatedNode> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    reached->open();
    released->wait();
    return gradients;
  }
};
at::Tensor gatedCubeAtC(Call& call, const at::Tensor& x) { return GatedNode::apply(call.worker().call<&cube>("C", x)); }
at::Tensor lateCubeAtC(Call& call, const at::Tensor& x) {
  reached->open();
  blocking([] { released->wait(); });
  return call.worker().call<&cube>("C", x);
}

Functions functions() {
  Functions functions;
  functions.add<&cube>("cube").add<&detached>("detached").add<&bothWays>("bothWays").add<&weighted>("weighted");
  functions.add<&cubeAtC>("cubeAtC").add<&pingPong>("pingPong").add<&failsInBackward>("failsInBackward");
  return functions.add<&gatedCubeAtC>("gatedCubeAtC").add<&lateCubeAtC>("lateCubeAtC");
}

at::Tensor leaf() { return at::tensor({0.3, -1.2, 2.5}, at::kDouble).requires_grad_(); }

class DistributedPass : public ::testing::Test {
 protected:
  ~DistributedPass() override { reached = released = nullptr; }

  // Each test leaves no context open on any worker.
  void expectAllReleased() {
    EXPECT_TRUE(eventually([this] { return job.openContexts() == 0; })) << job.openContexts();
  }

  TensorJob job{{"A", "B", "C"}, functions()};
  Worker& a = job[0];
};

// The gradient of forward(x).sum() for a leaf x, by one process.
template <class F>
at::Tensor localGradient(F forward) {
  at::Tensor x = leaf();
  return torch::autograd::grad({forward(x).sum()}, {x})[0];
}

TEST_F(DistributedPass, GoesThroughACallAndBack) {
  at::Tensor x = leaf();
  {
    AutogradContext context(a);
    at::Tensor y = a.call<&cube>("B", x * 2);
    EXPECT_TRUE(y.requires_grad());
    context.backward({y.sum()});
    EXPECT_TRUE(close(context.gradient(x), localGradient([](const at::Tensor& x) { return cube(x * 2); })));
    EXPECT_FALSE(x.grad().defined()) << "gradients belong to the context";
    ASSERT_EQ(context.gradients().size(), 1u);
    EXPECT_TRUE(context.gradients().front().first.is_same(x));
    EXPECT_EQ(job.openContexts(), 2u) << "of A and B; C had no part";
  }
  expectAllReleased();
}

TEST_F(DistributedPass, OutsideOfAContextNoGradientTravels) {
  EXPECT_FALSE(a.call<&cube>("B", leaf()).requires_grad());
  AutogradContext context(a);
  at::NoGradGuard noGradients;
  EXPECT_FALSE(a.call<&cube>("B", leaf()).requires_grad());
}

TEST_F(DistributedPass, GoesThroughNestedCalls) {
  at::Tensor x = leaf();
  {
    AutogradContext context(a);
    context.backward({a.call<&cubeAtC>("B", x).sum()});
    EXPECT_TRUE(close(context.gradient(x), localGradient([](const at::Tensor& x) { return cube(x.sin()) * 2; })));
  }
  expectAllReleased();
}

TEST_F(DistributedPass, GoesRoundInCircles) {
  auto alone = [](at::Tensor x) {
    std::vector<at::Tensor> kept;
    for (int depth = 7; depth > 0; --depth) kept.push_back(std::exchange(x, x.sin()));
    at::Tensor y = x * x;
    for (; !kept.empty(); kept.pop_back()) y = y * 1.5 + kept.back();
    return y;
  };
  at::Tensor x = leaf();
  {
    AutogradContext context(a);
    context.backward({a.call<&pingPong>("B", x, 7).sum()});
    EXPECT_TRUE(close(context.gradient(x), localGradient(alone)));
  }
  expectAllReleased();
}

TEST_F(DistributedPass, GoesThroughAReference) {
  at::Tensor x = leaf();
  {
    AutogradContext context(a);
    RRef<at::Tensor> y = a.remote<&cube>("B", x);
    context.backward({(y.toHere() * 2).sum(), y.toHere().sum()});
    EXPECT_TRUE(close(context.gradient(x), localGradient([](const at::Tensor& x) { return 3 * cube(x); })));
  }
  expectAllReleased();
}

TEST_F(DistributedPass, WorksOnItsOwnWorkerToo) {
  at::Tensor x = leaf();
  {
    AutogradContext context(a);
    context.backward({a.call<&cube>("A", x).sum()});
    EXPECT_TRUE(close(context.gradient(x), localGradient(cube)));
  }
  expectAllReleased();
}

TEST_F(DistributedPass, OneTensorOfAMessageIsEnough) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  context.backward({a.call<&bothWays>("B", x)[1].sum()});
  EXPECT_TRUE(close(context.gradient(x), at::full({3}, 3.0, at::kDouble)));
}

TEST_F(DistributedPass, AsynchronousCallsTakePart) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  auto first = a.async<&cube>("B", x);
  auto second = a.async<&cube>("C", x);
  context.backward({(first.wait() * second.wait()).sum()});
  EXPECT_TRUE(close(context.gradient(x), localGradient([](const at::Tensor& x) { return cube(x) * cube(x); })));
}

TEST_F(DistributedPass, ARetainedGraphServesAgainAndGradientsAddUp) {
  at::Tensor x = leaf();
  {
    AutogradContext context(a);
    at::Tensor loss = a.call<&cubeAtC>("B", x).sum();
    at::Tensor once = localGradient([](const at::Tensor& x) { return cube(x.sin()) * 2; });
    context.backward({loss}, {.retainGraph = true});
    EXPECT_TRUE(close(context.gradient(x), once));
    context.backward({loss}, {.retainGraph = true});
    EXPECT_TRUE(close(context.gradient(x), 2 * once));
    context.backward({loss});
    EXPECT_TRUE(close(context.gradient(x), 3 * once));
    EXPECT_THROW(context.backward({loss}), std::exception) << "the graph is gone";
  }
  expectAllReleased();
}

TEST_F(DistributedPass, AContextServesSeveralForwardPasses) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  for (int pass = 1; pass <= 3; ++pass) {
    context.backward({a.call<&cube>("B", x).sum()});
    EXPECT_TRUE(close(context.gradient(x), pass * localGradient(cube)));
  }
}

TEST_F(DistributedPass, TheInnermostContextIsCurrent) {
  at::Tensor x = leaf();
  {
    AutogradContext outer(a);
    at::Tensor before = a.call<&cube>("B", x);
    {
      AutogradContext inner(a);
      EXPECT_NE(inner.id(), outer.id());
      inner.backward({a.call<&cube>("B", x).sum()});
      EXPECT_TRUE(close(inner.gradient(x), localGradient(cube)));
      EXPECT_FALSE(outer.gradient(x).defined());
    }
    outer.backward({(before + a.call<&cube>("B", x)).sum()});
    EXPECT_TRUE(close(outer.gradient(x), 2 * localGradient(cube)));
  }
  expectAllReleased();
}

// Eight threads, one server, one parameter: every pass finds its own gradient there, though others step the parameter
// between its forward and its backward.
TEST_F(DistributedPass, ManyContextsShareAServerThatOptimizersStep) {
  constexpr int kThreads = 8, kSteps = 10;
  constexpr double kLearningRate = 0.01;
  at::Tensor begun = leaf().detach().clone();
  at::Tensor weight = begun.clone().requires_grad_();
  {
    RRef<at::Tensor> reference = job[1].own(weight);
    Worker& b = job[1];
    // The parameter lives on B; A drives, with the references that B hands out to it.
    auto optimizer =
        DistributedOptimizer::make<torch::optim::SGD>(b, {reference}, torch::optim::SGDOptions(kLearningRate));
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread)
      threads.emplace_back([&, thread] {
        for (int step = 0; step < kSteps; ++step) {
          AutogradContext context(b);
          at::Tensor x = at::full({3}, thread + 0.1 * step, at::kDouble).requires_grad_();
          at::Tensor loss = b.call<&weighted>("B", reference, b.call<&cube>("C", x));
          context.backward({loss});
          EXPECT_TRUE(close(context.gradient(weight), cube(x).detach()));
          EXPECT_TRUE(context.gradient(x).defined()) << "the saved parameter was stepped meanwhile";
          optimizer.step(context);
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
  at::Tensor sum = at::zeros({3}, at::kDouble);
  for (int thread = 0; thread < kThreads; ++thread)
    for (int step = 0; step < kSteps; ++step) sum += cube(at::full({3}, thread + 0.1 * step, at::kDouble));
  EXPECT_TRUE(close(weight.detach(), begun - kLearningRate * sum));
  expectAllReleased();
}

// ---- failures

TEST_F(DistributedPass, ASentTensorWithoutAGradientIsNamed) {
  at::Tensor x = leaf();
  {
    AutogradContext context(a);
    at::Tensor y = a.call<&detached>("B", x);
    std::string why = messageOf<StateError>([&] { context.backward({(x * y).sum()}); });
    EXPECT_TRUE(contains(why, "(detached)"));
    messageOf<StateError>([&] { context.backward({(x * y).sum()}); });  // of no use any more
  }
  expectAllReleased();
}

TEST_F(DistributedPass, AnAnswerWithoutAGradientIsNamed) {
  at::Tensor x = leaf();
  {
    AutogradContext context(a);
    a.call<&cube>("B", x);
    std::string why = messageOf<StateError>([&] { context.backward({(x * 2).sum()}); });
    EXPECT_TRUE(contains(why, "(cube)"));
  }
  expectAllReleased();
}

TEST_F(DistributedPass, AnErrorInANodeElsewhereComesWithItsWorker) {
  {
    AutogradContext context(a);
    at::Tensor loss = a.call<&failsInBackward>("C", a.call<&cube>("B", leaf())).sum();
    try {
      context.backward({loss});
      ADD_FAILURE() << "threw nothing";
    } catch (const Error& error) {
      EXPECT_TRUE(contains(error.what(), "the glue came off"));
      EXPECT_EQ(error.worker(), "C") << error.what();
    }
  }
  expectAllReleased();
}

TEST_F(DistributedPass, AnErrorInANodeHereIsToldToo) {
  AutogradContext context(a);
  at::Tensor loss = failsInBackward(a.call<&cube>("B", leaf())).sum();
  EXPECT_TRUE(contains(messageOf<Error>([&] { context.backward({loss}); }), "the glue came off"));
}

TEST_F(DistributedPass, AWorkerLostDuringBackwardIsNamed) {
  Gate atNode, goOn;
  reached = &atNode, released = &goOn;
  AutogradContext context(a);
  at::Tensor loss = a.call<&gatedCubeAtC>("B", leaf()).sum();
  std::thread killer([&] {
    atNode.wait();
    job.kill(2);
    goOn.open();
  });
  try {
    context.backward({loss});
    ADD_FAILURE() << "threw nothing";
  } catch (const PeerLostError& error) {
    EXPECT_EQ(error.worker(), "C") << error.what();
  }
  killer.join();
}

TEST_F(DistributedPass, RootsThatCannotBeDifferentiatedAreRefused) {
  AutogradContext context(a);
  messageOf<ArgumentError>([&] { context.backward({leaf().detach().sum()}); });
  messageOf<ArgumentError>([&] { context.backward({leaf() * 2}); });
  messageOf<ArgumentError>([&] { context.backward({at::Tensor()}); });
}

TEST_F(DistributedPass, SmartModeIsNotThereYet) {
  AutogradOptions smart{AutogradMode::kSmart};
  EXPECT_TRUE(contains(messageOf<StateError>([&] { AutogradContext context(a, smart); }), "kSmart"));
  messageOf<StateError>([&] { treadle::join({.name = "x", .launch = Launch{0, 1, "127.0.0.1", 1, ""}}, smart); });
}

TEST_F(DistributedPass, APlainBackwardThroughAReceivedTensorIsRefused) {
  AutogradContext context(a);
  at::Tensor loss = a.call<&cube>("B", leaf()).sum();
  EXPECT_TRUE(contains(messageOf<StateError>([&] { loss.backward(); }), "AutogradContext::backward"));
}

TEST_F(DistributedPass, AWorkerWithoutTensorsHasNoContexts) {
  auto plain = Worker::join({.name = "plain", .launch = Launch{0, 1, "127.0.0.1", freePort(), ""}});
  EXPECT_TRUE(contains(messageOf<StateError>([&] { AutogradContext context(*plain); }), "treadle::join"));
  plain->shutdown();
}

// ---- what contexts leave behind

TEST_F(DistributedPass, AContextThatEndsDuringACallIsReleasedAllTheSame) {
  Gate inHandler, goOn;
  reached = &inHandler, released = &goOn;
  Future<at::Tensor> answer;
  {
    AutogradContext context(a);
    answer = a.async<&lateCubeAtC>("B", leaf());
    inHandler.wait();
  }
  EXPECT_TRUE(eventually([&] { return job.openContexts() == 0; }));
  goOn.open();
  EXPECT_TRUE(contains(messageOf<NotFoundError>([&] { answer.wait(); }), "has ended"));
  EXPECT_EQ(job.openContexts(), 0u) << "the call to C brought it back to life";
}

}  // namespace
}  // namespace treadle::test
