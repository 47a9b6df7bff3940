// Hooks fire once with the right values, and parameters with hooks borrow their `.grad` for the pass.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "tests/tensor/autograd/loopback.h"

namespace treadle::autograd::hooks_test {
namespace {

using torch::autograd::variable_list;

struct PreHook : torch::autograd::FunctionPreHook {
  explicit PreHook(std::function<void(const variable_list&)> seen) : seen(std::move(seen)) {}
  variable_list operator()(const variable_list& gradients) override {
    seen(gradients);
    variable_list doubled;
    for (const at::Tensor& gradient : gradients) doubled.push_back(gradient * 2);
    return doubled;
  }
  std::function<void(const variable_list&)> seen;
};

struct PostHook : torch::autograd::FunctionPostHook {
  explicit PostHook(std::function<void(const variable_list&, const variable_list&)> seen) : seen(std::move(seen)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    seen(outputs, inputs);
    return outputs;
  }
  std::function<void(const variable_list&, const variable_list&)> seen;
};

TEST(Hooks, EachKindFiresOnceInOrder) {
  at::Tensor w = parameter({3});
  LoopbackJob job(2, 1);
  at::Tensor y = job.send(0, 1, w * 1) * 3;
  std::vector<std::string> order;
  y.register_hook([&](const at::Tensor& gradient) {
    order.push_back("tensor");
    EXPECT_TRUE(at::equal(gradient, full(1)));
    return at::Tensor(gradient * 2);
  });
  y.retain_grad();
  y.grad_fn()->add_pre_hook(std::make_unique<PreHook>([&](const variable_list& gradients) {
    order.push_back("pre");
    EXPECT_TRUE(at::equal(gradients.at(0), full(2)));
    EXPECT_TRUE(at::equal(y.grad(), full(2))) << "retained after the tensor's hooks, before the node's";
  }));
  y.grad_fn()->add_post_hook(std::make_unique<PostHook>([&](const variable_list& outputs, const variable_list& inputs) {
    order.push_back("post");
    EXPECT_TRUE(at::equal(inputs.at(0), full(4)));
    EXPECT_TRUE(at::equal(outputs.at(0), full(12)));
  }));
  w.register_hook([&](const at::Tensor& gradient) {
    order.push_back("leaf");
    EXPECT_TRUE(at::equal(gradient, full(12)));
    return at::Tensor(gradient + 1);
  });
  ASSERT_TRUE(job.backward(1, {{y.sum(), {}}}).ok());
  EXPECT_EQ(order, (std::vector<std::string>{"tensor", "pre", "post", "leaf"}));
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), full(13)));
  EXPECT_TRUE(at::equal(y.grad(), full(2)));
}

TEST(Hooks, OfReceivedTensorsSeeWhatIsSent) {
  at::Tensor w = parameter({3});
  LoopbackJob job(2, 1);
  at::Tensor received = job.send(0, 1, w * 1);
  received.register_hook([](const at::Tensor& gradient) { return at::Tensor(gradient * 5); });
  received.retain_grad();
  ASSERT_TRUE(job.backward(1, {{received.sum(), {}}}).ok());
  EXPECT_TRUE(at::equal(received.grad(), full(5)));
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), full(5)));
}

TEST(Hooks, CallbacksQueuedWithTheEngineRun) {
  at::Tensor w = parameter({3}), y = w * 2;
  int ran = 0;
  y.register_hook([&](const at::Tensor&) {
    torch::autograd::Engine::get_default_engine().queue_callback([&] {
      ++ran;
      EXPECT_NE(Pass::current(), nullptr);
    });
  });
  LoopbackJob job(1, 1);
  ASSERT_TRUE(job.backward(0, {{y.sum(), {}}}).ok());
  EXPECT_EQ(ran, 1);
}

TEST(Hooks, WhatArrivesDuringAQueuedCallbackIsRunByTheSameCall) {
  // The narrow moment after the last node ran and before the thread leaves: nobody else would take the
  // arrival up.
  at::Tensor w = parameter({3}), y = w * 2;
  LoopbackJob job(2, 1);
  job.send(0, 1, w * 3);
  y.register_hook([&](const at::Tensor&) {
    torch::autograd::Engine::get_default_engine().queue_callback([&] {
      Pass& pass = *job.worker(0).pass;
      EXPECT_TRUE(pass.addReady(0, {full(1)}).ok());
      EXPECT_TRUE(pass.runUntilIdle().ok());
      EXPECT_FALSE(pass.idle());
    });
  });
  ASSERT_TRUE(job.start(0, {{y.sum(), {}}}).ok());
  EXPECT_TRUE(job.worker(0).pass->idle());
  ASSERT_TRUE(job.finish().ok());
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), full(5)));
}

TEST(Hooks, AFailingQueuedCallbackFailsThePass) {
  at::Tensor w = parameter({3}), y = w * 2;
  y.register_hook([&](const at::Tensor&) {
    torch::autograd::Engine::get_default_engine().queue_callback([] { throw std::runtime_error("reduction missing"); });
  });
  LoopbackJob job(1, 1);
  Status ran = job.backward(0, {{y.sum(), {}}});
  ASSERT_FALSE(ran.ok());
  EXPECT_NE(ran.message().find("reduction missing"), std::string::npos) << ran.message();
}

TEST(HookedLeaves, AccumulateIntoABorrowedGradAndMoveToTheContext) {
  at::Tensor w = parameter({3}), old = full(100);
  w.mutable_grad() = old;
  int fired = 0;
  onAccumulated(w, [&](const at::Tensor& leaf) {
    ++fired;
    EXPECT_TRUE(at::equal(leaf.grad(), full(4))) << "only this pass's gradient is in it";
    leaf.mutable_grad() = leaf.grad() / 2;  // what an averaging hook does
  });
  LoopbackJob job(2, 1);
  at::Tensor loss = (job.send(0, 1, w * 1) * 4).sum();
  ASSERT_TRUE(job.backward(1, {{loss, {}}}).ok());
  EXPECT_EQ(fired, 1);
  EXPECT_TRUE(w.grad().is_same(old));
  EXPECT_TRUE(at::equal(old, full(100)));
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), full(2)));
}

TEST(HookedLeaves, NodePostHooksCountAsHooks) {
  at::Tensor w = parameter({3});
  NodePtr accumulator = torch::autograd::impl::grad_accumulator(w);
  int fired = 0;
  accumulator->add_post_hook(std::make_unique<PostHook>([&](const variable_list&, const variable_list&) {
    ++fired;
    EXPECT_TRUE(at::equal(w.grad(), full(2)));
  }));
  LoopbackJob job(1, 1);
  ASSERT_TRUE(job.backward(0, {{(w * 2).sum(), {}}}).ok());
  EXPECT_EQ(fired, 1);
  EXPECT_FALSE(w.grad().defined());
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), full(2)));
}

TEST(HookedLeaves, TwoRetainedPassesAddUp) {
  at::Tensor w = parameter({3});
  onAccumulated(w, [](const at::Tensor& leaf) { EXPECT_TRUE(at::equal(leaf.grad(), full(2))); });
  LoopbackJob job(1, 1);
  at::Tensor loss = (w * 2).sum();
  ASSERT_TRUE(job.backward(0, {{loss, {}}}, true).ok());
  ASSERT_TRUE(job.backward(0, {{loss, {}}}).ok());
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), full(4)));
}

// Where it cannot be added up the pass fails, and its parameters are free for the next.
TEST(HookedLeaves, WhatAHookLeavesThatIsNoGradientFailsThePass) {
  at::Tensor w = parameter({3});
  bool wrong = false;
  onAccumulated(w, [&](const at::Tensor& leaf) {
    if (wrong) leaf.mutable_grad() = at::ones({7}, at::kDouble);
  });
  LoopbackJob job(2, 1);
  ASSERT_TRUE(job.backward(1, {{job.send(0, 1, w * 1).sum(), {}}}).ok());
  wrong = true;
  EXPECT_FALSE(job.backward(1, {{job.send(0, 1, w * 1).sum(), {}}}).ok());
  wrong = false;
  LoopbackJob other(2, 2);
  ASSERT_TRUE(other.backward(1, {{other.send(0, 1, w * 1).sum(), {}}}).ok());
  EXPECT_TRUE(closeTo(other.worker(0).gradient(w), full(1)));
}

TEST(HookedLeaves, TwoPassesAtOnceAreRefusedByShapeAndContexts) {
  at::Tensor w = parameter({3});
  onAccumulated(w, [](const at::Tensor&) {});
  LeafSlots slots;
  LoopbackJob first(1, 21, 1, &slots), second(1, 22, 1, &slots);
  ASSERT_TRUE(first.start(0, {{(w * 2).sum(), {}}}).ok());
  Status refused = second.start(0, {{(w * 3).sum(), {}}});
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  for (const char* part : {"[3]", "21", "22"})
    EXPECT_NE(refused.message().find(part), std::string::npos) << refused.message();
  ASSERT_TRUE(first.finish().ok());
  ASSERT_TRUE(second.backward(0, {{(w * 3).sum(), {}}}).ok()) << "free again once the first is over";
  EXPECT_TRUE(closeTo(first.worker(0).gradient(w), full(2)));
  EXPECT_TRUE(closeTo(second.worker(0).gradient(w), full(3)));
}

TEST(HookedLeaves, GetTheirGradBackWhenThePassFailsOrIsGivenUp) {
  at::Tensor w = parameter({3}), old = full(7);
  w.mutable_grad() = old;
  onAccumulated(w, [](const at::Tensor&) {});
  LeafSlots slots;
  LoopbackJob failed(1, 1, 1, &slots), dropped(1, 2, 1, &slots), after(1, 3, 1, &slots);
  ASSERT_TRUE(failed.start(0, {{(w * 2).sum(), {}}}).ok());
  failed.worker(0).pass->fail(cancelled("stop"));
  EXPECT_EQ(failed.finish().code(), Code::kCancelled);
  EXPECT_TRUE(w.grad().is_same(old));
  EXPECT_FALSE(failed.worker(0).gradient(w).defined());
  ASSERT_TRUE(dropped.start(0, {{(w * 2).sum(), {}}}).ok());
  EXPECT_FALSE(w.grad().is_same(old));
  Code told = Code::kOk;
  dropped.worker(0).pass->onFinish([&](const Status& outcome) { told = outcome.code(); });
  dropped.worker(0).pass = nullptr;
  EXPECT_EQ(told, Code::kCancelled);
  EXPECT_TRUE(w.grad().is_same(old));
  EXPECT_TRUE(after.backward(0, {{(w * 2).sum(), {}}}).ok());
}

}  // namespace
}  // namespace treadle::autograd::hooks_test
