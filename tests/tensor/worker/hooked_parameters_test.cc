// Two contexts over a parameter whose hooks look at `.grad`: there is one `.grad`, so while a pass of the first is
// under way, one of the second is refused before it runs anything, and works after the first has ended.

#include <treadle/autograd.h>

#include <thread>

#include "tests/support/gate.h"
#include "tests/support/gated_node.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::hooked_parameters_test {
namespace {

// Of the test that runs.
struct Place : NodeGates {  // the gated node is on C
  Counter hooks;            // how often what is in front of the parameter, and behind it, has been called
  at::Tensor weight = at::full({2}, 2.0, at::kDouble).requires_grad_();
};
Place* place = nullptr;

struct AccumulatedHook : torch::autograd::PostAccumulateGradHook {
  void operator()(const at::Tensor&) override { place->hooks.add(); }
};

at::Tensor gated(const at::Tensor& x) { return GatedNode::apply(x); }
at::Tensor plain(const at::Tensor& x) { return x.clone(); }
// Only the call to C runs after the parameter's part of the pass. It keeps the pass under way on this worker.
at::Tensor weighted(Worker& worker, const at::Tensor& x, bool waits) {
  at::Tensor y = (waits ? worker.call<&gated>("C", x) : worker.call<&plain>("C", x)) * place->weight;
  y.register_hook([](const at::Tensor&) { place->hooks.add(); });
  return y;
}
at::Tensor weightedThere(CallContext& call, const at::Tensor& x, bool waits) {
  return weighted(call.worker(), x, waits);
}
at::Tensor leaf() { return at::tensor({0.3, -1.2}, at::kDouble).requires_grad_(); }

class HookedParameters : public ::testing::TestWithParam<AutogradMode> {
 protected:
  HookedParameters() {
    place = &ofThis;
    torch::autograd::impl::set_post_acc_grad_hooks(ofThis.weight, std::make_unique<AccumulatedHook>());
    ofThis.weight.mutable_grad() = old;
  }

  at::Tensor lossHere(const at::Tensor& x, bool waits) { return weighted(a, x, waits).sum(); }

  at::Tensor lossAtB(const at::Tensor& x, bool waits) { return a.call<&weightedThere>("B", x, waits).sum(); }

  // Calls `second` while a pass of a first context has the parameter, on B or here.
  void whileInUse(bool atB, const std::function<void(int64_t firstId)>& second) {
    at::Tensor x = leaf();
    AutogradContext context(a);
    at::Tensor loss = atB ? lossAtB(x, true) : lossHere(x, true);
    std::jthread first([&] { context.backward({loss}); });
    ofThis.reached.wait();
    ofThis.hooks.waitFor(2);
    EXPECT_FALSE(ofThis.weight.grad().is_same(old)) << "it is lent to the first pass";
    second(context.id());
    ofThis.released.open();
    first.join();
    EXPECT_TRUE(close(context.gradient(x), at::full({2}, 2.0, at::kDouble)));
    EXPECT_TRUE(close(gradient(job[atB ? 1 : 0], context.id(), ofThis.weight), x.detach())) << "of the first alone";
    expectGivenBack();
  }
  void expectGivenBack() {
    EXPECT_TRUE(ofThis.weight.grad().is_same(old));
    EXPECT_TRUE(close(old, at::full({2}, 7.0, at::kDouble)));
  }
  void expectRefused(AutogradContext& second, const at::Tensor& loss, int64_t firstId) {
    const int before = ofThis.hooks.count();
    std::string why = messageOf<StateError>([&] { second.backward({loss}, {.timeout = kHangs}); });
    for (int64_t id : {firstId, second.id()}) EXPECT_TRUE(contains(why, std::to_string(id)));
    EXPECT_TRUE(contains(why, "[2]")) << "the shape";
    EXPECT_EQ(ofThis.hooks.count(), before) << "it has run something";
  }

  const at::Tensor old = at::full({2}, 7.0, at::kDouble);
  Place ofThis;
  TensorJob job{{"A", "B", "C"},
                Functions().add<&gated>("gated").add<&plain>("plain").add<&weightedThere>("weightedThere"),
                {GetParam()}};
  Worker& a = job[0];
};
INSTANTIATE_TEST_SUITE_P(Modes, HookedParameters, ::testing::Values(AutogradMode::kSmart, AutogradMode::kFast));

// The worker that calls backward sees it before it tells anybody: the context is as good as before.
TEST_P(HookedParameters, OfTheCallerAreRefusedToASecondContextUntilTheFirstHasEnded) {
  at::Tensor x = leaf();
  AutogradContext second(a);
  at::Tensor loss = lossHere(x, false);
  whileInUse(false, [&](int64_t firstId) {
    expectRefused(second, loss, firstId);
    EXPECT_FALSE(second.gradient(x).defined());
  });
  second.backward({loss});
  EXPECT_TRUE(close(second.gradient(x), at::full({2}, 2.0, at::kDouble)));
  EXPECT_TRUE(close(second.gradient(ofThis.weight), x.detach()));
  expectGivenBack();
}

// The context that is refused has begun to run elsewhere, so it cannot be used again, as any whose pass has failed.
TEST_P(HookedParameters, OfAnotherWorkerAreRefusedToASecondContextUntilTheFirstHasEnded) {
  {
    AutogradContext second(a);
    at::Tensor loss = lossAtB(leaf(), false);
    whileInUse(true, [&](int64_t firstId) { expectRefused(second, loss, firstId); });
  }
  at::Tensor x = leaf();
  AutogradContext third(a);
  third.backward({lossAtB(x, false)});
  EXPECT_TRUE(close(third.gradient(x), at::full({2}, 2.0, at::kDouble)));
  EXPECT_TRUE(close(gradient(job[1], third.id(), ofThis.weight), x.detach()));
  expectGivenBack();
}

}  // namespace
}  // namespace treadle::test::hooked_parameters_test
