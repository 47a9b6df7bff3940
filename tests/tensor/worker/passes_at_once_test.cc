// What goes on beside a backward pass over real workers: a branch that fails while another one works, a second pass of
// the same context, and a context that takes the place of another.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <treadle/autograd.h>
#include <treadle/optim.h>

#include <memory>
#include <thread>

#include "tests/support/gate.h"
#include "tests/support/gated_node.h"
#include "tests/support/passes_of.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::passes_at_once_test {
namespace {

struct FailsWhenReached : torch::autograd::Function<FailsWhenReached> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    NodeGates::here->reached.wait();
    throw std::runtime_error("the glue came off");
  }
};

at::Tensor cube(const at::Tensor& x) { return x * x * x; }
at::Tensor cubeAtC(CallContext& call, const at::Tensor& x) { return call.worker().call<&cube>("C", x); }
at::Tensor gated(const at::Tensor& x) { return GatedNode::apply(x * 3); }
at::Tensor failsMeanwhile(const at::Tensor& x) { return FailsWhenReached::apply(x); }
at::Tensor parameterOfB;
RRef<at::Tensor> parameter(CallContext& call) { return call.worker().makeRRef(parameterOfB); }
at::Tensor weighted(const RRef<at::Tensor>& weight, const at::Tensor& x) { return (weight.localValue() * x).sum(); }
at::Tensor leaf() { return at::tensor({0.3, -1.2, 2.5}, at::kDouble).requires_grad_(); }
at::Tensor gradientOfCube(const at::Tensor& x) { return 3 * x.detach().square(); }

class PassesAtOnce : public ::testing::TestWithParam<AutogradMode> {
 protected:
  template <class Optimizer, class Options>
  void trainedBeside(Worker& owner, const Options& options) {
    const auto reference = owner.call<&parameter>("B");
    auto optimizer = DistributedOptimizer::make<Optimizer>(owner, {reference}, options);
    for (int step = 0; step < 5; ++step) {
      AutogradContext context(owner);
      const at::Tensor x = leaf();
      context.backward({owner.call<&weighted>("B", reference, x)});
      EXPECT_TRUE(context.gradient(x).defined()) << "the parameter was stepped meanwhile";
      EXPECT_TRUE(close(gradient(job[1], context.id(), parameterOfB), x.detach()));
      optimizer.step(context);
    }
  }

  // Passes of A and of C over a parameter of B, which the optimizers of both step between the forward and the backward
  // part of others.
  template <class Optimizer, class Options>
  void expectStepsBesidePasses(const Options& options) {
    parameterOfB = leaf();
    std::vector<std::thread> threads;
    for (const size_t rank : {0, 2, 0, 2})
      threads.emplace_back([&, rank] { EXPECT_NO_THROW((trainedBeside<Optimizer, Options>(job[rank], options))); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_FALSE(close(parameterOfB.detach(), leaf().detach(), 1e-3));
    EXPECT_TRUE(parameterOfB.detach().isfinite().all().item<bool>());
    parameterOfB.reset();
  }

  NodeGates gates;
  TensorJob job{{"A", "B", "C"},
                Functions()
                    .add<&cube>("cube")
                    .add<&cubeAtC>("cubeAtC")
                    .add<&gated>("gated")
                    .add<&parameter>("parameter")
                    .add<&weighted>("weighted")
                    .add<&failsMeanwhile>("failsMeanwhile"),
                {GetParam()}};
  Worker& a = job[0];
};
INSTANTIATE_TEST_SUITE_P(Modes, PassesAtOnce, ::testing::Values(AutogradMode::kSmart, AutogradMode::kFast));

// Else B, and whoever works for it, would do all of its part for nothing.
TEST_P(PassesAtOnce, AFailureReachesAWorkerThatHasNotAnswered) {
  const at::Tensor x = leaf();
  AutogradContext context(a);
  const at::Tensor fails = a.call<&failsMeanwhile>("C", x),
                   works = a.call<&gated>("B", x);  // B gets its gradients first
  std::thread pass([&] {
    try {
      context.backward({(fails + works).sum()});
      ADD_FAILURE() << "it went well";
    } catch (const Error& error) {
      EXPECT_EQ(error.worker(), "C") << error.what();
      EXPECT_TRUE(contains(error.what(), "the glue came off")) << error.what();
    }
  });
  gates.reached.wait();
  EXPECT_TRUE(eventually([&] { return knowsOfAFailure(job[1], context); })) << "B works on";
  gates.released.open();
  pass.join();
}

TEST_P(PassesAtOnce, AContextTakesOneAtATime) {
  const at::Tensor x = leaf();
  AutogradContext context(a);
  const at::Tensor loss = a.call<&gated>("B", x).sum(), other = (x * 2).sum();
  std::thread pass([&] { EXPECT_NO_THROW(context.backward({loss})); });
  gates.reached.wait();
  EXPECT_TRUE(contains(messageOf<StateError>([&] { context.backward({other}); }), "is under way"));
  gates.released.open();
  pass.join();
  EXPECT_TRUE(close(context.gradient(x), at::full({3}, 3.0, at::kDouble)));
  context.backward({other});
  EXPECT_TRUE(close(context.gradient(x), at::full({3}, 5.0, at::kDouble)));
}

// C has ended it well by then, and gave its gradients to whoever asked.
TEST_P(PassesAtOnce, AFailureAtItsEndReachesThoseOnWhichItHasEndedWell) {
  AutogradContext context(a);
  const at::Tensor result = a.call<&cube>("C", leaf());
  result.register_hook([](const at::Tensor&) {
    autograd::Pass::current()->onFinish([](const Status&) { throw std::runtime_error("the glue came off"); });
  });
  std::string why = messageOf<Error>([&] { context.backward({result.sum()}); });
  EXPECT_TRUE(contains(why, "the glue came off")) << why;
  why = messageOf<CancelledError>([&] { gradients(job[2], context.id()); });
  EXPECT_TRUE(contains(why, "the glue came off")) << why;
}

TEST_P(PassesAtOnce, AContextThatGoesMeanwhileEndsItsPass) {
  auto context = std::make_unique<AutogradContext>(a);
  const at::Tensor loss = a.call<&gated>("B", leaf()).sum();
  std::thread pass([&, running = context.get()] {
    const std::string why = messageOf<CancelledError>([&] { running->backward({loss}); });
    EXPECT_TRUE(contains(why, "has ended")) << why;
  });
  gates.reached.wait();
  context.reset();
  gates.released.open();  // B ends the node that runs before backward returns, unless it has heard of the end
  pass.join();
  EXPECT_TRUE(eventually([&] { return job.openContexts() == 0; }));
}

TEST_P(PassesAtOnce, AnyOptimizerMayStepTheirParameters) {
  using namespace torch::optim;
  expectStepsBesidePasses<SGD>(SGDOptions(0.01).momentum(0.9));
  expectStepsBesidePasses<Adam>(AdamOptions(0.01));
  expectStepsBesidePasses<AdamW>(AdamWOptions(0.01));
  expectStepsBesidePasses<Adagrad>(AdagradOptions(0.01));
  expectStepsBesidePasses<RMSprop>(RMSpropOptions(0.01));
}

// The old one ends after the new one was made.
TEST_P(PassesAtOnce, AContextMayTakeThePlaceOfAnother) {
  const at::Tensor x = leaf();
  std::unique_ptr<AutogradContext> context;
  for (int step = 0; step < 3; ++step) {
    context = std::make_unique<AutogradContext>(a);
    context->backward({(a.call<&cubeAtC>("B", x) + x).sum()});
    EXPECT_TRUE(close(context->gradient(x), gradientOfCube(x) + 1)) << "step " << step;
  }
  context.reset();
  EXPECT_FALSE(a.call<&cube>("B", x).requires_grad()) << "no context is current";
  EXPECT_TRUE(test::eventuallyReleased([&] { return job.openContexts() == 0; }));
}

}  // namespace
}  // namespace treadle::test::passes_at_once_test
