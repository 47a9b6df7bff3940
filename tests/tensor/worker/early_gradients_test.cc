// Gradients that overtake the word that their pass begins wait for it, and so does their sender. No link delays
// anything here: the messages of a pass are sent by hand, in the order that a slow link from A to B would make.

#include <treadle/autograd.h>

#include "tests/support/gate.h"
#include "tests/support/kept_gradient.h"
#include "tests/support/passes_of.h"
#include "tests/support/tensor_job.h"
#include "treadle/tensor/autograd/backward.h"
#include "treadle/tensor/autograd/pass_end.h"

namespace treadle::test::early_gradients_test {
namespace {

using autograd::BeginMessage;
using autograd::EndedRanks;
using autograd::FinishMessage;
using autograd::GradientMessage;
using autograd::MaybeGradient;
using autograd::PassId;

at::Tensor* weight = nullptr;  // on B, of the test that runs

at::Tensor cube(const at::Tensor& x) { return x * x * x; }
at::Tensor weightedCubeAtC(CallContext& call, const at::Tensor& x) {
  return call.worker().call<&cube>("C", *weight * x) + *weight;
}
at::Tensor full(double value) { return at::full({2}, value, at::kDouble); }

// B has sent two messages: number 0 to C, and number 1 to A.
class EarlyGradients : public ::testing::Test {
 protected:
  explicit EarlyGradients(AutogradMode mode = AutogradMode::kSmart) : context(job[0], {mode}) {
    weight = &weightThere;
    kept = job[0].call<&weightedCubeAtC>("B", full(3));
  }
  ~EarlyGradients() override { weight = nullptr; }

  // As of a worker that makes no part of a forward pass by that.
  Future<EndedRanks> gradients(size_t from, int64_t message, std::vector<MaybeGradient> gradients) {
    autograd::CurrentContext none(autograd::interceptorOf(job[0]), nullptr);
    return job[from].async<&autograd::onGradients>("B", GradientMessage{id, {{message, std::move(gradients)}}});
  }
  void begin(std::vector<int64_t> sends) {
    autograd::CurrentContext none(autograd::interceptorOf(job[0]), nullptr);
    job[0].call<&autograd::onBegin>("B", BeginMessage{id, std::move(sends)});
  }
  void end(size_t from, const PassId& pass, const std::string& failure) {
    autograd::CurrentContext none(autograd::interceptorOf(job[0]), nullptr);
    job[from].call<&autograd::onFinish>("B", FinishMessage{pass, failure});
  }
  void endBadly() {
    messageOf<Error>([&] { end(0, id, "the glue came off"); });
  }

  // How many messages' gradients wait at B; none where the pass is not under way.
  std::optional<size_t> waiting() {
    const autograd::ContextPtr there = contextOf(job[1], context);
    MutexLock lock(there->mutex);
    const autograd::LivePass* live = there->find(id.pass);
    if (live == nullptr) return std::nullopt;
    EXPECT_FALSE(live->pass || live->begun);
    return live->early.size();
  }
  at::Tensor gradientThere() { return gradient(job[1], context.id(), weightThere); }

  at::Tensor weightThere = full(2).requires_grad_();
  TensorJob job{{"A", "B", "C"}, Functions().add<&cube>("cube").add<&weightedCubeAtC>("weightedCubeAtC")};
  AutogradContext context;
  at::Tensor kept;
  const PassId id{context.id(), autograd::interceptorOf(job[0]).contexts().nextId(), false};
};

TEST_F(EarlyGradients, WaitForTheWordThatThePassBegins) {
  Future<EndedRanks> answer = gradients(2, 0, {full(1)});
  EXPECT_TRUE(eventually([&] { return waiting() == 1U; }));
  EXPECT_FALSE(answer.ready()) << "B is not done with them";
  EXPECT_FALSE(gradientThere().defined());
  begin({0});
  EXPECT_EQ(answer.wait(), EndedRanks{1}) << "and then all was there, so it has ended at B";
  EXPECT_TRUE(close(gradientThere(), full(3)));
  EXPECT_EQ(waiting(), std::nullopt);
}

// The weight is behind both.
TEST_F(EarlyGradients, OfSeveralSendersAreTakenTogether) {
  Future<EndedRanks> first = gradients(2, 0, {full(1)});
  EXPECT_TRUE(eventually([&] { return waiting() == 1U; }));
  EXPECT_EQ(gradients(0, 1, {full(10)}).wait(), EndedRanks{}) << "B owes one answer only";
  EXPECT_EQ(waiting(), 2U);
  std::string why = messageOf<ArgumentError>([&] { gradients(2, 0, {full(100)}).wait(); });
  EXPECT_TRUE(contains(why, "twice for message 0"));
  EXPECT_FALSE(first.ready());
  begin({0, 1});
  // What goes on to C, for its answer, is for a pass that never begins there.
  EXPECT_TRUE(eventually([&] { return gradientThere().defined(); }));
  EXPECT_TRUE(close(gradientThere(), full(3 * 1 + 10)));
  endBadly();
}

TEST_F(EarlyGradients, ThatTakeNoPartFailThePassWhenItBegins) {
  Future<EndedRanks> answer = gradients(2, 0, {full(1)});
  EXPECT_TRUE(eventually([&] { return waiting() == 1U; }));
  for (const std::string& why :
       {messageOf<ArgumentError>([&] { begin({1}); }), messageOf<ArgumentError>([&] { answer.wait(); }),
        messageOf<ArgumentError>([&] { gradients(0, 1, {full(1)}).wait(); })})
    EXPECT_TRUE(contains(why, "message 0")) << "whoever waits hears of it";
  EXPECT_FALSE(gradientThere().defined());
  endBadly();
  EXPECT_EQ(waiting(), std::nullopt);
}

// The word of the end overtook that of the begin.
TEST_F(EarlyGradients, GoWithAPassThatEndsBeforeItBegins) {
  Future<EndedRanks> answer = gradients(2, 0, {full(1)});
  EXPECT_TRUE(eventually([&] { return waiting() == 1U; }));
  endBadly();
  EXPECT_TRUE(contains(messageOf<Error>([&] { answer.wait(); }), "the glue came off"));
  EXPECT_EQ(waiting(), std::nullopt);
  EXPECT_TRUE(contains(messageOf<StateError>([&] { gradients(2, 0, {full(1)}).wait(); }), "is over"));
  begin({0});
  EXPECT_EQ(waiting(), std::nullopt) << "nothing begins anew";
  EXPECT_TRUE(contains(messageOf<CancelledError>([&] { gradientThere(); }), "the glue came off"));
  EXPECT_FALSE(keptGradient(job[1], context.id(), weightThere).defined());
}

// A good end is the owner's affair, and an end of another pass is nobody's.
TEST_F(EarlyGradients, AreNotLostByAnEndThatNobodyMayTell) {
  Future<EndedRanks> answer = gradients(2, 0, {full(1)});
  EXPECT_TRUE(eventually([&] { return waiting() == 1U; }));
  const PassId later{context.id(), autograd::interceptorOf(job[0]).contexts().nextId(), false};
  messageOf<ArgumentError>([&] { end(2, id, ""); });
  for (size_t from : {0U, 2U})
    for (const char* failure : {"", "the glue came off"}) messageOf<ArgumentError>([&] { end(from, later, failure); });
  begin({0});
  EXPECT_EQ(answer.wait(), EndedRanks{1});
  EXPECT_TRUE(close(gradientThere(), full(3)));
}

TEST_F(EarlyGradients, AGoodEndIsRefusedWhereThePassHasFailed) {
  begin({0});
  messageOf<Error>([&] { end(2, id, "the glue came off"); });
  EXPECT_TRUE(contains(messageOf<Error>([&] { end(0, id, ""); }), "the glue came off"));
}

struct EarlyGradientsInFastMode : EarlyGradients {
  EarlyGradientsInFastMode() : EarlyGradients(AutogradMode::kFast) {}
};

// There the first gradients begin a pass, and those that are refused did not.
TEST_F(EarlyGradientsInFastMode, ThatAreRefusedKeepNoPassFromBeginning) {
  {
    autograd::CurrentContext none(autograd::interceptorOf(job[0]), nullptr);
    const GradientMessage doubled{id, {{0, {full(1)}}, {0, {full(1)}}}};
    auto answer = job[2].async<&autograd::onGradients>("B", doubled);
    EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { answer.wait(); }), "twice for message 0"));
  }
  // C takes part itself then, and sends gradients for message 0 as well.
  std::string why = messageOf<ArgumentError>([&] { gradients(0, 1, {full(10)}).wait(); });
  EXPECT_TRUE(contains(why, "already has gradients for"));
  endBadly();
}

}  // namespace
}  // namespace treadle::test::early_gradients_test
