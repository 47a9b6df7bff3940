// One clear error for whatever goes wrong in a pass, and a pass that ends by it.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tests/tensor/autograd/loopback.h"
#include "treadle/core/base/error.h"

namespace treadle::autograd::pass_errors_test {
namespace {

TEST(PassErrors, ASecondPassOverAConsumedGraphNamesTheNode) {
  at::Tensor w = parameter({3}), loss = (w * w).sum();
  LoopbackJob job(1, 1);
  ASSERT_TRUE(job.backward(0, {{loss, {}}}).ok());
  Status ran = job.backward(0, {{loss, {}}});
  ASSERT_FALSE(ran.ok());
  EXPECT_NE(ran.message().find("MulBackward0"), std::string::npos) << ran.message();
  EXPECT_NE(ran.message().find("second time"), std::string::npos) << ran.message();
}

struct Throws : torch::autograd::Function<Throws> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 1; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::out_of_range("no such embedding");
  }
};

TEST(PassErrors, AnExceptionEndsThePassAndNamesTheNode) {
  at::Tensor w = parameter({3});
  LoopbackJob job(2, 1);
  at::Tensor sent = job.send(0, 1, w * 2), other = job.send(0, 1, w * 3);
  ASSERT_TRUE(job.start(1, {{Throws::apply(sent).sum(), {}}}).ok() == false);
  Pass& pass = *job.worker(1).pass;
  EXPECT_EQ(pass.status().message().find("autograd node "), 0u) << pass.status().message();
  EXPECT_NE(pass.status().message().find("Throws"), std::string::npos) << pass.status().message();
  EXPECT_NE(pass.status().message().find("no such embedding"), std::string::npos);
  EXPECT_EQ(pass.status().remoteType(), "std::out_of_range");
  EXPECT_TRUE(pass.idle());
  EXPECT_EQ(pass.addReady(5, {}).message(), pass.status().message()) << "later gradients meet the same error";
  EXPECT_EQ(pass.finish().message(), pass.status().message());
  EXPECT_EQ(pass.finish().message(), pass.status().message());
}

TEST(PassErrors, APlainBackwardThroughAReceivedTensorSaysWhatToDo) {
  at::Tensor w = parameter({3});
  LoopbackJob job(2, 1);
  at::Tensor received = job.send(0, 1, w * 2);
  try {
    received.sum().backward();
    FAIL() << "nothing was thrown";
  } catch (const StateError& error) {
    EXPECT_NE(std::string(error.what()).find("AutogradContext::backward"), std::string::npos) << error.what();
  }
}

// One that names its leaves, so that it writes to no others'.
TEST(PassErrors, ALocalBackwardInsideANodeDoesNotBelongToThePass) {
  at::Tensor w = parameter({3}), other = parameter({3});
  LoopbackJob job(2, 1);
  at::Tensor received = job.send(0, 1, w * 2);
  at::Tensor y = w * 1;
  bool threw = false;
  y.register_hook([&](const at::Tensor&) {
    EXPECT_EQ(Pass::current(), job.worker(1).pass.get());
    at::AutoGradMode grad(true);
    torch::autograd::backward({(other * 2).sum()}, {}, false, false, {other});
    try {
      torch::autograd::backward({(received * 2).sum()}, {}, false, false, {received});
    } catch (const StateError&) {
      threw = true;
    }
    EXPECT_EQ(Pass::current(), job.worker(1).pass.get());
  });
  ASSERT_TRUE(job.backward(1, {{(y + received).sum(), {}}}).ok());
  EXPECT_TRUE(threw);
  EXPECT_TRUE(closeTo(other.grad(), at::full({3}, 2.0, at::kDouble)));
  EXPECT_EQ(Pass::current(), nullptr);
}

// Directly, and in a hook of a local pass within.
TEST(PassErrors, ABackwardInsideANodeThatWouldWriteToAllLeavesIsRefused) {
  at::Tensor w = parameter({3}), other = parameter({3}), plain = parameter({3});
  auto plainBackward = [](const at::Tensor& leaf) {
    at::AutoGradMode grad(true);
    (leaf * 2).sum().backward();
  };
  for (const bool nested : {false, true}) {
    at::Tensor y = w * 1;
    y.register_hook([&](const at::Tensor&) {
      if (!nested) return plainBackward(plain);
      at::AutoGradMode grad(true);
      at::Tensor inner = other * 2;
      inner.register_hook([&](const at::Tensor&) { plainBackward(plain); });
      torch::autograd::grad({inner.sum()}, {other});
    });
    LoopbackJob job(1, 1);
    Status ran = job.backward(0, {{y.sum(), {}}});
    EXPECT_EQ(ran.code(), Code::kFailedPrecondition);
    EXPECT_NE(ran.message().find("plain backward()"), std::string::npos) << ran.message();
    EXPECT_FALSE(other.grad().defined() || plain.grad().defined());
  }
  plainBackward(plain);
  EXPECT_TRUE(closeTo(plain.grad(), full(2))) << "outside of passes it is what it was";
}

TEST(PassErrors, TensorsOfAnotherContextAreRefused) {
  at::Tensor w = parameter({3});
  LoopbackJob first(2, 11), second(2, 12);
  at::Tensor received = first.send(0, 1, w * 2);
  Status ran = second.backward(1, {{received.sum(), {}}});
  EXPECT_EQ(ran.code(), Code::kFailedPrecondition);
  EXPECT_NE(ran.message().find("context 11"), std::string::npos) << ran.message();
  EXPECT_NE(ran.message().find("context 12"), std::string::npos) << ran.message();
}

TEST(PassErrors, RootsThatCannotBeDifferentiatedAreRefused) {
  LoopbackJob job(1, 1);
  at::Tensor w = parameter({3});
  for (Root root : {Root{at::ones({1}), {}}, Root{at::Tensor(), {}}, Root{w * 2, {}}, Root{w * 2, at::ones({4})}}) {
    Status ran = job.start(0, {root});
    EXPECT_EQ(ran.code(), Code::kInvalidArgument) << ran.toString();
    EXPECT_FALSE(ran.message().empty());
  }
  EXPECT_TRUE(job.backward(0, {{w * 2, at::ones({3}, at::kDouble)}}).ok());
}

TEST(PassErrors, SendsWithoutAGradientAreNamed) {
  at::Tensor w = parameter({3});
  LoopbackJob job(2, 42);
  at::Tensor used = job.send(0, 1, w * 2);
  job.send(0, 1, {at::ones({1}), w * 3}, "lookup");
  Status ran = job.backward(1, {{used.sum(), {}}});
  EXPECT_EQ(ran.code(), Code::kFailedPrecondition);
  for (const char* part : {"1 of 2 messages that worker 0 sent", "context 42", "message 1 to worker 1", "(lookup)",
                           "tensors [1]", "FAST"}) {
    EXPECT_NE(ran.message().find(part), std::string::npos) << part << " in: " << ran.message();
  }
}

TEST(PassErrors, WrongArrivalsAreRefusedAndHarmless) {
  at::Tensor w = parameter({3});
  LoopbackJob job(2, 1);
  at::Tensor received = job.send(0, 1, w * 2);
  ASSERT_TRUE(job.start(1, {{received.sum(), {}}}).ok());
  Pass& pass = *job.worker(0).pass;
  at::Tensor gradient = at::ones({3}, at::kDouble);
  EXPECT_EQ(pass.addReady(99, {gradient}).code(), Code::kInvalidArgument);
  EXPECT_EQ(pass.addReady(0, {gradient, gradient}).code(), Code::kInvalidArgument);
  EXPECT_TRUE(pass.idle());
  EXPECT_TRUE(pass.addReady(0, {gradient}).ok());
  EXPECT_EQ(pass.addReady(0, {gradient}).code(), Code::kInvalidArgument) << "twice";
  EXPECT_FALSE(pass.idle());
  EXPECT_EQ(pass.finish().code(), Code::kFailedPrecondition) << "too early";
  EXPECT_TRUE(pass.runUntilIdle().ok());
  EXPECT_TRUE(pass.idle());
  EXPECT_TRUE(pass.finish().ok());
  EXPECT_EQ(pass.addReady(0, {gradient}).code(), Code::kFailedPrecondition) << "over";
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), 2 * gradient));
}

TEST(PassErrors, AGradientOfTheWrongShapeFromAPeerIsAnError) {
  at::Tensor w = parameter({3});
  LoopbackJob job(2, 1);
  job.send(0, 1, w * 2);
  ASSERT_TRUE(job.start(1, {}).ok());
  Pass& pass = *job.worker(0).pass;
  ASSERT_TRUE(pass.addReady(0, {at::ones({4}, at::kDouble)}).ok());
  Status ran = pass.runUntilIdle();
  ASSERT_FALSE(ran.ok());
  EXPECT_NE(ran.message().find("message 0 to worker 1"), std::string::npos) << ran.message();
  EXPECT_NE(ran.message().find("shape"), std::string::npos) << ran.message();
}

TEST(PassErrors, FailEndsItAndTheFirstFailureStays) {
  at::Tensor w = parameter({3});
  LoopbackJob job(2, 1);
  at::Tensor received = job.send(0, 1, w * 2);
  ASSERT_TRUE(job.start(1, {{received.sum(), {}}}).ok());
  Pass& pass = *job.worker(0).pass;
  ASSERT_TRUE(pass.addReady(0, {at::ones({3}, at::kDouble)}).ok());
  pass.fail(peerLost("trainer1", "trainer1 was lost"));
  pass.fail(cancelled("later"));
  EXPECT_EQ(pass.runUntilIdle().code(), Code::kPeerLost);
  EXPECT_EQ(pass.finish().worker(), "trainer1");
  EXPECT_FALSE(job.worker(0).gradient(w).defined());
}

TEST(PassErrors, ASenderUsesAMessageIdOnce) {
  ContextGraph graph(5, 0, AutogradMode::kFast);
  std::vector<at::Tensor> received = {at::ones({3})}, again = {at::ones({3})}, ofAnother = {at::ones({3})};
  EXPECT_TRUE(graph.addReceive({1, 1, ""}, nullptr, received).ok());
  EXPECT_EQ(graph.addReceive({1, 1, ""}, nullptr, again).code(), Code::kInvalidArgument);
  EXPECT_FALSE(again[0].requires_grad());
  EXPECT_TRUE(graph.addReceive({1, 2, ""}, nullptr, ofAnother).ok());
}

TEST(PassErrors, TensorsThatCannotCarryAGradientAreRefusedTogether) {
  ContextGraph graph(5, 0, AutogradMode::kFast);
  std::vector<at::Tensor> received = {at::ones({3}), at::ones({3}, at::kLong)};
  Status attached = graph.addReceive({1, 1, ""}, nullptr, received);
  EXPECT_EQ(attached.code(), Code::kInvalidArgument);
  EXPECT_NE(attached.message().find("Long"), std::string::npos) << attached.message();
  EXPECT_FALSE(received[0].requires_grad());
}

}  // namespace
}  // namespace treadle::autograd::pass_errors_test
