// What workers tell each other of a backward pass that cannot be so: it is refused in one sentence, changes nothing,
// and the next pass is right. Every sender here is a worker of the job that says what it should not.

#include <treadle/autograd.h>

#include "tests/support/gate.h"
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

class RefusedMessages : public ::testing::Test {
 protected:
  autograd::Contexts& contextsOf(size_t rank) { return autograd::interceptorOf(job[rank]).contexts(); }
  int64_t newPassOf(size_t rank) { return contextsOf(rank).nextId(); }
  void expectGoesOn(AutogradContext& context) {
    at::Tensor x = leaf();
    context.backward({job[0].call<&cube>("B", x).sum()});
    EXPECT_TRUE(close(context.gradient(x), 3 * x.detach().square()));
  }

  TensorJob job{{"A", "B", "C"},
                Functions().add<&cube>("cube").add<&cubeAtC>("cubeAtC").add<&sum>("sum").add<&toMeta>("toMeta")};
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

// The word of the end may come between the look for the context and the pass.
TEST_F(RefusedMessages, APassForAContextThatEndsMeanwhile) {
  AutogradContext context(job[0]);
  at::Tensor y = job[0].call<&cube>("B", leaf());
  autograd::ContextPtr there = valueOrThrow(contextsOf(1).find(context.id()));
  there->end();
  std::string why = messageOf<NotFoundError>([&] { context.backward({y.sum()}); });
  EXPECT_TRUE(contains(why, "has ended"));
  MutexLock lock(there->mutex);
  EXPECT_TRUE(there->passes.empty());
}

class OwnerLost : public RefusedMessages, public ::testing::WithParamInterface<AutogradMode> {
 protected:
  // A pass that waits on B: in SMART mode for gradients, in FAST mode for the end of the pass.
  int64_t waitsAtB(const autograd::ContextPtr& context) {
    const autograd::PassId id{context->id, newPassOf(0), false};
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
    const std::shared_ptr<autograd::Pass> pass = there->passes.at(passId).pass;
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
