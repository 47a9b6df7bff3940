// Work that a hook starts holds the pass open, and what happens when a pass ends.

#include <gtest/gtest.h>

#include <thread>

#include "tests/tensor/autograd/loopback.h"

namespace treadle::autograd::pending_test {
namespace {

// What DDP does: an all-reduce that ends on another thread, then the average is written at the end of the
// pass.
TEST(Pending, HoldsThePassOpenUntilItCompletes) {
  at::Tensor w = parameter({3});
  Pass::Pending pending;
  onAccumulated(w, [&](const at::Tensor& leaf) {
    pending = Pass::current()->addPending();
    Pass::current()->onFinish([leaf](const Status& outcome) {
      EXPECT_TRUE(outcome.ok());
      leaf.mutable_grad() = leaf.grad() * 10;
    });
  });
  LoopbackJob job(1, 1);
  ASSERT_TRUE(job.start(0, {{(w * 2).sum(), {}}}).ok());
  LoopbackWorker& worker = job.worker(0);
  EXPECT_FALSE(worker.pass->idle());
  EXPECT_EQ(worker.idleCalls, 0);
  EXPECT_EQ(worker.pass->finish().code(), Code::kFailedPrecondition);
  std::thread([&] { pending.complete(); }).join();
  EXPECT_TRUE(worker.pass->idle());
  EXPECT_EQ(worker.idleCalls, 1);
  ASSERT_TRUE(job.finish().ok());
  EXPECT_TRUE(closeTo(worker.gradient(w), full(20)));
}

TEST(Pending, ItsFailureFailsThePassAndTellsTheCallbacks) {
  at::Tensor w = parameter({3});
  Pass::Pending pending;
  Status told;
  onAccumulated(w, [&](const at::Tensor&) {
    pending = Pass::current()->addPending();
    Pass::current()->onFinish([&](const Status& outcome) { told = outcome; });
  });
  LoopbackJob job(1, 1);
  ASSERT_TRUE(job.start(0, {{(w * 2).sum(), {}}}).ok());
  pending.fail(peerLost("trainer2", "trainer2 was lost"));
  EXPECT_EQ(job.worker(0).idleCalls, 1);
  EXPECT_TRUE(job.worker(0).pass->idle());
  EXPECT_EQ(job.finish().code(), Code::kPeerLost);
  EXPECT_EQ(told.worker(), "trainer2");
}

TEST(Pending, KeepsThePassAndItsSinkUntilItCompletes) {
  struct Sink : GradientSink {
    explicit Sink(bool& told) : told(told) {}
    Status sendGradients(Pass&, int, std::vector<MessageGradients>) override { return {}; }
    void onIdle(Pass&) override { told = true; }
    bool& told;
  };
  bool told = false;
  LeafSlots slots;
  auto sink = std::make_shared<Sink>(told);
  std::weak_ptr<Sink> watched = sink;
  auto pass = *Pass::create(std::make_shared<ContextGraph>(1, 0, AutogradMode::kFast), std::move(sink), slots, {});
  Pass::Pending pending = pass->addPending();
  pass.reset();
  EXPECT_FALSE(watched.expired());
  pending.complete();
  EXPECT_TRUE(told);
  EXPECT_TRUE(watched.expired());
}

TEST(Pending, CompletesOnceHoweverItEnds) {
  LoopbackJob job(1, 1);
  ASSERT_TRUE(job.start(0, {}).ok());
  Pass& pass = *job.worker(0).pass;
  {
    Pass::Pending first = pass.addPending(), second = pass.addPending();
    first.complete();
    first.complete();
    EXPECT_FALSE(pass.idle());
    second = std::move(first);
    EXPECT_TRUE(pass.idle());
  }
  EXPECT_TRUE(pass.idle());
  EXPECT_TRUE(job.finish().ok());
}

TEST(Finish, FromAHookOfItsOwnPassIsRefused) {
  at::Tensor w = parameter({3}), y = w * 2;
  Status refused;
  y.register_hook([&](const at::Tensor&) { refused = Pass::current()->finish(); });
  LoopbackJob job(1, 1);
  ASSERT_TRUE(job.backward(0, {{y.sum(), {}}}).ok());
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
}

TEST(Finish, CallbacksOfACallbackRunAfterAllOthers) {
  LoopbackJob job(1, 1);
  ASSERT_TRUE(job.start(0, {}).ok());
  Pass& pass = *job.worker(0).pass;
  std::string order;
  for (const std::string name : {"a", "b"})
    pass.onFinish([&pass, &order, name](const Status&) {
      order += name + "1 ";
      pass.onFinish([&order, name](const Status&) { order += name + "2 "; });
    });
  EXPECT_TRUE(job.finish().ok());
  EXPECT_EQ(order, "a1 b1 a2 b2 ");
}

TEST(Finish, ACallbackThatThrowsFailsThePass) {
  LoopbackJob job(1, 1);
  ASSERT_TRUE(job.start(0, {}).ok());
  job.worker(0).pass->onFinish([](const Status&) { throw std::runtime_error("cannot average"); });
  Status finished = job.finish();
  ASSERT_FALSE(finished.ok());
  EXPECT_NE(finished.message().find("cannot average"), std::string::npos) << finished.message();
}

// The average of what the context held and of what the pass made takes the place of both, unless another callback
// fails. `unused` is a parameter that the pass does not reach.
TEST(Finish, ACallbackMayReplaceWhatTheContextHas) {
  at::Tensor w = parameter({3}), unused = parameter({3});
  LoopbackJob job(1, 1);
  LoopbackWorker& worker = job.worker(0);
  worker.graph->gradients().add(w, full(5));
  for (const bool fails : {false, true}) {
    const double sum = fails ? 70 : 50;
    ASSERT_TRUE(job.start(0, {{(w * 2).sum(), {}}}).ok());
    worker.pass->onFinish([&](const Status&) {
      worker.pass->replaceGradient(w, full(sum));
      worker.pass->replaceGradient(unused, full(sum + 1));
    });
    if (fails) worker.pass->onFinish([](const Status&) { throw std::runtime_error("cannot average"); });
    EXPECT_EQ(job.finish().ok(), !fails);
    EXPECT_TRUE(closeTo(worker.gradient(w), fails ? full(52) : full(50)));
    EXPECT_TRUE(closeTo(worker.gradient(unused), full(51)));
  }
}

}  // namespace
}  // namespace treadle::autograd::pending_test
