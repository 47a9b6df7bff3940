// What workers tell each other of a backward pass that cannot be so: it is refused in one sentence, changes nothing,
// and the next pass is right. Every sender here is a worker of the job that says what it should not.

#include <treadle/autograd.h>

#include "tests/support/gate.h"
#include "tests/support/gated_node.h"
#include "tests/support/tensor_job.h"
#include "treadle/tensor/autograd/backward.h"
#include "treadle/tensor/autograd/pass_end.h"

namespace treadle::test::refused_messages_test {
namespace {

using autograd::BeginMessage;
using autograd::GradientMessage;
using autograd::MaybeGradient;

at::Tensor cube(const at::Tensor& x) { return x * x * x; }
at::Tensor cubeAtC(CallContext& call, const at::Tensor& x) { return call.worker().call<&cube>("C", x); }
at::Tensor sum(const at::Tensor& x, const at::Tensor& y) { return x + y; }
at::Tensor toMeta(const at::Tensor& x) { return x.to(at::kMeta); }
at::Tensor leaf() { return at::tensor({0.3, -1.2}, at::kDouble).requires_grad_(); }

at::Tensor withMetaGradient(const at::Tensor& x) {
  struct ToMeta : torch::autograd::FunctionPreHook {  // whose result libtorch does not check
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
      return {gradients.at(0).to(at::kMeta)};
    }
  };
  x.grad_fn()->add_pre_hook(std::make_unique<ToMeta>());
  return x * 2;
}
std::atomic<bool> hasRunBehind = false;
at::Tensor gatedBeforeHook(const at::Tensor& x) {
  const at::Tensor y = x * 2;
  y.register_hook([](const at::Tensor&) { hasRunBehind = true; });
  return GatedNode::apply(y);
}

class RefusedMessages : public ::testing::Test {
 protected:
  autograd::Contexts& contextsOf(size_t rank) { return autograd::interceptorOf(job[rank]).contexts(); }
  int64_t newPassOf(size_t rank) { return contextsOf(rank).nextId(); }
  // A pass of A's context as A knows it, without the thread that would run it.
  autograd::PassId passUnderWay(autograd::ContextState& context) {
    const autograd::PassId id{context.id, newPassOf(0), false};
    MutexLock lock(context.mutex);
    context.live.emplace(autograd::LivePass{.id = id.pass});
    return id;
  }
  void expectGoesOn(AutogradContext& context) {
    at::Tensor x = leaf();
    context.backward({job[0].call<&cube>("B", x).sum()});
    EXPECT_TRUE(close(context.gradient(x), 3 * x.detach().square()));
  }

  NodeGates gates;
  at::Tensor kept;
  TensorJob job{{"A", "B", "C"},
                Functions()
                    .add<&cube>("cube")
                    .add<&cubeAtC>("cubeAtC")
                    .add<&sum>("sum")
                    .add<&toMeta>("toMeta")
                    .add<&withMetaGradient>("withMetaGradient")
                    .add<&gatedBeforeHook>("gatedBeforeHook")};
};

TEST_F(RefusedMessages, ContextsAndLineagesOfRanksThatNobodyHas) {
  const int64_t ofNobody = (int64_t{9999} << 40) | 1;
  EXPECT_EQ(contextsOf(0).arrived(ofNobody, AutogradMode::kSmart, 1).status().code(), Code::kDataLoss);
  EXPECT_EQ(contextsOf(0).open(), 0U);
  autograd::Lineage lineage;
  lineage.add(2, 0);
  EXPECT_TRUE(contextsOf(0).checkRanks(lineage).ok());
  lineage.add(3, 0);
  EXPECT_EQ(contextsOf(0).checkRanks(lineage).code(), Code::kDataLoss);
}

TEST_F(RefusedMessages, GradientsFromAWorkerToWhichTheMessageNeverWent) {
  at::Tensor x = leaf();
  AutogradContext context(job[0]);
  at::Tensor y = job[0].call<&cube>("B", x);
  const GradientMessage forged{{context.id(), newPassOf(0), false}, {{0, {MaybeGradient(at::ones_like(x))}}}};
  std::string why = messageOf<ArgumentError>([&] { job[2].call<&autograd::onGradients>("A", forged); });
  EXPECT_TRUE(contains(why, "to which it never went"));
  context.backward({y.sum()});
  EXPECT_TRUE(close(context.gradient(x), 3 * x.detach().square()));
}

TEST_F(RefusedMessages, BeginningsThatNameAMessageTwiceOrComeFromSomebodyElse) {
  AutogradContext context(job[0]);
  at::Tensor y = job[0].call<&cube>("B", leaf());
  const auto begin = [&](size_t from, int64_t pass, std::vector<int64_t> sends) {
    autograd::CurrentContext none(autograd::interceptorOf(job[0]), nullptr);
    return messageOf<ArgumentError>(
        [&] { job[from].call<&autograd::onBegin>("B", BeginMessage{{context.id(), pass, false}, std::move(sends)}); });
  };
  EXPECT_TRUE(contains(begin(0, newPassOf(0), {0, 0}), "there twice"));
  EXPECT_TRUE(contains(begin(2, newPassOf(2), {0}), "owns the context"));
  expectGoesOn(context);
}

// A context takes one pass at a time. What comes for one that its owner never began makes no other at B, and none at A.
TEST_F(RefusedMessages, GradientsAndEndsOfPassesThatNobodyBegan) {
  AutogradContext context(job[0]);
  at::Tensor x = leaf();
  at::Tensor y = job[0].call<&cube>("B", x);
  const auto gradients = [&](size_t from, const char* to, std::vector<autograd::MessageGradients> messages) {
    autograd::CurrentContext none(autograd::interceptorOf(job[from]), nullptr);
    const GradientMessage forged{{context.id(), newPassOf(0), false}, std::move(messages)};
    return messageOf<ArgumentError>([&] { job[from].call<&autograd::onGradients>(to, forged); });
  };
  const auto end = [&](size_t from, const char* to, size_t ownerOfPass) {
    autograd::CurrentContext none(autograd::interceptorOf(job[from]), nullptr);
    const autograd::FinishMessage forged{{context.id(), newPassOf(ownerOfPass), false}, ""};
    return messageOf<ArgumentError>([&] { job[from].call<&autograd::onFinish>(to, forged); });
  };
  EXPECT_TRUE(contains(gradients(0, "B", {}), "holds none"));
  EXPECT_TRUE(contains(gradients(1, "A", {{0, {MaybeGradient(at::ones_like(x))}}}), "another backward pass"));
  EXPECT_TRUE(contains(end(1, "A", 0), "may not end"));
  EXPECT_TRUE(contains(end(2, "B", 2), "may not end"));
  context.backward({y.sum()});
  EXPECT_TRUE(close(context.gradient(x), 3 * x.detach().square()));
  expectGoesOn(context);
}

TEST_F(RefusedMessages, GradientsForASecondPassWhileOneIsUnderWay) {
  const autograd::ContextPtr context = contextsOf(0).create(AutogradMode::kSmart);
  const autograd::PassId first = passUnderWay(*context), second{context->id, newPassOf(0), false};
  at::Tensor x = leaf();
  {
    autograd::CurrentContext current(autograd::interceptorOf(job[0]), context);
    kept = job[0].call<&cube>("B", x);
  }
  const auto gradients = [&](const autograd::PassId& id) {
    return job[0].async<&autograd::onGradients>("B", GradientMessage{id, {{0, {MaybeGradient(at::ones_like(x))}}}});
  };
  Future<autograd::EndedRanks> waits = gradients(first);  // for the word that it begins
  const autograd::ContextPtr there = valueOrThrow(contextsOf(1).find(context->id));
  EXPECT_TRUE(eventually([&] {
    MutexLock lock(there->mutex);
    return there->find(first.pass) != nullptr;
  }));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { gradients(second).wait(); }), "another backward pass"));
  const autograd::FinishMessage end{first, "the glue came off"};
  messageOf<CancelledError>([&] { job[0].call<&autograd::onFinish>("B", end); });
  EXPECT_TRUE(contains(messageOf<Error>([&] { waits.wait(); }), "the glue came off"));
  autograd::releaseEverywhere(job[0], context->id);
}

// The word of the end may come between the look for the context and the pass.
TEST_F(RefusedMessages, APassForAContextThatEndsMeanwhile) {
  AutogradContext context(job[0]);
  at::Tensor y = job[0].call<&cube>("B", leaf());
  autograd::ContextPtr there = valueOrThrow(contextsOf(1).find(context.id()));
  there->end();
  std::string why = messageOf<NotFoundError>([&] { context.backward({y.sum()}); });
  EXPECT_TRUE(contains(why, "has ended"));
  MutexLock lock(there->mutex);
  EXPECT_FALSE(there->live);
}

// Its own thread is to do so, when all others have.
TEST_F(RefusedMessages, AnEndThatIsToldToTheOwner) {
  const autograd::ContextPtr context = contextsOf(0).create(AutogradMode::kSmart);
  const autograd::PassId id = passUnderWay(*context);
  for (const char* failure : {"", "the glue came off"}) {
    const autograd::FinishMessage end{id, failure};
    const std::string why = messageOf<ArgumentError>([&] { job[1].call<&autograd::onFinish>("A", end); });
    EXPECT_TRUE(contains(why, "may not end")) << why;
  }
  EXPECT_TRUE(context->usable().ok());
  {
    MutexLock lock(context->mutex);
    EXPECT_NE(context->find(id.pass), nullptr);
  }
  autograd::releaseEverywhere(job[0], context->id);
}

class OwnerLost : public RefusedMessages, public ::testing::WithParamInterface<AutogradMode> {
 protected:
  // A pass that waits on B: in SMART mode for gradients, in FAST mode for the end of the pass.
  int64_t waitsAtB(const autograd::ContextPtr& context) {
    const autograd::PassId id = passUnderWay(*context);
    {
      autograd::CurrentContext current(autograd::interceptorOf(job[0]), context);
      job[0].call<&cubeAtC>("B", leaf());
    }
    if (GetParam() == AutogradMode::kSmart)
      job[0].call<&autograd::onBegin>("B", BeginMessage{id, {kToC, kAnswer}});
    else
      job[0].call<&autograd::onGradients>("B",
                                          GradientMessage{id, {{kAnswer, {MaybeGradient(at::ones_like(leaf()))}}}});
    return id.pass;
  }

  static constexpr int64_t kToC = 0, kAnswer = 1;  // the messages of B
};
INSTANTIATE_TEST_SUITE_P(Modes, OwnerLost, ::testing::Values(AutogradMode::kSmart, AutogradMode::kFast));

// C has the context by way of B alone, and B a pass of it that waits. The pass ends on a thread where its callbacks may
// wait: the thread that hears of the loss reads, and may not.
TEST_P(OwnerLost, EndsThePassesOfItsContextsElsewhere) {
  autograd::ContextPtr own = contextsOf(0).create(GetParam());  // no AutogradContext, which would report its end
  const int64_t passId = waitsAtB(own);
  EXPECT_EQ(job.openContexts(), 3U);
  std::weak_ptr<autograd::Pass> waiting;
  Gate hasEnded;
  {
    autograd::ContextPtr there = valueOrThrow(contextsOf(1).find(own->id));
    MutexLock lock(there->mutex);
    const std::shared_ptr<autograd::Pass> pass = there->find(passId)->pass;
    pass->onFinish([&](const Status& outcome) {
      EXPECT_EQ(outcome.code(), Code::kCancelled);
      io::Executor::Blocking mayWait;
      EXPECT_TRUE(mayWait.status().ok()) << mayWait.status().toString();
      EXPECT_TRUE(io::Executor::onPoolThread());
      hasEnded.open();
    });
    waiting = pass;
  }
  EXPECT_FALSE(waiting.expired());
  own.reset();
  job.kill(0);
  hasEnded.wait();
  EXPECT_TRUE(test::eventuallyReleased([&] { return job.openContexts() == 0 && waiting.expired(); }))
      << job.openContexts();
}

TEST_P(OwnerLost, StopsTheNodesThatRunElsewhere) {
  hasRunBehind = false;
  autograd::ContextPtr own = contextsOf(0).create(GetParam());
  const autograd::PassId id = passUnderWay(*own);
  {
    autograd::CurrentContext current(autograd::interceptorOf(job[0]), own);
    kept = job[0].call<&gatedBeforeHook>("B", leaf());
  }
  autograd::CurrentContext none(autograd::interceptorOf(job[0]), nullptr);
  Future<autograd::EndedRanks> gradients =
      job[0].async<&autograd::onGradients>("B", GradientMessage{id, {{0, {MaybeGradient(at::ones_like(leaf()))}}}});
  if (GetParam() == AutogradMode::kSmart) {
    job[0].async<&autograd::onBegin>("B", BeginMessage{id, {0}});
  }
  gates.reached.wait();
  std::weak_ptr<autograd::Pass> running;
  {
    autograd::ContextPtr there = valueOrThrow(contextsOf(1).find(own->id));
    MutexLock lock(there->mutex);
    running = there->find(id.pass)->pass;
  }
  own.reset();
  kept.reset();
  job.kill(0);
  EXPECT_TRUE(eventually([&] {
    const auto pass = running.lock();
    return !pass || !pass->status().ok();
  }));
  gates.released.open();
  EXPECT_TRUE(test::eventuallyReleased([&] { return running.expired() && job.openContexts() == 0; }));
  EXPECT_FALSE(hasRunBehind);
}

TEST_F(RefusedMessages, AGradientThatDoesNotTravelFailsThePassInTheNameOfItsReceiver) {
  AutogradContext context(job[0]);
  const at::Tensor loss = job[0].call<&withMetaGradient>("B", leaf()).sum();
  const std::string why = messageOf<Error>([&] { context.backward({loss}); });
  for (const char* part : {"'B'", "sending gradients to worker 'A'", "device meta does not travel"})
    EXPECT_TRUE(contains(why, part)) << why;
}

// As an argument behind one that travels, and as a result. In FAST mode a message that was left behind would fail the
// next pass, and so does what was sent to a function that failed.
TEST_F(RefusedMessages, TensorsOfADeviceWhoseTensorsDoNotTravelKeepNothing) {
  for (const AutogradMode mode : {AutogradMode::kSmart, AutogradMode::kFast}) {
    AutogradContext context(job[0], {mode});
    const at::Tensor there = leaf().detach().to(at::kMeta).requires_grad_();
    const std::string argument = messageOf<ArgumentError>([&] { job[0].call<&sum>("B", leaf(), there); });
    EXPECT_TRUE(contains(argument, "device meta does not travel yet; send tensor.cpu()")) << argument;
    if (mode == AutogradMode::kSmart) {
      const std::string result = messageOf<ArgumentError>([&] { job[0].call<&toMeta>("B", leaf()); });
      EXPECT_TRUE(contains(result, "device meta does not travel yet")) << result;
    }
    EXPECT_TRUE(test::eventuallyReleased([&] { return job.sendsKept(context.id()) == 0; }))
        << job.sendsKept(context.id());
    expectGoesOn(context);
  }
}

// Nothing of it is decoded at the callee: what was recorded for it goes.
TEST_F(RefusedMessages, ACallOfAFunctionThatIsNotThereKeepsNothing) {
  AutogradContext context(job[0]);
  messageOf<NotFoundError>([&] { job[0].callNamed<at::Tensor>("B", "absent", leaf()); });
  EXPECT_TRUE(test::eventuallyReleased([&] { return job.sendsKept(context.id()) == 0; }))
      << job.sendsKept(context.id());
  expectGoesOn(context);
}

}  // namespace
}  // namespace treadle::test::refused_messages_test
