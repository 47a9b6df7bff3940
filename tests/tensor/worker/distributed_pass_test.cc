// Distributed autograd over real connections: gradients through calls of any shape, many contexts at once, failures
// that name who failed, and contexts that leave nothing behind.

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>
#include <treadle/autograd.h>
#include <treadle/optim.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include "tests/support/gate.h"
#include "tests/support/gated_node.h"
#include "tests/support/passes_of.h"
#include "tests/support/tensor_job.h"
#include "treadle/core/wire/writer.h"

namespace treadle::test::distributed_pass_test {
namespace {

using namespace std::chrono_literals;

// ---- what the workers offer

at::Tensor cube(const at::Tensor& x) { return x * x * x; }
at::Tensor detached(const at::Tensor& x) { return x.detach(); }
std::vector<at::Tensor> bothWays(const at::Tensor& x) { return {x * 2, x * 3}; }
std::vector<at::Tensor> swapped(const at::Tensor& a, const at::Tensor& b) { return {b * 1, a * 1}; }
at::Tensor lookUp(const at::Tensor& table, const at::Tensor& indices) {
  return at::embedding(table, indices, -1, false, /*sparse=*/true);
}
at::Tensor asLeaf(const at::Tensor& x) { return x.clone().requires_grad_(); }
at::Tensor lookUpThere(const RRef<at::Tensor>& table, const at::Tensor& indices) {
  return lookUp(table.localValue(), indices);
}
std::vector<at::Tensor> withItsMask(const at::Tensor& x) { return {x > 0, x * x, at::arange(3)}; }
at::Tensor plusOne(const at::Tensor& x) { return x + 1; }
at::Tensor sumOf(const at::Tensor& x) { return x.sum(); }
at::Tensor rootOfDifference(const at::Tensor& x) { return (x - x).sqrt(); }
at::Tensor weighted(const RRef<at::Tensor>& weight, const at::Tensor& x) { return (weight.localValue() * x).sum(); }
at::Tensor cubeAtC(CallContext& call, const at::Tensor& x) { return call.worker().call<&cube>("C", x.sin()) * 2; }

// To the caller and back, `depth` times.
at::Tensor pingPong(CallContext& call, const at::Tensor& x, int64_t depth) {
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
std::vector<at::Tensor> copies(const at::Tensor& x, int64_t count) {
  std::vector<at::Tensor> copies;
  for (int64_t i = 0; i < count; ++i) copies.push_back(x * 1);
  return copies;
}

// A node that counts as long as it lives, for the worker of this number.
struct CountedNode : torch::autograd::Function<CountedNode> {
  struct Life : torch::CustomClassHolder {
    explicit Life(int64_t worker) : worker(worker) { ++alive(worker); }
    ~Life() override { --alive(worker); }
    static std::atomic<int>& alive(int64_t worker) {
      static std::array<std::atomic<int>, 2> counts{};
      return counts.at(static_cast<size_t>(worker));
    }
    const int64_t worker;
  };
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, int64_t worker) {
    context->saved_data["life"] = c10::IValue::make_capsule(c10::make_intrusive<Life>(worker));
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0], at::Tensor()};
  }
};
at::Tensor counted(const at::Tensor& x, int64_t worker) { return CountedNode::apply(x, worker); }

struct FailsWhenReached : torch::autograd::Function<FailsWhenReached> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    NodeGates::here->reached.wait();
    throw std::runtime_error("the glue came off");
  }
};
at::Tensor gatedCube(const at::Tensor& x) { return GatedNode::apply(cube(x)); }
at::Tensor gatedCubeAtC(CallContext& call, const at::Tensor& x) {
  return GatedNode::apply(call.worker().call<&cube>("C", x));
}
at::Tensor lateCubeAtC(CallContext& call, const at::Tensor& x) {
  NodeGates::here->reached.open();
  blocking([] { NodeGates::here->released.wait(); });
  return call.worker().call<&cube>("C", x);
}

Functions functions() {
  Functions functions;
  functions.add<&cube>("cube").add<&detached>("detached").add<&bothWays>("bothWays").add<&weighted>("weighted");
  functions.add<&asLeaf>("asLeaf")
      .add<&lookUp>("lookUp")
      .add<&lookUpThere>("lookUpThere")
      .add<&withItsMask>("withItsMask");
  functions.add<&plusOne>("plusOne").add<&sumOf>("sumOf").add<&rootOfDifference>("rootOfDifference");
  functions.add<&swapped>("swapped")
      .add<&cubeAtC>("cubeAtC")
      .add<&pingPong>("pingPong")
      .add<&failsInBackward>("failsInBackward")
      .add<&copies>("copies")
      .add<&counted>("counted")
      .add<&gatedCube>("gatedCube");
  return functions.add<&gatedCubeAtC>("gatedCubeAtC").add<&lateCubeAtC>("lateCubeAtC");
}

at::Tensor leaf() { return at::tensor({0.3, -1.2, 2.5}, at::kDouble).requires_grad_(); }

class DistributedPass : public ::testing::TestWithParam<AutogradMode> {
 protected:
  // Each test leaves no context open on any worker.
  void expectAllReleased() {
    EXPECT_TRUE(test::eventuallyReleased([this] { return job.openContexts() == 0; })) << job.openContexts();
  }

  NodeGates gates;
  TensorJob job{{"A", "B", "C"}, functions(), {GetParam()}};
  Worker& a = job[0];
};
INSTANTIATE_TEST_SUITE_P(Modes, DistributedPass, ::testing::Values(AutogradMode::kSmart, AutogradMode::kFast),
                         [](const auto& mode) { return mode.param == AutogradMode::kSmart ? "Smart" : "Fast"; });

class FastPass : public DistributedPass {};
INSTANTIATE_TEST_SUITE_P(Modes, FastPass, ::testing::Values(AutogradMode::kFast));

class SmartPass : public DistributedPass {};
INSTANTIATE_TEST_SUITE_P(Modes, SmartPass, ::testing::Values(AutogradMode::kSmart));

// The gradient of forward(x).sum() for a leaf x, by one process.
template <class F>
at::Tensor localGradient(F forward) {
  at::Tensor x = leaf();
  return torch::autograd::grad({forward(x).sum()}, {x})[0];
}

TEST_P(DistributedPass, GoesThroughACallAndBack) {
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

TEST_P(DistributedPass, OutsideOfAContextNoGradientTravels) {
  EXPECT_FALSE(a.call<&cube>("B", leaf()).requires_grad());
  AutogradContext context(a);
  at::NoGradGuard noGradients;
  EXPECT_FALSE(a.call<&cube>("B", leaf()).requires_grad());
}

// Though the callee's result requires a gradient: in FAST mode it would be waited for.
TEST_P(DistributedPass, CallsWithoutGradientsAreNoPartOfTheGraph) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  {
    at::NoGradGuard noGradients;
    EXPECT_FALSE(a.call<&asLeaf>("B", x).requires_grad());
    EXPECT_EQ(1U, job.openContexts()) << "B has no part in it";
  }
  context.backward({cube(x).sum()});
  EXPECT_TRUE(close(context.gradient(x), localGradient(cube)));
}

// Also in the pass after it, which would wait for a gradient of the hook's call. One hook runs on this thread, where
// the context is current, and one where the gradients from B are read.
TEST_P(DistributedPass, CallsOfHooksAreNoPartOfTheGraph) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  const at::Tensor doubled = x * 2;
  const at::Tensor cubed = a.call<&cube>("B", doubled);
  for (const at::Tensor& tensor : {doubled, cubed})
    tensor.register_hook(
        [&](const at::Tensor& gradient) { EXPECT_FALSE(a.call<&asLeaf>("C", gradient).requires_grad()); });
  const at::Tensor loss = cubed.sum();
  const at::Tensor once = localGradient([](const at::Tensor& x) { return cube(x * 2); });
  for (const int pass : {1, 2}) {
    context.backward({loss}, {.retainGraph = true});
    EXPECT_TRUE(close(context.gradient(x), once * pass));
  }
  EXPECT_EQ(2U, job.openContexts()) << "of A and B; C had no part";
}

TEST_P(DistributedPass, GoesThroughNestedCalls) {
  at::Tensor x = leaf();
  {
    AutogradContext context(a);
    context.backward({a.call<&cubeAtC>("B", x).sum()});
    EXPECT_TRUE(close(context.gradient(x), localGradient([](const at::Tensor& x) { return cube(x.sin()) * 2; })));
  }
  expectAllReleased();
}

TEST_P(DistributedPass, GoesRoundInCircles) {
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

TEST_P(DistributedPass, GoesThroughAReference) {
  at::Tensor x = leaf();
  {
    AutogradContext context(a);
    RRef<at::Tensor> y = a.remote<&cube>("B", x);
    context.backward({(y.toHere() * 2).sum(), y.toHere().sum()});
    EXPECT_TRUE(close(context.gradient(x), localGradient([](const at::Tensor& x) { return 3 * cube(x); })));
  }
  expectAllReleased();
}

TEST_P(DistributedPass, WorksOnItsOwnWorkerToo) {
  at::Tensor x = leaf();
  {
    AutogradContext context(a);
    context.backward({a.call<&cube>("A", x).sum()});
    EXPECT_TRUE(close(context.gradient(x), localGradient(cube)));
  }
  expectAllReleased();
}

TEST_P(DistributedPass, OneTensorOfAMessageIsEnough) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  context.backward({a.call<&bothWays>("B", x)[1].sum()});
  EXPECT_TRUE(close(context.gradient(x), at::full({3}, 3.0, at::kDouble)));
}

TEST_P(DistributedPass, AsynchronousCallsTakePart) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  auto first = a.async<&cube>("B", x);
  auto second = a.async<&cube>("C", x);
  context.backward({(first.wait() * second.wait()).sum()});
  EXPECT_TRUE(close(context.gradient(x), localGradient([](const at::Tensor& x) { return cube(x) * cube(x); })));
}

// No recursion, neither over the network nor on the stack.
TEST_P(DistributedPass, AChainOfAThousandHops) {
  at::Tensor x = leaf(), y = x;
  AutogradContext context(a);
  for (int i = 0; i < 500; ++i) y = a.call<&plusOne>(i % 2 == 0 ? "B" : "C", y);
  context.backward({(y * y).sum()});
  EXPECT_TRUE(close(context.gradient(x), (2 * (x + 500)).detach()));
}

TEST_P(DistributedPass, AFanOfAThousandCalls) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  std::vector<Future<at::Tensor>> all;
  for (int i = 0; i < 1000; ++i) all.push_back(a.async<&cube>("B", x));
  std::vector<at::Tensor> came;
  for (Future<at::Tensor>& one : all) came.push_back(one.wait());
  context.backward({at::stack(came).sum()});
  EXPECT_TRUE(close(context.gradient(x), 1000 * localGradient(cube), 1e-9));
}

TEST_P(DistributedPass, ARetainedGraphServesAgainAndGradientsAddUp) {
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

TEST_P(DistributedPass, AContextServesSeveralForwardPasses) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  for (int pass = 1; pass <= 3; ++pass) {
    context.backward({a.call<&cube>("B", x).sum()});
    EXPECT_TRUE(close(context.gradient(x), pass * localGradient(cube)));
  }
}

TEST_P(DistributedPass, TheInnermostContextIsCurrent) {
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
TEST_P(DistributedPass, ManyContextsShareAServerThatOptimizersStep) {
  constexpr int kThreads = 8, kSteps = 10;
  constexpr double kLearningRate = 0.01;
  at::Tensor begun = leaf().detach().clone();
  at::Tensor weight = begun.clone().requires_grad_();
  {
    RRef<at::Tensor> reference = job[1].makeRRef(weight);
    Worker& b = job[1];
    // The parameter lives on B, whose own threads drive.
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

TEST_P(DistributedPass, SparseGradientsStaySparse) {
  at::Tensor table = at::rand({5, 3}, at::kDouble).requires_grad_(), indices = at::tensor({1, 4, 1}, at::kLong);
  at::Tensor expected = torch::autograd::grad({lookUp(table, indices).pow(2).sum()}, {table})[0].to_dense();
  RRef<at::Tensor> there = a.remote<&asLeaf>("B", table.detach());
  AutogradContext context(a);
  context.backward({a.call<&lookUp>("B", table, indices).pow(2).sum()});
  EXPECT_TRUE(context.gradient(table).is_sparse()) << "it came over the network";
  EXPECT_TRUE(close(context.gradient(table).to_dense(), expected));
  context.backward({a.call<&lookUpThere>("B", there, indices).pow(2).sum()});
  const auto gradients = treadle::gradients(job[1], context.id());
  ASSERT_EQ(gradients.size(), 1u);
  EXPECT_TRUE(gradients[0].second.is_sparse());
  EXPECT_TRUE(close(gradients[0].second.to_dense(), expected));
}

TEST_P(DistributedPass, AnyWorkerReadsItsGradientsByTheIdOfTheContext) {
  const at::Tensor weight = leaf(), other = leaf();
  RRef<at::Tensor> there = a.remote<&asLeaf>("B", weight.detach());
  int64_t id = 0;
  {
    AutogradContext context(a);
    id = context.id();
    EXPECT_TRUE(gradients(job[1], id).empty()) << "nothing of it has come there";
    EXPECT_FALSE(gradient(job[1], id, weight).defined());
    const at::Tensor x = leaf().detach();
    context.backward({a.call<&weighted>("B", there, x)});
    const auto all = gradients(job[1], id);
    ASSERT_EQ(all.size(), 1U);
    EXPECT_TRUE(close(all.front().first.detach(), weight.detach()));
    EXPECT_TRUE(close(all.front().second, x));
    EXPECT_TRUE(gradient(job[1], id, all.front().first).equal(all.front().second));
    EXPECT_FALSE(gradient(job[1], id, other).defined()) << "it took no part";
    EXPECT_TRUE(gradients(a, id).empty());
  }
  expectAllReleased();
  EXPECT_TRUE(gradients(job[2], id).empty()) << "it had no part";
  EXPECT_NE("", messageOf<NotFoundError>([&] { gradients(a, (int64_t{9999} << 40) | 1); })) << "of no worker";
  for (const size_t rank : {0, 1}) {
    EXPECT_NE("", messageOf<NotFoundError>([&] { gradients(job[rank], id); }));
    EXPECT_NE("", messageOf<NotFoundError>([&] { gradient(job[rank], id, weight); }));
  }
}

TEST_P(DistributedPass, TensorsWithoutGradientsMayBeAmongThem) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  auto mixed = a.call<&withItsMask>("B", x);
  EXPECT_EQ(mixed[0].scalar_type(), at::kBool);
  EXPECT_EQ(mixed[2].scalar_type(), at::kLong);
  context.backward({mixed[1].masked_select(mixed[0]).sum()});
  EXPECT_TRUE(close(context.gradient(x), at::where(x > 0, 2 * x, at::zeros_like(x)).detach()));
}

TEST_P(DistributedPass, TheRootMayBeOnAnotherWorker) {
  at::Tensor x = leaf();
  {
    AutogradContext context(a);
    RRef<at::Tensor> loss = a.remote<&sumOf>("C", a.call<&cubeAtC>("B", x));
    {
      AutogradContext other(a);
      context.backward(loss);
    }
    EXPECT_TRUE(close(context.gradient(x), localGradient([](const at::Tensor& x) { return cube(x.sin()) * 2; })));
    RRef<at::Tensor> own = a.makeRRef(a.call<&cube>("B", x).sum());
    context.backward(own);
    RRef<at::Tensor> elsewhere = a.remote<&sumOf>("B", x);
    {
      const at::NoGradGuard noGradients;  // of no account to a graph that is there
      context.backward(elsewhere);
    }
    messageOf<ArgumentError>([&] { context.backward(a.remote<&cube>("B", x)); });
  }
  expectAllReleased();
}

// ---- failures

TEST_P(FastPass, ASentTensorWithoutAGradientIsNamed) {
  at::Tensor x = leaf();
  {
    AutogradContext context(a);
    at::Tensor y = a.call<&detached>("B", x);
    std::string why = messageOf<StateError>([&] { context.backward({(x * y).sum()}); });
    for (const char* part : {"worker 'A' (rank 0) sent", "to worker 'B' (rank 1) (detached) tensors [0]", "kSmart"})
      EXPECT_TRUE(contains(why, part));
    messageOf<StateError>([&] { context.backward({(x * y).sum()}); });  // of no use any more
  }
  expectAllReleased();
}

TEST_P(FastPass, AnAnswerWithoutAGradientIsNamed) {
  at::Tensor x = leaf();
  {
    AutogradContext context(a);
    a.call<&cube>("B", x);
    std::string why = messageOf<StateError>([&] { context.backward({(x * 2).sum()}); });
    EXPECT_TRUE(contains(why, "(cube)"));
  }
  expectAllReleased();
}

TEST_P(DistributedPass, AnErrorInANodeElsewhereComesWithItsWorker) {
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

TEST_P(DistributedPass, AnErrorInANodeHereIsToldToo) {
  AutogradContext context(a);
  at::Tensor loss = failsInBackward(a.call<&cube>("B", leaf())).sum();
  EXPECT_TRUE(contains(messageOf<Error>([&] { context.backward({loss}); }), "the glue came off"));
}

// A's leaf has its gradient when B's node fails.
TEST_P(DistributedPass, AContextOfAFailedPassGivesNoGradientsAndNoStep) {
  at::Tensor x = leaf();
  auto optimizer = DistributedOptimizer::make<torch::optim::SGD>(a, {a.makeRRef(x)}, torch::optim::SGDOptions(0.1));
  {
    AutogradContext context(a);
    at::Tensor loss = (x * 2).sum() + a.call<&failsInBackward>("B", x * 3).sum();
    EXPECT_TRUE(contains(messageOf<Error>([&] { context.backward({loss}); }), "the glue came off"));
    std::vector<std::function<void()>> uses = {[&] { context.gradient(x); }, [&] { context.gradients(); },
                                               [&] { context.backward({x.sum()}); }, [&] { optimizer.step(context); }};
    for (Worker* worker : {&job[0], &job[1]}) uses.emplace_back([&, worker] { gradients(*worker, context.id()); });
    for (const auto& use : uses) {
      const std::string why = messageOf<Error>(use);
      EXPECT_TRUE(contains(why, "cannot be used after a failure") && contains(why, "the glue came off")) << why;
    }
    EXPECT_TRUE(at::equal(x, leaf()));
  }
  expectAllReleased();
}

// Of the same workers, with its own part of their graphs.
TEST_P(DistributedPass, OtherContextsGoOnWhenOneFails) {
  at::Tensor x = leaf();
  AutogradContext other(a);
  at::Tensor y = a.call<&cubeAtC>("B", x);
  {
    AutogradContext context(a);
    at::Tensor loss = a.call<&failsInBackward>("C", a.call<&cubeAtC>("B", x)).sum();
    messageOf<Error>([&] { context.backward({loss}); });
    EXPECT_TRUE(contains(messageOf<Error>([&] { context.backward({loss}); }), "the glue came off"))
        << "of no use any more";
  }
  other.backward({y.sum()});
  EXPECT_TRUE(close(other.gradient(x), localGradient([](const at::Tensor& x) { return cube(x.sin()) * 2; })));
}

// C has the context by way of B alone, so only B would report the end of the context to C. A itself sends nothing to C.
TEST_P(DistributedPass, AContextEndsBehindAWorkerThatIsLost) {
  {
    AutogradContext context(a);
    a.call<&cubeAtC>("B", leaf());
    const autograd::ContextPtr own = contextOf(a, context);
    const auto knowsC = [&] {
      MutexLock lock(own->mutex);
      return own->known.contains(2);
    };
    EXPECT_FALSE(knowsC());
    job.kill(1);
    EXPECT_EQ(job.openContexts(), 2U) << "A and C";
    EXPECT_TRUE(test::eventually(knowsC)) << "C did not report to the owner that it has the context";
  }
  expectAllReleased();
}

// The owner has ended the context before C asks the owner to report the end.
TEST_P(DistributedPass, AContextThatItsOwnerHasEndedEndsBehindAWorkerThatIsLost) {
  autograd::Contexts& contexts = autograd::interceptorOf(a).contexts();
  const autograd::ContextPtr own = contexts.create(GetParam());  // no AutogradContext, which would report its end to B
  {
    autograd::CurrentContext current(autograd::interceptorOf(a), own);
    a.call<&cubeAtC>("B", leaf());
  }
  contexts.release(own->id);
  EXPECT_EQ(job.openContexts(), 2U) << "B and C";
  job.kill(1);
  expectAllReleased();
}

TEST_P(DistributedPass, AWorkerLostDuringBackwardIsNamed) {
  AutogradContext context(a);
  at::Tensor loss = a.call<&gatedCubeAtC>("B", leaf()).sum();
  std::thread killer([&] {
    gates.reached.wait();
    job.kill(2);
    gates.released.open();
  });
  try {
    context.backward({loss});
    ADD_FAILURE() << "threw nothing";
  } catch (const PeerLostError& error) {
    EXPECT_EQ(error.worker(), "C") << error.what();
  }
  killer.join();
}

TEST_P(DistributedPass, AFailingNodeIsReportedWithTheCallThatMadeIt) {
  AutogradContext context(a);
  at::Tensor loss = a.call<&cube>("B", a.call<&failsInBackward>("C", leaf())).sum();
  std::string why = messageOf<Error>([&] { context.backward({loss}); });
  EXPECT_TRUE(contains(why, "FailingNode"));
  EXPECT_TRUE(contains(why, "made by 'failsInBackward' for worker 'A' (rank 0)"));
}

// Not the fetch of its result, which is the first message that depends on it.
TEST_P(DistributedPass, AFailingNodeOfAResultThatWasKeptIsReportedWithTheCallThatMadeIt) {
  AutogradContext context(a);
  RRef<at::Tensor> kept = a.remote<&failsInBackward>("C", leaf());
  at::Tensor loss = kept.toHere().sum();
  EXPECT_TRUE(
      contains(messageOf<Error>([&] { context.backward({loss}); }), "made by 'failsInBackward' for worker 'A'"));
}

TEST_P(DistributedPass, AFailingNodeThatNoHandlerMadeIsReportedWithTheCallThatItWentTo) {
  AutogradContext context(a);
  at::Tensor loss = a.call<&cube>("C", FailingNode::apply(leaf())).sum();
  EXPECT_TRUE(
      contains(messageOf<Error>([&] { context.backward({loss}); }), "of 'cube', behind its message 0 to worker"));
}

TEST_P(DistributedPass, AnomalyModeFindsTheNodeThatMadeANaN) {
  torch::autograd::AnomalyMode::set_enabled(true);
  {
    AutogradContext context(a);
    at::Tensor loss = a.call<&cube>("C", a.call<&rootOfDifference>("B", leaf())).sum();
    std::string why = messageOf<Error>([&] { context.backward({loss}); });
    for (const char* part : {"SqrtBackward", "NaN", "made by 'rootOfDifference'"}) EXPECT_TRUE(contains(why, part));
  }
  torch::autograd::AnomalyMode::set_enabled(false);
  AutogradContext context(a);
  at::Tensor x = leaf();
  context.backward({a.call<&rootOfDifference>("B", x).sum()});
  EXPECT_TRUE(context.gradient(x).isnan().all().item<bool>()) << "it is no error without";
}

TEST_P(DistributedPass, ATimeLimitNamesWhoHadNotDoneItsPart) {
  EXPECT_TRUE(withLongerLimits(200ms, [&](Duration limit) {
    AutogradContext context(a);
    at::Tensor loss = a.call<&gatedCubeAtC>("B", leaf()).sum();
    Status why = statusOf<TimeoutError>([&] { context.backward({loss}, {.timeout = limit}); });
    EXPECT_TRUE(contains(why.message(), "within " + toText(limit)));
    messageOf<TimeoutError>([&] { context.backward({loss}); });  // of no use any more
    // B must receive its part within the limit.
    auto named = contains(why.message(), "worker 'B' (rank 1)");
    EXPECT_FALSE(contains(why.message(), "worker 'A'")) << why.message();
    if (named) gates.released.open();
    return named;
  }));
  gates.released.open();
  {
    AutogradContext other(a);
    other.backward({a.call<&cube>("B", leaf()).sum()}, {.timeout = kHangs});
  }
  expectAllReleased();
}

// A fails at once, while a node of B runs on.
TEST_P(DistributedPass, ATimeLimitIsOneOfTheEndOfAFailedPassToo) {
  at::Tensor x = leaf();
  EXPECT_TRUE(withLongerLimits(300ms, [&](Duration limit) {
    AutogradContext context(a);
    at::Tensor fails = FailsWhenReached::apply(x), gated = a.call<&gatedCube>("B", x);
    std::string why = messageOf<Error>([&] { context.backward({(fails + gated).sum()}, {.timeout = limit}); });
    auto failed = contains(why, "the glue came off");  // as long as A gets that far within the limit
    EXPECT_TRUE(failed || contains(why, "within " + toText(limit))) << why;
    if (failed) gates.released.open();  // only now can B be done with it
    return failed;
  }));
  gates.released.open();
  expectAllReleased();
}

// The answer to B's gradients leaves before the nodes behind them run.
TEST_P(DistributedPass, AWorkerEndsItsPartWhileTheLastNodesOfAnotherRun) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  const at::Tensor loss = a.call<&cube>("B", GatedNode::apply(x)).sum();
  std::thread pass([&] { EXPECT_NO_THROW(context.backward({loss})); });
  gates.reached.wait();
  const autograd::ContextPtr there = contextOf(job[1], context);
  EXPECT_TRUE(eventually([&] {
    MutexLock lock(there->mutex);
    return there->lastEnded != 0;
  })) << "B waits for A";
  gates.released.open();
  pass.join();
  EXPECT_TRUE(close(context.gradient(x), localGradient(cube)));
}

// So it counts its graph while the first nodes run elsewhere.
TEST_P(DistributedPass, InSmartModeAWorkerKnowsOfAPassAheadOfItsGradients) {
  if (GetParam() == AutogradMode::kFast) return;  // there gradients begin it
  at::Tensor x = leaf();
  AutogradContext context(a);
  const at::Tensor loss = GatedNode::apply(a.call<&cube>("B", x)).sum();
  std::thread pass([&] { EXPECT_NO_THROW(context.backward({loss})); });
  gates.reached.wait();
  const autograd::ContextPtr there = contextOf(job[1], context);
  EXPECT_TRUE(eventually([&] {
    MutexLock lock(there->mutex);
    return there->live && there->live->begun && there->live->pass;
  }));
  gates.released.open();
  pass.join();
  EXPECT_TRUE(close(context.gradient(x), localGradient(cube)));
}

// They are known all at once, and are more than one message can carry.
TEST_P(DistributedPass, MoreGradientsThanAMessageHolds) {
  at::Tensor x = at::ones({}, at::kDouble).requires_grad_();
  std::vector<at::Tensor> all;
  AutogradContext context(a);
  for (int i = 0; i < 10; ++i)
    for (at::Tensor& one : a.call<&copies>("B", x, 7000)) all.push_back(std::move(one));
  context.backward({at::stack(all).sum()});
  EXPECT_DOUBLE_EQ(context.gradient(x).item<double>(), 70000);
}

TEST_P(FastPass, AContextOfWhichAPassEndedBadlyElsewhereTakesNoOther) {
  AutogradContext context(a);
  at::Tensor x = leaf();
  a.call<&cubeAtC>("B", x);  // nothing comes for what A, B and C sent for it
  at::Tensor used = a.call<&cube>("B", x);
  std::string why = messageOf<StateError>([&] { context.backward({used.sum()}, {.retainGraph = true}); });
  for (const char* part :
       {"1 of 2 messages that worker 'A' (rank 0) sent", "to worker 'B' (rank 1) (cubeAtC) tensors [0]",
        "2 of 3 messages that worker 'B' (rank 1) sent", "to worker 'C' (rank 2) (cube) tensors [0]",
        "to worker 'A' (rank 0) (cubeAtC) tensors [0]", "1 of 1 messages that worker 'C' (rank 2) sent"})
    EXPECT_TRUE(contains(why, part));
  EXPECT_TRUE(contains(messageOf<StateError>([&] { context.backward({used.sum()}); }), why));
}

TEST_P(DistributedPass, RootsThatCannotBeDifferentiatedAreRefused) {
  AutogradContext context(a);
  messageOf<ArgumentError>([&] { context.backward({leaf().detach().sum()}); });
  messageOf<ArgumentError>([&] { context.backward({leaf() * 2}); });
  messageOf<ArgumentError>([&] { context.backward({at::Tensor()}); });
}

// ---- what takes part

TEST_P(SmartPass, DoesNotWaitForWhatTheRootsDoNotDependOn) {
  at::Tensor x = leaf(), y = leaf();
  {
    AutogradContext context(a);
    at::Tensor unused = a.call<&cube>("B", y), used = a.call<&cubeAtC>("B", x), plain = a.call<&detached>("C", y);
    context.backward({(used + plain).sum()});
    EXPECT_TRUE(close(context.gradient(x), localGradient([](const at::Tensor& x) { return cube(x.sin()) * 2; })));
    EXPECT_FALSE(context.gradient(y).defined());
    context.backward({unused.sum()});
    EXPECT_TRUE(close(context.gradient(y), localGradient(cube)));
  }
  expectAllReleased();
}

TEST_P(SmartPass, TakesOneTensorOfAMessageAndAnotherLater) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  auto both = a.call<&bothWays>("B", x);
  context.backward({both[0].sum()}, {.retainGraph = true});
  EXPECT_TRUE(close(context.gradient(x), at::full({3}, 2.0, at::kDouble)));
  context.backward({both[1].sum()});
  EXPECT_TRUE(close(context.gradient(x), at::full({3}, 5.0, at::kDouble)));
}

TEST_P(SmartPass, RootsThatDependOnNoMessageNeedNoWorker) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  a.call<&cube>("B", x);
  job.kill(1);
  context.backward({(x * 2).sum()});
  EXPECT_TRUE(close(context.gradient(x), at::full({3}, 2.0, at::kDouble)));
}

TEST_P(DistributedPass, AContextMayHaveAnotherModeThanItsWorkersOthers) {
  at::Tensor x = leaf();
  const auto leavesOneOut = [&](AutogradMode mode) {
    AutogradContext context(a, {mode});
    a.call<&cube>("B", x);
    context.backward({a.call<&cube>("B", x).sum()});
    EXPECT_TRUE(close(context.gradient(x), localGradient(cube)));
  };
  leavesOneOut(AutogradMode::kSmart);
  messageOf<StateError>([&] { leavesOneOut(AutogradMode::kFast); });
}

TEST_P(DistributedPass, ATensorOfAnotherContextIsRefusedByBothNames) {
  AutogradContext outer(a);
  at::Tensor received = a.call<&cube>("B", leaf());
  AutogradContext inner(a);
  std::string why =
      messageOf<StateError>([&] { inner.backward({a.call<&cube>("B", received * 2).sum() + received.sum()}); });
  for (int64_t id : {outer.id(), inner.id()}) EXPECT_TRUE(contains(why, "context " + std::to_string(id)));
}

TEST_P(DistributedPass, APlainBackwardThroughAReceivedTensorIsRefused) {
  AutogradContext context(a);
  at::Tensor loss = a.call<&cube>("B", leaf()).sum();
  EXPECT_TRUE(contains(messageOf<StateError>([&] { loss.backward(); }), "AutogradContext::backward"));
}

TEST_P(DistributedPass, AWorkerWithoutTensorsHasNoContexts) {
  auto plain = Worker::join({.name = "plain", .launch = Launch{0, 1, "127.0.0.1", freePort(), ""}});
  EXPECT_TRUE(contains(messageOf<StateError>([&] { AutogradContext context(*plain); }), "treadle::join"));
  plain->shutdown();
}

// ---- what contexts leave behind

TEST_P(DistributedPass, AContextThatEndsDuringACallIsReleasedAllTheSame) {
  Future<at::Tensor> answer;
  {
    AutogradContext context(a);
    answer = a.async<&lateCubeAtC>("B", leaf());
    gates.reached.wait();
  }
  EXPECT_TRUE(test::eventuallyReleased([&] { return job.openContexts() == 0; }));
  gates.released.open();
  EXPECT_TRUE(contains(messageOf<NotFoundError>([&] { answer.wait(); }), "has ended"));
  EXPECT_EQ(job.openContexts(), 0u) << "the call to C brought it back to life";
}

TEST_P(SmartPass, ADroppedResultFreesTheGraphBehindItEverywhere) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  at::Tensor y = a.call<&cubeAtC>("B", x), loss = (y * 2).sum();
  EXPECT_EQ(job.sendsKept(context.id()), 4u);
  y.reset();
  a.call<&cube>("C", at::ones({1}));  // a notice may wait for a message to go with
  EXPECT_EQ(job.sendsKept(context.id()), 4u) << "the loss keeps it all";
  loss.reset();
  EXPECT_TRUE(test::eventuallyReleased([&] { return job.sendsKept(context.id()) == 0; }))
      << job.sendsKept(context.id());
  context.backward({a.call<&cubeAtC>("B", x).sum()});
  EXPECT_TRUE(close(context.gradient(x), localGradient([](const at::Tensor& x) { return cube(x.sin()) * 2; })));
  EXPECT_TRUE(test::eventuallyReleased([&] { return job.sendsKept(context.id()) == 0; }));
}

TEST_P(SmartPass, ADroppedLossFreesTheNodesOfBothWorkers) {
  const auto alive = [](int64_t worker) { return CountedNode::Life::alive(worker).load(); };
  at::Tensor x = leaf();
  AutogradContext context(a);
  at::Tensor loss = counted(a.call<&counted>("B", counted(x, 0), 1), 0).sum();
  a.call<&cube>("B", at::ones({1}));  // a notice may wait for a message to go with
  EXPECT_EQ(alive(0), 2) << "the loss keeps them";
  EXPECT_EQ(alive(1), 1) << "and that of B";
  loss.reset();
  EXPECT_TRUE(test::eventuallyReleased([&] { return alive(0) == 0 && alive(1) == 0; })) << alive(0) << ", " << alive(1);
}

TEST_P(SmartPass, WhatTheCalleeKeepsIsKept) {
  at::Tensor x = leaf();
  AutogradContext context(a);
  RRef<at::Tensor> kept = a.remote<&cube>("B", x);
  kept.waitUntilReady();
  for (int i = 0; i < 20; ++i) a.call<&cube>("B", x);
  EXPECT_TRUE(eventually([&] { return job.sendsKept(context.id()) == 1; })) << job.sendsKept(context.id());
  context.backward({kept.toHere().sum()});
  EXPECT_TRUE(close(context.gradient(x), localGradient(cube)));
}

// One of two tensors of a message was used up; the other one depends on something else.
TEST_P(SmartPass, APassGoesThroughWhatAnotherLeft) {
  at::Tensor x = leaf(), y = leaf();
  AutogradContext context(a);
  at::Tensor first = a.call<&cube>("C", x), second = a.call<&cube>("C", y);
  auto both = a.call<&swapped>("B", first, second);
  context.backward({both[0].sum()});
  EXPECT_TRUE(close(context.gradient(y), localGradient(cube)));
  context.backward({both[1].sum()});
  EXPECT_TRUE(close(context.gradient(x), localGradient(cube)));
  std::string why = messageOf<StateError>([&] { context.backward({(both[0] + both[1]).sum()}); });
  EXPECT_TRUE(contains(why, "retainGraph"));
}

}  // namespace
}  // namespace treadle::test::distributed_pass_test
