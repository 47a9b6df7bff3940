// treadle::checkpoint in plain and in distributed passes: the gradients of plain autograd, with each segment run twice.

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <treadle/autograd.h>

#include <atomic>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::checkpointed_segment_test {
namespace {

using Tensors = std::vector<at::Tensor>;

std::atomic<int> runs = 0;

at::Tensor dense(const at::Tensor& input, const at::Tensor& weight) {
  ++runs;
  return at::tanh(input.mm(weight)).mm(weight);
}
at::Tensor checkpointedDense(const at::Tensor& input, const at::Tensor& weight) {
  return checkpoint([](const Tensors& in) { return Tensors{dense(in[0], in[1])}; }, {input, weight}).front();
}

at::Tensor& captured() {
  static at::Tensor weight = at::eye(4, at::kDouble).mul(0.5).requires_grad_();
  return weight;
}
at::Tensor checkpointedWithCaptured(const at::Tensor& input) {
  return checkpoint([](const at::Tensor& in) { return dense(in, captured()); }, input, {.parameters = {captured()}});
}
at::Tensor doubled(const at::Tensor& x) { return x * 2; }
at::Tensor withCall(CallContext& call, const at::Tensor& input) {
  Worker& worker = call.worker();
  return checkpoint([&worker](const at::Tensor& in) { return worker.call<&doubled>("C", in); }, input);
}

at::Tensor leaf() { return at::randn({4, 4}, at::kDouble).requires_grad_(); }

class CheckpointedSegments : public ::testing::TestWithParam<AutogradMode> {
 protected:
  TensorJob job{{"A", "B", "C"},
                Functions()
                    .add<&checkpointedDense>("checkpointedDense")
                    .add<&checkpointedWithCaptured>("checkpointedWithCaptured")
                    .add<&doubled>("doubled")
                    .add<&withCall>("withCall"),
                {GetParam()}};
  Worker& a = job[0];
  at::Tensor x = leaf(), w = leaf();
};

// At the caller, at the callee, and one behind the other.
TEST_P(CheckpointedSegments, HaveTheGradientsOfPlainOnesAndRunTwice) {
  const Tensors expected = torch::autograd::grad({dense(dense(dense(x, w), w), w).square().sum()}, {x, w});
  runs = 0;
  AutogradContext context(a);
  const at::Tensor there = a.call<&checkpointedDense>("B", checkpointedDense(x, w), w);
  const at::Tensor loss = checkpointedDense(there, w).square().sum();
  EXPECT_EQ(runs, 3);
  context.backward({loss});
  EXPECT_EQ(runs, 6);
  EXPECT_TRUE(closeToLargest(context.gradient(x), expected[0]));
  EXPECT_TRUE(closeToLargest(context.gradient(w), expected[1]));
  EXPECT_FALSE(x.grad().defined() || w.grad().defined());
}

TEST_P(CheckpointedSegments, GiveTheirParametersGradientsOfTheContext) {
  const Tensors expected = torch::autograd::grad({dense(x, captured()).square().sum()}, {x, captured()});
  AutogradContext context(a);
  context.backward({a.call<&checkpointedWithCaptured>("B", x).square().sum()});
  EXPECT_TRUE(closeToLargest(context.gradient(x), expected[0]));
  EXPECT_TRUE(closeToLargest(gradient(job[1], context.id(), captured()), expected[1]));
  EXPECT_FALSE(captured().grad().defined());
}

// Whatever is sent: the results would be constants to the segment.
TEST_P(CheckpointedSegments, RefuseRemoteCallsByName) {
  const RRef<at::Tensor> there = a.remote<&doubled>("B", w.detach());
  for (const auto& [segment, name] : std::vector<std::pair<std::function<at::Tensor(const at::Tensor&)>, std::string>>{
           {[&](const at::Tensor& in) { return a.call<&doubled>("B", in); }, "'doubled'"},
           {[&](const at::Tensor& in) { return in + a.call<&doubled>("B", w.detach()); }, "'doubled'"},
           {[&](const at::Tensor& in) { return in + there.toHere(); }, "toHere"}}) {
    const AutogradContext context(a);
    const std::string why = messageOf<StateError>([&] { checkpoint(segment, x); });
    EXPECT_NE(why.find(name), std::string::npos) << why;
    EXPECT_NE(why.find("checkpointed segment"), std::string::npos) << why;
  }
  const AutogradContext context(a);
  const std::string why = messageOf<Error>([&] { a.call<&withCall>("B", x); });
  EXPECT_NE(why.find("'doubled' was called in a checkpointed segment"), std::string::npos) << why;
}

TEST_P(CheckpointedSegments, MayCallOtherWorkersOutsideOfContexts) {
  checkpoint([&](const at::Tensor& in) { return in * a.call<&doubled>("B", in.detach()); }, x).sum().backward();
  EXPECT_TRUE(closeToLargest(x.grad(), (2 * x).detach()));
}

TEST_P(CheckpointedSegments, LeaveTheirThreadAsItWasWhereTheyFail) {
  int run = 0;
  const auto segment = [&](const at::Tensor& in) {
    if (++run == 2) throw std::runtime_error("the glue came off");
    return in.sin();
  };
  AutogradContext context(a);
  const at::Tensor y = checkpoint(segment, x);
  const std::string why = messageOf<Error>([&] { context.backward({y.sum()}); });
  EXPECT_NE(why.find("the glue came off"), std::string::npos) << why;
  EXPECT_FALSE(autograd::isInSegment());
  AutogradContext next(a);
  next.backward({a.call<&doubled>("B", checkpoint([](const at::Tensor& in) { return in.sin(); }, x)).sum()});
  EXPECT_TRUE(closeToLargest(next.gradient(x), (2 * x.cos()).detach()));
}

TEST_P(CheckpointedSegments, RefuseTensorsOfOtherWorkersThatTheyWereNotGiven) {
  AutogradContext context(a);
  const at::Tensor there = a.call<&doubled>("B", w);
  const at::Tensor y = checkpoint([there](const at::Tensor& in) { return in * there; }, x);
  const std::string why = messageOf<StateError>([&] { context.backward({y.sum() + there.sum()}); });
  EXPECT_NE(why.find("a tensor from another worker"), std::string::npos) << why;
}

INSTANTIATE_TEST_SUITE_P(Modes, CheckpointedSegments, ::testing::Values(AutogradMode::kSmart, AutogradMode::kFast),
                         [](const auto& info) { return info.param == AutogradMode::kSmart ? "smart" : "fast"; });

// ---- plain passes

TEST(Checkpoint, MayHaveSeveralInputsAndResultsOfWhichSomeTakeNoPart) {
  const at::Tensor x = leaf(), y = leaf(), count = at::full({}, 3, at::kLong);
  const CheckpointSegment segment = [](const Tensors& in) {
    ++runs;
    return Tensors{in[0] * in[2], in[1].sin(), in[0] + in[1], in[2] + 1};
  };
  runs = 0;
  const Tensors results = checkpoint(segment, {x, y, count});
  EXPECT_EQ(results[3].item<int64_t>(), 4);
  EXPECT_FALSE(results[3].requires_grad());
  const Tensors found = torch::autograd::grad({results[0].sum()}, {x, y}, {}, true, false, /*allow_unused=*/true);
  EXPECT_TRUE(found[0].equal(at::full_like(x, 3)));
  EXPECT_FALSE(found[1].defined());
  EXPECT_EQ(runs, 2);
  (results[0] + results[1] * results[2]).sum().backward();  // once more over the same graph
  EXPECT_EQ(runs, 3);
  EXPECT_TRUE(closeToLargest(x.grad(), (3 + y.sin()).detach()));
  EXPECT_TRUE(closeToLargest(y.grad(), (y.cos() * (x + y) + y.sin()).detach()));
}

TEST(Checkpoint, KeepsNoGraphOfTheSegment) {
  const at::Tensor x = leaf();
  c10::weak_intrusive_ptr<c10::TensorImpl> within{at::Tensor().getIntrusivePtr()};
  const at::Tensor y = checkpoint(
      [&](const at::Tensor& in) {
        const at::Tensor middle = in.exp();
        within = c10::weak_intrusive_ptr<c10::TensorImpl>(middle.getIntrusivePtr());
        return middle.sin();
      },
      x);
  EXPECT_TRUE(within.expired());
  y.sum().backward();
  EXPECT_TRUE(closeToLargest(x.grad(), (x.exp().cos() * x.exp()).detach()));
}

TEST(Checkpoint, MayBeWithinAnotherOne) {
  const at::Tensor x = leaf(), w = leaf();
  const auto inner = [](const at::Tensor& in) { return in.sin() * in; };
  const auto outer = [&](const Tensors& in) { return Tensors{checkpoint(inner, in[0].mm(in[1])).exp()}; };
  const Tensors expected = torch::autograd::grad({inner(x.mm(w)).exp().sum()}, {x, w});
  const Tensors found = torch::autograd::grad({checkpoint(outer, {x, w}).front().sum()}, {x, w});
  for (const size_t i : {0, 1}) EXPECT_TRUE(closeToLargest(found[i], expected[i]));
}

// As with dropout: the gradient has the mask of the result. What others draw goes on where it was.
TEST(Checkpoint, DrawsTheSameRandomNumbersAgain) {
  for (const bool keeps : {true, false}) {
    at::manual_seed(7);
    const at::Tensor x = at::ones({1000}).requires_grad_();
    const at::Tensor y = checkpoint([](const at::Tensor& in) { return at::dropout(in, 0.5, /*train=*/true); }, x,
                                    {.keepRandomNumbers = keeps});
    const at::Tensor between = at::rand({1});
    const at::Tensor gradient = torch::autograd::grad({y.sum()}, {x})[0];
    EXPECT_EQ(keeps, gradient.equal(y.detach()));
    const at::Tensor after = at::rand({1});
    at::manual_seed(7);
    at::dropout(at::ones({1000}), 0.5, true);
    EXPECT_TRUE(between.equal(at::rand({1})));
    EXPECT_EQ(keeps, after.equal(at::rand({1})));
  }
}

class InBfloat16 {
 public:
  InBfloat16() {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~InBfloat16() { at::autocast::set_autocast_enabled(at::kCPU, false); }
  InBfloat16(const InBfloat16&) = delete;
  InBfloat16& operator=(const InBfloat16&) = delete;
};

TEST(Checkpoint, RunsAgainUnderTheAutocastOfTheFirstRun) {
  std::vector<at::ScalarType> types;
  const at::Tensor x = at::rand({4, 4}).requires_grad_();
  const auto segment = [&](const at::Tensor& in) {
    const at::Tensor product = in.mm(in);
    types.push_back(product.scalar_type());
    return product.to(at::kFloat);
  };
  at::Tensor y;
  {
    const InBfloat16 autocast;
    y = checkpoint(segment, x);
  }
  const at::Tensor z = checkpoint(segment, x);
  y.sum().backward();
  {
    const InBfloat16 autocast;
    z.sum().backward();
  }
  EXPECT_EQ(types, (std::vector{at::kBFloat16, at::kFloat, at::kBFloat16, at::kFloat}));
  EXPECT_EQ(at::rand({2, 2}).mm(at::rand({2, 2})).scalar_type(), at::kFloat) << "the state is what it was";
}

// libtorch keeps the casts of parameters within a scope.
TEST(Checkpoint, TakesNoCastsOfParametersFromTheThreadThatRunsThePass) {
  const at::Tensor x = at::rand({4, 4}), w = at::rand({4, 4}).requires_grad_();
  std::vector<at::ScalarType> types;
  const auto segment = [&](const at::Tensor& in) {
    const at::Tensor product = in.mm(w);
    types.push_back(product.scalar_type());
    return product.to(at::kFloat);
  };
  const at::Tensor y = checkpoint(segment, x, {.parameters = {w}});
  {
    const InBfloat16 autocast;
    at::autocast::increment_nesting();
    x.mm(w);
    y.sum().backward();
    at::autocast::clear_cache();
    at::autocast::decrement_nesting();
  }
  EXPECT_EQ(types, (std::vector{at::kFloat, at::kFloat}));
  EXPECT_TRUE(w.grad().allclose(x.t().mm(at::ones({4, 4})), 1e-2)) << "the pass itself is under autocast";
}

TEST(Checkpoint, JustRunsWhereThereAreNoGradients) {
  runs = 0;
  const at::Tensor w = leaf();
  const auto segment = [&](const at::Tensor& in) { return dense(in, w.detach()); };
  EXPECT_FALSE(checkpoint(segment, at::randn({4, 4}, at::kDouble)).requires_grad());
  {
    const at::NoGradGuard noGrad;
    EXPECT_FALSE(checkpoint(segment, leaf()).requires_grad());
  }
  EXPECT_EQ(runs, 2);
}

TEST(Checkpoint, SaysWhatWouldGetNoGradient) {
  const at::Tensor x = leaf(), w = leaf();
  const at::Tensor y = checkpoint([&](const at::Tensor& in) { return in.mm(w); }, x);
  const std::string why = messageOf<StateError>([&] { y.sum().backward(); });
  EXPECT_NE(why.find("a leaf of sizes [4, 4] that requires a gradient"), std::string::npos) << why;
  EXPECT_NE(why.find("CheckpointOptions::parameters"), std::string::npos) << why;
  EXPECT_FALSE(x.grad().defined() || w.grad().defined());
}

TEST(Checkpoint, RefusesParametersWithHooksWhichWouldRunTwice) {
  const at::Tensor x = leaf(), w = leaf();
  const at::Tensor y = checkpoint([&](const at::Tensor& in) { return in.mm(w); }, x, {.parameters = {w}});
  w.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
  const std::string why = messageOf<StateError>([&] { y.sum().backward(); });
  EXPECT_NE(why.find("has hooks, which would run twice"), std::string::npos) << why;
  const at::Tensor z = checkpoint([](const Tensors& in) { return Tensors{in[0].mm(in[1])}; }, {x, w}).front();
  z.sum().backward();
  EXPECT_TRUE(closeToLargest(w.grad(), (2 * x.t().mm(at::ones_like(x))).detach())) << "as an input it may have them";
}

TEST(Checkpoint, RefusesASegmentThatReturnsOtherResultsTheSecondTime) {
  int run = 0;
  const CheckpointSegment segment = [&](const Tensors& in) { return Tensors(run++ == 0 ? 2 : 1, in[0].exp()); };
  const Tensors results = checkpoint(segment, {leaf()});
  const std::string why = messageOf<StateError>([&] { results[0].sum().backward(); });
  EXPECT_NE(why.find("2 tensors in its first run and 1 in its second one"), std::string::npos) << why;
}

TEST(Checkpoint, RefusesWhatCannotBe) {
  const at::Tensor x = leaf(), w = leaf();
  const auto same = [](const Tensors& in) { return Tensors{in[0] * 2}; };
  const auto refused = [](auto f) { return messageOf<ArgumentError>(f); };
  EXPECT_EQ("a checkpointed segment returned an undefined tensor",
            refused([&] { checkpoint([](const at::Tensor&) { return at::Tensor(); }, x); }));
  EXPECT_EQ("an input or a parameter of a checkpointed segment is undefined",
            refused([&] { checkpoint(same, {x, at::Tensor()}); }));
  EXPECT_EQ("a parameter of a checkpointed segment is no leaf: give it as an input",
            refused([&] { checkpoint(same, {x}, {.parameters = {w.exp()}}); }));
  const at::Tensor count = at::ones({4, 4}, at::kDouble);
  const std::string why =
      refused([&] { checkpoint([](const Tensors& in) { return Tensors{in[0] * in[1].add_(1)}; }, {x, count}); });
  EXPECT_NE(why.find("changes an input or a parameter in place"), std::string::npos) << why;
}

TEST(Checkpoint, CannotBeDifferentiatedTwice) {
  const at::Tensor x = leaf();
  const at::Tensor y = checkpoint([](const at::Tensor& in) { return in.pow(3); }, x);
  const std::string why = messageOf<StateError>(
      [&] { torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true); });
  EXPECT_NE(why.find("create_graph"), std::string::npos) << why;
}

// As tied weights are.
TEST(Checkpoint, GivesAParameterThatIsThereTwiceItsGradientOnce) {
  const at::Tensor x = leaf(), w = leaf();
  const Tensors expected = torch::autograd::grad({x.mm(w).mm(w).sum()}, {w});
  checkpoint([&](const at::Tensor& in) { return in.mm(w).mm(w); }, x, {.parameters = {w, w}}).sum().backward();
  EXPECT_TRUE(closeToLargest(w.grad(), expected[0]));
}

// The derivative of the root at 0 is infinite.
TEST(Checkpoint, DoesNotDifferentiateResultsThatTakeNoPart) {
  const at::Tensor x = at::zeros({3}, at::kDouble).requires_grad_(), w = at::ones({3}, at::kDouble).requires_grad_();
  const CheckpointSegment segment = [&](const Tensors& in) { return Tensors{in[0] * 3, in[0].sqrt() * w}; };
  checkpoint(segment, {x}, {.parameters = {w}})[0].sum().backward();
  EXPECT_TRUE(x.grad().equal(at::full({3}, 3, at::kDouble)));
  EXPECT_FALSE(w.grad().defined());
}

TEST(Checkpoint, LeavesTensorsThatItReturnsAsTheyWere) {
  const at::Tensor x = leaf(), w = leaf(), mask = at::ones({4, 4}, at::kDouble);
  const CheckpointSegment segment = [&](const Tensors& in) { return Tensors{in[0] * w * mask, mask, w, in[0]}; };
  const Tensors results = checkpoint(segment, {x}, {.parameters = {w}});
  EXPECT_FALSE(mask.requires_grad());
  EXPECT_TRUE(w.is_leaf());
  (results[0] + results[1] + 2 * results[2] + 3 * results[3]).sum().backward();
  EXPECT_TRUE(closeToLargest(x.grad(), (w + 3).detach()));
  EXPECT_TRUE(closeToLargest(w.grad(), (x + 2).detach()));
}

// Its gradient would be lost, and its graph would be freed with the second run's.
TEST(Checkpoint, RefusesATensorThatWasComputedBefore) {
  const at::Tensor x = leaf(), w = leaf(), before = w.exp();
  const at::Tensor y = checkpoint([&](const at::Tensor& in) { return in * before; }, x, {.parameters = {w}});
  const std::string why = messageOf<StateError>([&] { (y + before).sum().backward(); });
  EXPECT_NE(why.find("a tensor that was computed before it, by ExpBackward0,"), std::string::npos) << why;
}

// As SyncBatchNorm makes one, which makes its node a part of the graph.
TEST(Checkpoint, MayMakeALeafWithoutElements) {
  const at::Tensor x = leaf();
  const auto segment = [](const at::Tensor& in) { return in * 2 + at::empty({0}, at::kDouble).requires_grad_().sum(); };
  checkpoint(segment, x).sum().backward();
  EXPECT_TRUE(x.grad().equal(at::full_like(x, 2)));
}

TEST(Checkpoint, HasSparseGradientsOfEmbeddings) {
  const at::Tensor table = at::rand({5, 3}, at::kDouble).requires_grad_(), indices = at::tensor({1, 4, 1}, at::kLong);
  const auto segment = [&](const at::Tensor& in) { return at::embedding(table, in, -1, false, /*sparse=*/true); };
  const Tensors expected = torch::autograd::grad({segment(indices).pow(2).sum()}, {table});
  checkpoint(segment, indices, {.parameters = {table}}).pow(2).sum().backward();
  EXPECT_TRUE(table.grad().is_sparse());
  EXPECT_TRUE(closeToLargest(table.grad().to_dense(), expected[0].to_dense()));
}

TEST(Checkpoint, OfAModuleTrainsItsParameters) {
  torch::nn::Linear linear(4, 4);
  const at::Tensor x = at::randn({3, 4}).requires_grad_();
  const Tensors expected =
      torch::autograd::grad({linear->forward(x).square().sum()}, {x, linear->weight, linear->bias});
  checkpoint([&](const at::Tensor& in) { return linear->forward(in); }, x, {.parameters = linear->parameters()})
      .square()
      .sum()
      .backward();
  EXPECT_TRUE(x.grad().allclose(expected[0]) && linear->weight.grad().allclose(expected[1]) &&
              linear->bias.grad().allclose(expected[2]));
}

}  // namespace
}  // namespace treadle::test::checkpointed_segment_test
