// What a pass promises: right gradients over every shape of graph across workers, and one clear error
// otherwise.

#include "treadle/tensor/autograd/pass.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <thread>

#include "tests/tensor/autograd/loopback.h"

namespace treadle::autograd::pass_test {
namespace {

std::vector<at::Tensor> plainGradients(const at::Tensor& loss, const std::vector<at::Tensor>& leaves) {
  return torch::autograd::grad({loss}, leaves, {}, /*retain_graph=*/true, false, /*allow_unused=*/true);
}

TEST(Pass, RunsALocalGraphWithoutAnyMessage) {
  at::Tensor w = parameter({3, 2}), b = parameter({2}), x = at::randn({5, 3}, at::kDouble);
  at::Tensor loss = at::tanh(at::matmul(x, w) + b).sum();
  auto expected = plainGradients(loss, {w, b});
  LoopbackJob job(1, 1);
  ASSERT_TRUE(job.backward(0, {{loss, {}}}).ok());
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), expected[0]));
  EXPECT_TRUE(closeTo(job.worker(0).gradient(b), expected[1]));  // summed down to the bias's shape
  EXPECT_EQ(job.worker(0).graph->gradients().all().size(), 2u);
}

TEST(Pass, GoesThroughTwoWorkersInACircle) {
  // A -> B -> A -> B -> A: whole local components cannot be run at once, each waits for the other.
  at::Tensor a = parameter({3}), b = parameter({3});
  auto model = [&](auto send) {
    at::Tensor t = at::sin(a);
    t = at::tanh(send(0, 1, t) * b);
    t = send(1, 0, t) * a;
    t = at::exp(send(0, 1, t)) + b;
    return (send(1, 0, t) * a).sum();
  };
  auto expected = plainGradients(model([](int, int, at::Tensor t) { return t; }), {a, b});
  LoopbackJob job(2, 1);
  at::Tensor loss = model([&](int from, int to, const at::Tensor& t) { return job.send(from, to, t); });
  Status ran = job.backward(0, {{loss, {}}});
  ASSERT_TRUE(ran.ok()) << ran.toString();
  EXPECT_TRUE(closeTo(job.worker(0).gradient(a), expected[0]));
  EXPECT_TRUE(closeTo(job.worker(1).gradient(b), expected[1]));
  EXPECT_EQ(job.delivered(), 4u);
}

TEST(Pass, FansOutAndIn) {
  at::Tensor w = parameter({4});
  auto model = [&](auto send) {
    at::Tensor sum = at::zeros({4}, at::kDouble), t = at::sin(w);
    for (int rank = 1; rank < 4; ++rank) sum = sum + send(rank, 0, at::pow(send(0, rank, t), rank));
    return (sum * send(1, 0, send(0, 1, w))).sum();
  };
  auto expected = plainGradients(model([](int, int, at::Tensor t) { return t; }), {w});
  for (uint64_t seed = 0; seed < 10; ++seed) {
    LoopbackJob job(4, 1, seed);
    at::Tensor loss = model([&](int from, int to, const at::Tensor& t) { return job.send(from, to, t); });
    ASSERT_TRUE(job.backward(0, {{loss, {}}}).ok()) << "seed " << seed;
    EXPECT_TRUE(closeTo(job.worker(0).gradient(w), expected[0])) << "seed " << seed;
  }
}

TEST(Pass, TakesSeveralRootsWithGradientsOfTheirOwn) {
  at::Tensor w = parameter({2, 3});
  at::Tensor y = w * w, z = at::sin(w);
  at::Tensor gy = at::randn({2, 3}, at::kDouble), gz = at::randn({2, 3}, at::kDouble);
  LoopbackJob job(1, 1);
  ASSERT_TRUE(job.backward(0, {{y, gy}, {z, gz}, {y, gy}, {w, gz}}).ok());
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), (4 * w * gy + at::cos(w) * gz + gz).detach()));
}

TEST(Pass, AsksOnlyForTheTensorsOfAMessageThatNeedAGradient) {
  at::Tensor w = parameter({2}), plain = at::ones({2}, at::kDouble);
  LoopbackJob job(2, 1);
  auto received = job.send(0, 1, {plain, w, at::ones({2}, at::kLong), w * 2});
  EXPECT_FALSE(received[0].requires_grad());
  EXPECT_TRUE(received[1].requires_grad());
  EXPECT_FALSE(received[2].requires_grad());
  EXPECT_EQ(job.worker(0).graph->findSend(0)->tensorIndexes(), (std::vector<int64_t>{1, 3}));
  ASSERT_TRUE(job.backward(1, {{(received[1] * received[3]).sum(), {}}}).ok());
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), (4 * w).detach()));
}

TEST(Pass, RecordsNothingOfTensorsWithoutGradients) {
  LoopbackJob job(2, 1);
  EXPECT_FALSE(job.send(0, 1, at::ones({2})).requires_grad());
  EXPECT_TRUE(job.worker(0).graph->sends().empty());
  EXPECT_TRUE(job.worker(1).graph->received().size() == 0);
}

TEST(Pass, UndefinedGradientsTravelAndCountAsNone) {
  // Of two tensors in one message the loss uses one: the other gets no gradient, but the message gets its
  // answer.
  at::Tensor w = parameter({2}), v = parameter({2});
  LoopbackJob job(2, 1);
  auto received = job.send(0, 1, std::vector<at::Tensor>{w * 1, v * 1});
  ASSERT_TRUE(job.backward(1, {{(received[0] * 3).sum(), {}}}).ok());
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), at::full({2}, 3.0, at::kDouble)));
  EXPECT_FALSE(job.worker(0).gradient(v).defined());
}

TEST(Pass, NonContiguousTensorsAndGradients) {
  at::Tensor w = parameter({3, 4});
  LoopbackJob job(2, 1);
  at::Tensor y = job.send(0, 1, w.t().narrow(0, 1, 2));
  at::Tensor weight = at::randn({3, 2}, at::kDouble).t();
  ASSERT_TRUE(job.backward(1, {{(y * weight).sum(), {}}}).ok());
  at::Tensor expected = at::zeros({3, 4}, at::kDouble);
  expected.narrow(1, 1, 2).copy_(weight.t());
  at::Tensor gradient = job.worker(0).gradient(w);
  EXPECT_TRUE(closeTo(gradient, expected));
  EXPECT_EQ(gradient.strides(), w.strides());
}

TEST(Pass, InPlaceChangesOfAReceivedTensor) {
  at::Tensor w = parameter({3});
  LoopbackJob job(2, 1);
  at::Tensor y = job.send(0, 1, w * 1);
  y.mul_(2);
  y.narrow(0, 0, 1).mul_(5);
  ASSERT_TRUE(job.backward(1, {{y.sum(), {}}}).ok());
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), at::tensor({10.0, 2.0, 2.0}, at::kDouble)));
}

TEST(Pass, ZeroSizedAndZeroDimensionalTensors) {
  at::Tensor empty = parameter({0, 3}), scalar = parameter({});
  LoopbackJob job(2, 1);
  auto received = job.send(0, 1, std::vector<at::Tensor>{empty * 2, scalar * 2});
  ASSERT_TRUE(job.backward(1, {{received[0].sum() + received[1], {}}}).ok());
  EXPECT_EQ(job.worker(0).gradient(empty).sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(job.worker(0).gradient(scalar).item<double>(), 2.0);
}

struct Scale : torch::autograd::Function<Scale> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, double factor) {
    context->save_for_backward({x});
    context->saved_data["factor"] = factor;
    return x * factor;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    EXPECT_FALSE(at::GradMode::is_enabled());
    EXPECT_EQ(context->get_saved_variables().size(), 1u);
    return {gradients[0] * context->saved_data["factor"].toDouble(), at::Tensor()};
  }
};

TEST(Pass, RunsCustomFunctions) {
  at::Tensor w = parameter({3});
  LoopbackJob job(2, 1);
  ASSERT_TRUE(job.backward(1, {{Scale::apply(job.send(0, 1, Scale::apply(w, 3.0)), 5.0).sum(), {}}}).ok());
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), at::full({3}, 15.0, at::kDouble)));
}

TEST(Pass, GradModeIsOffWithinAndUntouchedOutside) {
  at::Tensor w = parameter({2});
  bool within = true;
  at::Tensor y = w * w;
  y.register_hook([&](const at::Tensor&) { within = at::GradMode::is_enabled(); });
  LoopbackJob job(1, 1);
  ASSERT_TRUE(job.backward(0, {{y.sum(), {}}}).ok());
  EXPECT_FALSE(within);
  EXPECT_TRUE(at::GradMode::is_enabled());
  EXPECT_FALSE(job.worker(0).gradient(w).requires_grad());
}

// Autocast with a type, and a dispatch key.
std::pair<at::ScalarType, bool> autocastOfThread() {
  return {at::autocast::is_autocast_enabled(at::kCPU) ? at::autocast::get_autocast_dtype(at::kCPU) : at::kFloat,
          c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::TESTING_ONLY_GenericMode)};
}

void onThreadWithAutocast(at::ScalarType type, bool excludesKey, const std::function<void()>& body) {
  std::thread([&] {
    at::autocast::set_autocast_dtype(at::kCPU, type);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::TESTING_ONLY_GenericMode, excludesKey);
    body();
    EXPECT_EQ(autocastOfThread(), std::pair(type, excludesKey)) << "the thread keeps its own";
  }).join();
}

TEST(Pass, NodesRunUnderTheStateOfTheThreadThatMadeIt) {
  at::Tensor w = parameter({2});
  std::vector<std::pair<at::ScalarType, bool>> within;
  const auto noted = [&](at::Tensor t) {
    t.register_hook([&](const at::Tensor&) { within.push_back(autocastOfThread()); });
    return t;
  };
  LoopbackJob job(2, 1);
  at::Tensor there = noted(job.send(1, 0, noted(job.send(0, 1, noted(w * 2)) * 3)) * 4);
  onThreadWithAutocast(at::kBFloat16, true, [&] { ASSERT_TRUE(job.start(0, {{there.sum(), {}}}).ok()); });
  ASSERT_EQ(within.size(), 1u) << "the others wait for gradients";
  onThreadWithAutocast(at::kHalf, false, [&] { ASSERT_TRUE(job.deliverAll().ok()); });
  ASSERT_TRUE(job.finish().ok());
  EXPECT_EQ(within, (std::vector(3, std::pair(at::kBFloat16, true))));
}

TEST(Pass, RunsTheLatestForwardStepFirst) {
  at::Tensor w = parameter({2});
  std::vector<int> order;
  auto noted = [&](at::Tensor t, int number) {
    t.register_hook([&order, number](const at::Tensor&) { order.push_back(number); });
    return t;
  };
  at::Tensor first = noted(w * 2, 1), second = noted(w * 3, 2), third = noted(at::sin(first), 3);
  LoopbackJob job(1, 1);
  ASSERT_TRUE(job.backward(0, {{(second + third).sum(), {}}}).ok());
  EXPECT_EQ(order, (std::vector<int>{3, 2, 1}));
}

TEST(Pass, GradientsForPeersLeaveBeforeLocalWorkGoesOn) {
  at::Tensor w = parameter({2});
  LoopbackJob job(2, 1);
  std::vector<std::string> order;
  at::Tensor received = job.send(0, 1, w * 2), local = w * 3;
  received.register_hook([&](const at::Tensor&) { order.push_back("send"); });
  local.register_hook([&](const at::Tensor&) { order.push_back("local"); });
  ASSERT_TRUE(job.backward(1, {{(local + received).sum(), {}}}).ok());
  EXPECT_EQ(order, (std::vector<std::string>{"send", "local"}));
}

TEST(Pass, DeepGraphsNeedNoStack) {
  at::Tensor w = parameter({1}), t = w * 1;
  for (int i = 0; i < 100000; ++i) t = t + 1;
  LoopbackJob job(2, 1);
  at::Tensor loss = job.send(0, 1, t).sum();
  t = at::Tensor();
  ASSERT_TRUE(job.backward(1, {{loss, {}}}).ok());
  EXPECT_EQ(job.worker(0).gradient(w).item<double>(), 1.0);
}

TEST(Pass, RetainedGraphsRunAgainAndGradientsAddUp) {
  at::Tensor w = parameter({3});
  LoopbackJob job(2, 1);
  at::Tensor loss = at::sin(job.send(0, 1, w * w)).sum();
  ASSERT_TRUE(job.backward(1, {{loss, {}}}, /*retainGraph=*/true).ok());
  at::Tensor once = job.worker(0).gradient(w), before = once.clone();
  ASSERT_TRUE(job.backward(1, {{loss, {}}}).ok());
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), 2 * before));
  EXPECT_TRUE(at::equal(once, before)) << "what a caller holds does not change under it";
}

TEST(Pass, AConsumedGraphIsForgottenSoThatTheContextGoesOn) {
  at::Tensor w = parameter({3});
  LoopbackJob job(2, 1);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(job.backward(1, {{(job.send(0, 1, w * w)).sum(), {}}}).ok());
    EXPECT_TRUE(job.worker(0).graph->sends().empty());
    EXPECT_TRUE(job.worker(1).graph->received().size() == 0);
  }
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), (6 * w).detach()));
}

}  // namespace
}  // namespace treadle::autograd::pass_test
