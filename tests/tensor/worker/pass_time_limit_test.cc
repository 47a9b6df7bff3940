// A pass that is over its time limit has ended on all workers, not for its caller alone: those that waited for
// gradients let go of it, what a node does that was still running is dropped, and then other passes work.

#include <treadle/autograd.h>

#include "tests/support/gate.h"
#include "tests/support/gated_node.h"
#include "tests/support/passes_of.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::pass_time_limit_test {
namespace {

using namespace std::chrono_literals;

// Of the test that runs.
struct Place : NodeGates {
  Counter behind;  // how often gradients came to C, which is behind that node
  at::Tensor weight = at::full({2}, 2.0, at::kDouble).requires_grad_();  // on B, behind it likewise
};
Place* place = nullptr;

struct AccumulatedHook : torch::autograd::PostAccumulateGradHook {
  void operator()(const at::Tensor&) override {}
};

at::Tensor twiceCounted(const at::Tensor& x) {
  at::Tensor y = x * 2;
  y.register_hook([](const at::Tensor&) { place->behind.add(); });
  return y;
}
at::Tensor weightedAtC(CallContext& call, const at::Tensor& x) {
  return call.worker().call<&twiceCounted>("C", x) * place->weight;
}
at::Tensor gatedAtB(CallContext& call, const at::Tensor& x) { return GatedNode::apply(weightedAtC(call, x)); }
at::Tensor gatedSumAtB(CallContext& call, const at::Tensor& x) { return gatedAtB(call, x).sum(); }
at::Tensor leaf() { return at::tensor({0.3, -1.2}, at::kDouble).requires_grad_(); }

class PassTimeLimit : public ::testing::TestWithParam<AutogradMode> {
 protected:
  PassTimeLimit() { place = &ofThis; }
  ~PassTimeLimit() override { ofThis.released.open(); }

  // Has the gated node of a pass at B run over the time limit; its context, or none if B did not get that far.
  std::unique_ptr<AutogradContext> stuck(Duration limit) {
    auto context = std::make_unique<AutogradContext>(a);
    at::Tensor loss = a.call<&gatedAtB>("B", leaf()).sum();
    messageOf<TimeoutError>([&] { context->backward({loss}, {.timeout = limit}); });
    EXPECT_FALSE(isUnderWay(0, *context));
    EXPECT_TRUE(eventually([&] { return ofThis.reached.isOpen() || hasEndedBadly(1, *context); }));
    return ofThis.reached.isOpen() ? std::move(context) : nullptr;
  }
  std::unique_ptr<AutogradContext> stuckPass() {
    std::unique_ptr<AutogradContext> context;
    EXPECT_TRUE(withLongerLimits(200ms, [&](Duration limit) { return (context = stuck(limit)) != nullptr; }));
    return context;
  }

  bool isUnderWay(size_t rank, const AutogradContext& context) {
    const autograd::ContextPtr there = contextOf(job[rank], context);
    MutexLock lock(there->mutex);
    return there->live.has_value();
  }
  // Opens the gate once B has heard of the end, and returns when B is done.
  void release(const AutogradContext& context) {
    EXPECT_TRUE(eventually([&] { return knowsOfAFailure(job[1], context); })) << "B has not heard of the end";
    ofThis.released.open();
    EXPECT_TRUE(eventually([&] { return !isUnderWay(1, context); })) << "B is not done with it";
  }
  Status brokenBy(size_t rank, const AutogradContext& context) {
    const autograd::ContextPtr there = contextOf(job[rank], context);
    MutexLock lock(there->mutex);
    return there->broken;
  }
  bool hasEndedBadly(size_t rank, const AutogradContext& context) {
    return !brokenBy(rank, context).ok() && !isUnderWay(rank, context);
  }
  void expectAnotherPassWorks() {
    at::Tensor x = leaf();
    const int before = ofThis.behind.count();
    AutogradContext other(a);
    other.backward({a.call<&weightedAtC>("B", x).sum()}, {.timeout = kHangs});
    EXPECT_TRUE(close(other.gradient(x), at::full({2}, 4.0, at::kDouble)));
    EXPECT_TRUE(close(gradient(job[1], other.id(), ofThis.weight), (x * 2).detach()));
    EXPECT_EQ(ofThis.behind.count(), before + 1);
  }

  Place ofThis;
  TensorJob job{{"A", "B", "C"},
                Functions()
                    .add<&twiceCounted>("twiceCounted")
                    .add<&weightedAtC>("weightedAtC")
                    .add<&gatedAtB>("gatedAtB")
                    .add<&gatedSumAtB>("gatedSumAtB"),
                {GetParam()},
                [](JoinOptions& options) { options.maxConcurrentHandlers = 2; }};
  Worker& a = job[0];
};
INSTANTIATE_TEST_SUITE_P(Modes, PassTimeLimit, ::testing::Values(AutogradMode::kSmart, AutogradMode::kFast));

// While the node of B is still running.
TEST_P(PassTimeLimit, EndsThePassOnTheOthersToo) {
  const auto context = stuckPass();
  ASSERT_TRUE(context);
  EXPECT_TRUE(eventually([&] { return hasEndedBadly(2, *context); })) << "C has not heard of the end";
  EXPECT_FALSE(isUnderWay(2, *context)) << "C waits no longer";
  EXPECT_TRUE(contains(brokenBy(2, *context).message(), "BackwardOptions::timeout")) << "C knows why";
  EXPECT_TRUE(isUnderWay(1, *context)) << "the node of B runs on";
}

// It is the user's own, of the fetch and the pass together.
TEST_P(PassTimeLimit, IsNamedForARemoteRootToo) {
  EXPECT_TRUE(withLongerLimits(300ms, [&](Duration limit) {
    AutogradContext context(a);
    const RRef<at::Tensor> loss = a.remote<&gatedSumAtB>("B", leaf());
    loss.waitUntilReady();
    const std::string why = messageOf<TimeoutError>([&] { context.backward(loss, {.timeout = limit}); });
    return contains(why, "within " + toText(limit) + " (BackwardOptions::timeout)");
  }));
  ofThis.released.open();
}

TEST_P(PassTimeLimit, HoldsNoOtherPassUp) {
  const auto context = stuckPass();
  ASSERT_TRUE(context);
  EXPECT_TRUE(eventually([&] { return hasEndedBadly(2, *context); }));
  expectAnotherPassWorks();
  EXPECT_FALSE(ofThis.released.isOpen());
}

TEST_P(PassTimeLimit, DropsWhatANodeDoesThatIsLate) {
  const auto context = stuckPass();
  ASSERT_TRUE(context);
  release(*context);
  EXPECT_TRUE(contains(brokenBy(1, *context).message(), "BackwardOptions::timeout"));
  for (const size_t rank : {1, 2})
    EXPECT_TRUE(contextOf(job[rank], *context)->graph->gradients().all().empty()) << "of rank " << rank;
  expectAnotherPassWorks();
}

// A parameter with hooks lends its `.grad` to the pass.
TEST_P(PassTimeLimit, GivesParametersWithHooksBack) {
  ofThis.weight.mutable_grad() = at::full({2}, 7.0, at::kDouble);
  torch::autograd::impl::set_post_acc_grad_hooks(ofThis.weight, std::make_unique<AccumulatedHook>());
  const auto context = stuckPass();
  ASSERT_TRUE(context);
  release(*context);
  EXPECT_TRUE(close(ofThis.weight.grad(), at::full({2}, 7.0, at::kDouble))) << "nothing of the pass is left in it";
  expectAnotherPassWorks();
}

}  // namespace
}  // namespace treadle::test::pass_time_limit_test
