// Many contexts at once over the same parameters, many threads at one pass, and memory that goes as a pass
// proceeds.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim.h>

#include <atomic>
#include <barrier>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/tensor/autograd/loopback.h"
#include "treadle/core/base/error.h"

namespace treadle::autograd::concurrency_test {
namespace {

constexpr int kThreads = 8;

void onThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(Concurrency, EachContextHasItsOwnGradientsOfSharedParameters) {
  at::Tensor w = parameter({8, 8}), b = parameter({8});
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < kThreads; ++i) inputs.push_back(at::randn({4, 8}, at::kDouble));
  onThreads(kThreads, [&](int thread) {
    const at::Tensor& x = inputs[static_cast<size_t>(thread)];
    auto loss = [&](auto send) { return at::sin(send(at::tanh(at::matmul(send(x + b), w)))).sum(); };
    auto expected = torch::autograd::grad({loss([](at::Tensor t) { return t; })}, {w, b});
    for (int i = 0; i < 50; ++i) {
      LoopbackJob job(2, thread * 1000 + i, static_cast<uint64_t>(i));
      // The parameters live on worker 0; worker 1 holds the loss and sends what lies between back and forth.
      at::Tensor there = job.send(1, 0, job.send(0, 1, x + b));
      at::Tensor end = at::sin(job.send(0, 1, at::tanh(at::matmul(there, w)))).sum();
      Status ran = job.backward(1, {{end, {}}});
      ASSERT_TRUE(ran.ok()) << ran.toString();
      ASSERT_TRUE(closeTo(job.worker(0).gradient(w), expected[0]));
      ASSERT_TRUE(closeTo(job.worker(0).gradient(b), expected[1]));
    }
  });
  EXPECT_FALSE(w.grad().defined());
}

// Hogwild: an optimizer steps the parameters while other contexts have forward passes over them pending.
TEST(Concurrency, AnOptimizerMayStepTheParametersOfPendingPasses) {
  at::Tensor w = at::full({4, 4}, 0.5, at::kDouble).requires_grad_(true);
  at::Tensor alias = w.variable_data();
  torch::optim::Adam optimizer({alias}, torch::optim::AdamOptions(1e-3));
  std::mutex stepping;
  std::barrier meet(kThreads);
  at::Tensor before = w.detach().clone();
  onThreads(kThreads, [&](int thread) {
    for (int i = 0; i < 25; ++i) {
      LoopbackJob job(2, thread * 1000 + i);
      at::Tensor loss = (at::matmul(job.send(1, 0, at::ones({2, 4}, at::kDouble)), at::matmul(w, w))).square().sum();
      at::Tensor there = job.send(0, 1, loss);
      meet.arrive_and_wait();  // every context's forward pass is done and none has gone back
      Status ran = job.backward(1, {{there, {}}});
      EXPECT_TRUE(ran.ok()) << ran.toString();  // no early return: the others would wait for this thread
      std::lock_guard lock(stepping);
      alias.mutable_grad() = job.worker(0).gradient(w);
      optimizer.step();
    }
  });
  EXPECT_TRUE(at::isfinite(w).all().item<bool>());
  EXPECT_LT(w.abs().sum().item<double>(), before.abs().sum().item<double>()) << "all steps point towards zero";
}

// A sink that only counts; for passes whose messages come from the test.
struct CountingSink : GradientSink {
  Status sendGradients(Pass&, int, std::vector<MessageGradients>) override {
    ++sent;
    return {};
  }
  void onIdle(Pass& pass) override {
    std::lock_guard lock(mutex);
    if (!pass.idle()) return;
    ++idle;
    changed.notify_all();
  }
  void waitUntilIdle(Pass& pass) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return pass.idle(); });
  }
  std::atomic<int> sent = 0;
  std::mutex mutex;
  std::condition_variable changed;
  int idle = 0;
};

TEST(Concurrency, GradientsMayArriveOnManyThreadsWhileOneRunsThem) {
  constexpr int kMessages = 400;
  at::Tensor w = parameter({4});
  auto graph = std::make_shared<ContextGraph>(1, 0, AutogradMode::kFast);
  std::vector<at::Tensor> received = {at::ones({4}, at::kDouble)};
  ASSERT_TRUE(graph->addReceive({0, 1, ""}, nullptr, received).ok());
  std::atomic<int> running = 0, most = 0;
  for (int id = 0; id < kMessages; ++id) {
    at::Tensor y = w * received[0];
    y.register_hook([&](const at::Tensor&) {
      int now = ++running;
      int seen = most;
      while (now > seen && !most.compare_exchange_weak(seen, now)) {}
      --running;
    });
    ASSERT_EQ(id, valueOrThrow(graph->addSend(1, "", std::vector<at::Tensor>{y})).messageId);
  }
  CountingSink sink;
  LeafSlots slots;
  auto made = Pass::create(graph, sink, slots, {});
  ASSERT_TRUE(made.ok());
  Pass& pass = **made;
  onThreads(kThreads, [&](int thread) {
    for (int id = thread; id < kMessages; id += kThreads) {
      ASSERT_TRUE(pass.addReady(id, {at::full({4}, id, at::kDouble)}).ok());
      ASSERT_TRUE(pass.runUntilIdle().ok());
    }
  });
  sink.waitUntilIdle(pass);
  EXPECT_EQ(most, 1) << "one node at a time";
  EXPECT_EQ(sink.sent, 1) << "the receive node waits for every gradient";
  EXPECT_GE(sink.idle, 1);
  ASSERT_TRUE(pass.finish().ok());
  EXPECT_TRUE(closeTo(graph->gradient(w), at::full({4}, kMessages * (kMessages - 1) / 2.0, at::kDouble)));
}

TEST(Concurrency, FinishAfterAFailureWaitsForTheNodeThatStillRuns) {
  at::Tensor w = parameter({3}), y = w * 2;
  std::barrier started(2), released(2);
  std::atomic<bool> left = false;
  y.register_hook([&](const at::Tensor&) {
    started.arrive_and_wait();
    released.arrive_and_wait();
    left = true;
  });
  auto graph = std::make_shared<ContextGraph>(1, 0, AutogradMode::kFast);
  CountingSink sink;
  LeafSlots slots;
  auto pass = *Pass::create(graph, sink, slots, {}, {{y.sum(), {}}});
  Status ran, finished;
  std::thread runner([&] { ran = pass->runUntilIdle(); });
  started.arrive_and_wait();
  pass->fail(peerLost("server", "server was lost"));
  std::thread finisher([&] {
    finished = pass->finish();
    EXPECT_TRUE(left);
  });
  released.arrive_and_wait();
  runner.join();
  finisher.join();
  EXPECT_EQ(ran.code(), Code::kPeerLost);
  EXPECT_EQ(finished.code(), Code::kPeerLost);
  EXPECT_FALSE(graph->gradient(w).defined());
}

TEST(Memory, IsReleasedAsThePassConsumesIt) {
  at::Tensor w = parameter({1}), late = at::sin(w), saved = late * 2;
  c10::weak_intrusive_ptr<c10::StorageImpl> memory(saved.storage().getWeakStorageImpl());
  at::Tensor loss = at::exp(saved * saved).sum();
  saved = at::Tensor();
  bool releasedBefore = false;
  late.register_hook([&](const at::Tensor&) { releasedBefore = memory.expired(); });
  LoopbackJob job(2, 1);
  at::Tensor there = job.send(0, 1, loss);
  loss = at::Tensor();
  ASSERT_FALSE(memory.expired());
  ASSERT_TRUE(job.backward(1, {{there, {}}}).ok());
  EXPECT_TRUE(releasedBefore) << "what a node saved goes when it has run, not at the end";
}

TEST(Memory, ARetainedGraphKeepsItsTensorsUntilTheContextGoes) {
  at::Tensor w = parameter({1}), saved = w * 2;
  c10::weak_intrusive_ptr<c10::StorageImpl> memory(saved.storage().getWeakStorageImpl());
  {
    LoopbackJob job(2, 1);
    at::Tensor there = job.send(0, 1, at::exp(saved * saved));
    saved = at::Tensor();
    ASSERT_TRUE(job.backward(1, {{there, {}}}, /*retainGraph=*/true).ok());
    EXPECT_FALSE(memory.expired());
  }
  EXPECT_TRUE(memory.expired());
}

}  // namespace
}  // namespace treadle::autograd::concurrency_test
