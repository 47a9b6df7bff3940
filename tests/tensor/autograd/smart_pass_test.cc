// SMART mode: a pass waits for just those sends that its roots depend on, and runs just what it would run in one
// process.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <atomic>

#include "tests/support/gate.h"
#include "tests/tensor/autograd/loopback.h"
#include "treadle/core/base/error.h"

namespace treadle::autograd::smart_pass_test {
namespace {

class SmartPass : public ::testing::Test {
 protected:
  LoopbackJob job{4, 9, 1, nullptr, AutogradMode::kSmart};

  LineagePtr lineageAt(int rank, const at::Tensor& tensor) {
    return std::make_shared<Lineage>(valueOrThrow(job.worker(rank).graph->lineageOf(std::vector<Root>{{tensor, {}}})));
  }
};

TEST_F(SmartPass, doesNotWaitForSendsThatTakeNoPart) {
  at::Tensor w = parameter({3}), v = parameter({3});
  at::Tensor used = job.send(0, 1, w * 2);
  job.send(0, 1, v * 3);                          // not used at all
  at::Tensor back = job.send(1, 0, used * used);  // not in the loss
  ASSERT_TRUE(job.backward(1, {{used.sum(), {}}}).ok());
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), full(2)));
  EXPECT_FALSE(job.worker(0).gradient(v).defined());
  EXPECT_EQ(job.delivered(), 1u);
}

// The example of the RFC: w2 is given tensors by w1 twice, and of what it gives to w3 and w4 only some comes back.
TEST_F(SmartPass, knowsWhatTheRootsDependOn) {
  at::Tensor x = parameter({3});
  at::Tensor first = job.send(0, 1, x * 2), second = job.send(0, 1, x * 3);
  at::Tensor third = job.send(1, 2, first + second), fourth = job.send(1, 3, second * 2);
  at::Tensor result = job.send(2, 0, third * third);
  LineagePtr ofResult = lineageAt(0, result), ofFourth = lineageAt(3, fourth);
  EXPECT_EQ(ofResult->ranks(), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(ofResult->numbers(0), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(ofResult->numbers(1), (std::vector<int64_t>{0}));
  EXPECT_EQ(ofFourth->numbers(0), (std::vector<int64_t>{1}));
  EXPECT_EQ(ofFourth->numbers(1), (std::vector<int64_t>{1}));
  EXPECT_TRUE(lineageAt(0, x * 2)->empty());
  ASSERT_TRUE(job.backward(0, {{result.sum(), {}}}, true).ok());
  EXPECT_TRUE(closeTo(job.worker(0).gradient(x), (50 * x).detach()));
  ASSERT_TRUE(job.backward(3, {{fourth.sum(), {}}}).ok());
  EXPECT_TRUE(closeTo(job.worker(0).gradient(x), (50 * x + 6).detach()));
}

// A tensor of a message may be used and another not: what is behind the other does not run, hooks included.
TEST_F(SmartPass, runsNothingBehindATensorThatTakesNoPart) {
  at::Tensor w = parameter({3}), v = parameter({3});
  at::Tensor behind = v * 2, far = job.send(2, 0, behind) * 1;
  int hooks = 0;
  for (at::Tensor* each : {&behind, &far}) each->register_hook([&](const at::Tensor&) { ++hooks; });
  onAccumulated(v, [&](const at::Tensor&) { ++hooks; });
  auto received = job.send(0, 1, std::vector<at::Tensor>{w * 1, far});
  received[1].register_hook([&](const at::Tensor&) { ++hooks; });
  ASSERT_TRUE(job.backward(1, {{received[0].sum(), {}}}).ok());
  EXPECT_TRUE(closeTo(job.worker(0).gradient(w), full(1)));
  EXPECT_EQ(hooks, 0);
  // It is all there for a pass that needs it.
  ASSERT_TRUE(job.backward(1, {{received[1].sum(), {}}}).ok());
  EXPECT_EQ(hooks, 4);
  EXPECT_TRUE(closeTo(job.worker(2).gradient(v), full(2)));
}

// Nor are hooks called on the node of a message of which no tensor takes part; where one does, they are, once.
TEST_F(SmartPass, callsHooksOfAMessageThatIsReachedAlone) {
  struct PreHook : torch::autograd::FunctionPreHook {
    explicit PreHook(int& calls) : calls(calls) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
      ++calls;
      return gradients;
    }
    int& calls;
  };
  struct PostHook : torch::autograd::FunctionPostHook {
    explicit PostHook(int& calls) : calls(calls) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list& inputs) override {
      EXPECT_TRUE(at::equal(inputs.at(0), full(1)));
      ++calls;
      return outputs;
    }
    int& calls;
  };
  at::Tensor w = parameter({3});
  auto far = job.send(2, 0, std::vector<at::Tensor>{parameter({3}) * 2, parameter({3}) * 3});
  int before = 0, after = 0;
  far[0].grad_fn()->add_pre_hook(std::make_unique<PreHook>(before));
  far[0].grad_fn()->add_post_hook(std::make_unique<PostHook>(after));
  auto received = job.send(0, 1, std::vector<at::Tensor>{w * 1, far[0]});
  ASSERT_TRUE(job.backward(1, {{received[0].sum(), {}}}).ok());
  EXPECT_EQ(before + after, 0);
  ASSERT_TRUE(job.backward(1, {{received[1].sum(), {}}}).ok());
  EXPECT_EQ(before, 1);
  EXPECT_EQ(after, 1);
}

struct GivesNothing : torch::autograd::Function<GivesNothing> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 1; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    return {at::Tensor()};
  }
};

// That is zero, and what is behind it runs as in one process.
TEST_F(SmartPass, anUndefinedGradientTravelsAsOne) {
  at::Tensor w = parameter({3}), y = w * 2;
  int seen = 0;
  y.register_hook([&](const at::Tensor& gradient) {
    EXPECT_FALSE(gradient.defined());
    ++seen;
  });
  at::Tensor there = job.send(0, 1, y);
  ASSERT_TRUE(job.backward(1, {{GivesNothing::apply(there).sum(), {}}}).ok());
  EXPECT_EQ(seen, 1);
  EXPECT_FALSE(job.worker(0).gradient(w).defined());
}

TEST_F(SmartPass, sendsTheGradientsThatOneNodeMakesTogether) {
  constexpr int kMessages = 200;
  at::Tensor w = parameter({2});
  std::vector<at::Tensor> there;
  for (int i = 0; i < kMessages; ++i) there.push_back(job.send(i % 2, 2, w * i));
  ASSERT_TRUE(job.backward(2, {{at::stack(there).sum(), {}}}).ok());
  EXPECT_EQ(job.delivered(), size_t{kMessages});
  EXPECT_EQ(job.mails(), 2u) << "one to each worker";
}

TEST_F(SmartPass, saysWhichMessageAnEarlierPassUsedUp) {
  at::Tensor w = parameter({3});
  at::Tensor there = job.send(0, 1, w * w);
  ASSERT_TRUE(job.backward(1, {{there.sum(), {}}}).ok());
  Status again = job.backward(1, {{(there * 2).sum(), {}}});
  EXPECT_EQ(again.code(), Code::kFailedPrecondition);
  EXPECT_NE(again.message().find("message 0 that worker 0 sent"), std::string::npos) << again.message();
  EXPECT_NE(again.message().find("retainGraph"), std::string::npos) << again.message();
}

TEST_F(SmartPass, refusesToSendWhatCameInAnotherContext) {
  LoopbackJob other(2, 10, 1, nullptr, AutogradMode::kSmart);
  at::Tensor foreign = other.send(0, 1, parameter({3})) * 2;
  try {
    job.send(1, 0, foreign);
    FAIL() << "it was sent";
  } catch (const StateError& error) {
    for (const char* part : {"context 10", "context 9", "detach"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  EXPECT_TRUE(job.worker(1).graph->sends().empty());
}

// Nodes come and go at the same addresses, and what is remembered of one must not be taken for another's.
TEST_F(SmartPass, isNotMisledByNodesThatAreGone) {
  at::Tensor w = parameter({1});
  std::vector<at::Tensor> sources = {job.send(0, 1, w * 1), job.send(0, 1, w * 2), w};
  for (int i = 0; i < 3000; ++i) {
    const auto which = static_cast<size_t>(i % 3);
    at::Tensor made = sources[which] * 1.0 + 1;
    EXPECT_EQ(lineageAt(1, made)->numbers(0),
              which == 2 ? std::vector<int64_t>{} : std::vector<int64_t>{static_cast<int64_t>(which)});
  }
}

// A send does not walk again what an earlier one has walked: the set of what two messages depend on is made once.
TEST_F(SmartPass, looksAtEachNodeOnce) {
  at::Tensor x = job.send(0, 1, parameter({1})) + job.send(0, 1, parameter({1}));
  Ancestry ancestry(9);
  LineagePtr first;
  ASSERT_TRUE(ancestry.unite(first, torch::autograd::impl::gradient_edge(x)).ok());
  EXPECT_EQ(first->numbers(0), (std::vector<int64_t>{0, 1}));
  size_t nodes = 1;
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k < 10; ++k, ++nodes) x = x + 1;
    LineagePtr lineage;
    ASSERT_TRUE(ancestry.unite(lineage, torch::autograd::impl::gradient_edge(x)).ok());
    EXPECT_EQ(ancestry.known(), nodes);
    EXPECT_EQ(lineage, first) << "a walk through all would have made another";
  }
}

// Neither by a reference nor by a weak one: libtorch's nodes free what they saved with the last of either.
TEST_F(SmartPass, whatIsRememberedOfNodesKeepsNoneAlive) {
  at::Tensor x = job.send(0, 1, parameter({1})), saved = x + 1;
  c10::weak_intrusive_ptr<c10::StorageImpl> memory(saved.storage().getWeakStorageImpl());
  at::Tensor y = saved * saved;
  saved = at::Tensor();
  Ancestry ancestry(9);
  LineagePtr lineage;
  ASSERT_TRUE(ancestry.unite(lineage, torch::autograd::impl::gradient_edge(y)).ok());
  const size_t known = ancestry.known();
  EXPECT_EQ(known, 2u);
  // Of the context, what it remembers of sends: the second looks at no node of the first but the last.
  ContextGraph& graph = *job.worker(1).graph;
  job.send(1, 2, y);
  at::Tensor z = y * 3;
  job.send(1, 3, z);
  for (const int rank : {2, 3}) graph.forgetSentTo(rank, std::vector<int64_t>{rank - 2});
  ASSERT_TRUE(graph.sends().empty());
  y = at::Tensor(), x = at::Tensor();
  EXPECT_FALSE(memory.expired()) << "z is made of it";
  EXPECT_EQ(graph.received().size(), 1u);
  z = at::Tensor();
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(graph.received().size(), 0u);
  EXPECT_EQ(ancestry.known(), known) << "it is remembered all the same";
  EXPECT_EQ(lineage->numbers(0), (std::vector<int64_t>{0}));
}

TEST_F(SmartPass, aDeepGraphIsNoMatterForTheStack) {
  at::Tensor x = job.send(0, 1, parameter({1}));
  for (int i = 0; i < 300'000; ++i) x = x + 1;
  EXPECT_EQ(lineageAt(1, x)->numbers(0), (std::vector<int64_t>{0}));
}

TEST_F(SmartPass, aLineageWithMessagesThatWereNeverSentIsRefused) {
  ContextGraph graph(1, 0, AutogradMode::kSmart);
  Lineage lineage;
  lineage.add(0, 0);
  std::vector<at::Tensor> came = {full(1)};
  const auto receive = [&] { return graph.addReceive({0, 1, ""}, std::make_shared<Lineage>(lineage), came); };
  EXPECT_EQ(receive().code(), Code::kDataLoss);
  ASSERT_TRUE(graph.addSend(1, "f", std::vector{parameter({3}) * 1}).ok());
  EXPECT_TRUE(receive().ok());
}

// A node may say that its gradient is zero by a tensor without memory: nor does the message have any.
struct ZeroBehind : torch::autograd::Function<ZeroBehind> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {at::_efficientzerotensor(gradients[0].sizes(), gradients[0].options())};
  }
};

TEST_F(SmartPass, aGradientOfZeroIsNotSentAsATensor) {
  struct Network : GradientSink {
    Status sendGradients(Pass&, int, std::vector<MessageGradients> messages) override {
      for (MessageGradients& message : messages) sent.push_back(std::move(message));
      return {};
    }
    void onIdle(Pass&) override {}
    std::vector<MessageGradients> sent;
  } network;
  auto graph = std::make_shared<ContextGraph>(1, 0, AutogradMode::kSmart);
  std::vector<at::Tensor> came = {full(2)};
  ASSERT_TRUE(graph->addReceive({0, 1, ""}, nullptr, came).ok());
  LeafSlots slots;
  auto pass = *Pass::create(graph, network, slots, {.passId = 1, .sends = std::vector<int64_t>{}},
                            {{ZeroBehind::apply(came[0]).sum(), {}}});
  ASSERT_TRUE(pass->runUntilIdle().ok() && pass->finish().ok());
  ASSERT_EQ(network.sent.size(), 1U);
  ASSERT_TRUE(network.sent[0].gradients.at(0).has_value());
  EXPECT_FALSE(network.sent[0].gradients[0]->defined());
}

// Both ends know what a pass consumed: what goes with the graph behind a send is not told to anybody.
TEST_F(SmartPass, whatAPassConsumesIsNotToldAsDropped) {
  auto reactor = valueOrThrow(io::Reactor::make());
  io::Executor pool(*reactor, {});
  std::array<std::atomic<int>, 2> told = {};  // by message
  auto received = std::make_shared<ReceivedMessages>(&pool, [&](int, const std::vector<int64_t>& messageIds) {
    for (int64_t id : messageIds) ++told.at(static_cast<size_t>(id));
  });
  auto middle = std::make_shared<ContextGraph>(1, 1, AutogradMode::kSmart, received);
  const auto come = [&](int64_t messageId) {
    std::vector<at::Tensor> tensors = {full(2)};
    throwIfError(middle->addReceive({messageId, 0, ""}, nullptr, tensors));
    return tensors[0];
  };
  ASSERT_TRUE(middle->addSend(2, "f", std::vector{come(0) * 3}).ok());
  struct NoNetwork : GradientSink {
    Status sendGradients(Pass&, int, std::vector<MessageGradients>) override { return {}; }
    void onIdle(Pass&) override {}
  } network;
  LeafSlots slots;
  auto pass = *Pass::create(middle, network, slots, {.passId = 1, .sends = std::vector<int64_t>{0}});
  ASSERT_TRUE(pass->addReady(0, {MaybeGradient(full(1))}).ok());
  ASSERT_TRUE(pass->runUntilIdle().ok() && pass->finish().ok());
  EXPECT_EQ(received->size(), 0U) << "with the graph";
  come(1);  // and goes at once: this is told, after whatever was
  EXPECT_TRUE(test::eventually([&] { return told[1] == 1; }));
  EXPECT_EQ(told[0], 0);
}

}  // namespace
}  // namespace treadle::autograd::smart_pass_test
