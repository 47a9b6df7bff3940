// What travels is decoded, and an answer encoded, under the thread state that libtorch gives to new threads, whatever
// the thread that does it is in the middle of. Arguments are encoded by the caller's own code, under its own state.

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <treadle/rpc.h>

#include <thread>

#include "tests/support/gate.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::threads_of_calls_test {
namespace {

// Gradients on, inference mode on, autocast on.
using State = std::vector<int64_t>;
State stateHere() {
  return {c10::GradMode::is_enabled(), c10::InferenceMode::is_enabled(), at::autocast::is_autocast_enabled(at::kCPU)};
}
const State kDefault{1, 0, 0};

// Notes under which state it was encoded and decoded.
struct Probe {
  State encoded, decoded;
};

}  // namespace
}  // namespace treadle::test::threads_of_calls_test

namespace treadle::rpc {

template <>
struct Codec<test::threads_of_calls_test::Probe> {
  using Probe = test::threads_of_calls_test::Probe;
  static void encode(Encoder& encoder, const Probe&) {
    Codec<std::vector<int64_t>>::encode(encoder, test::threads_of_calls_test::stateHere());
  }
  static Probe decode(Decoder& decoder) {
    return {Codec<std::vector<int64_t>>::decode(decoder), test::threads_of_calls_test::stateHere()};
  }
  static std::string name() { return "probe"; }
};

}  // namespace treadle::rpc

namespace treadle::test::threads_of_calls_test {
namespace {

at::Tensor echo(const at::Tensor& x) { return x; }
Probe probe(const Probe& given) { return given; }
State encodedUnder(const Probe& given) { return given.encoded; }
Probe leaveGradientsOff() {
  c10::GradMode::set_enabled(false);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  return {};
}
Counter* arrived = nullptr;
Gate* mayEnd = nullptr;
void hold() {
  arrived->add();
  blocking([] { mayEnd->wait(); });
}
// Calls back, in inference mode.
State callBack(CallContext& call) {
  const c10::InferenceMode inference;
  const at::Tensor x = call.worker().call<&echo>(call.caller(), at::ones({2}));
  const Probe answer = call.worker().call<&probe>(call.caller(), Probe());
  State found = answer.decoded;
  found.push_back(x.is_inference());
  found.push_back(c10::InferenceMode::is_enabled());
  return found;
}

class ThreadsOfCalls : public ::testing::Test {
 protected:
  static Functions functions() {
    Functions functions;
    functions.add<&echo>("echo").add<&probe>("probe").add<&hold>("hold").add<&callBack>("callBack");
    return functions.add<&encodedUnder>("encodedUnder").add<&leaveGradientsOff>("leaveGradientsOff");
  }

  TensorJob job{{"A", "B"}, functions()};
  Worker& a = job[0];
};

// A caller in inference mode waits for its own answer, and so reads the answers of others.
TEST_F(ThreadsOfCalls, AnswersOfOthersMeetNothingOfACallerThatReads) {
  for (int round = 0; round < 20; ++round) {
    Counter begun;
    Gate end;
    arrived = &begun;
    mayEnd = &end;
    std::thread caller([this] {
      const c10::InferenceMode inference;
      at::autocast::set_autocast_enabled(at::kCPU, true);
      a.call<&hold>("B");
      EXPECT_EQ(stateHere(), (State{0, 1, 1})) << "it is back with its own work";
    });
    begun.waitFor(1);
    Gate ready;
    auto tensor = a.async<&echo>("B", at::ones({2}));
    auto answer = a.async<&probe>("B", Probe());
    answer.then([&](Probe&) { ready.open(); });
    ready.wait();
    EXPECT_EQ(answer.wait().decoded, kDefault) << round;
    EXPECT_FALSE(tensor.wait().is_inference()) << round;
    end.open();
    caller.join();
  }
}

TEST_F(ThreadsOfCalls, OwnAnswersAreOrdinary) {
  const c10::InferenceMode inference;
  const at::Tensor x = at::arange(6).view({2, 3});
  ASSERT_TRUE(x.is_inference());
  for (const char* to : {"A", "B"})
    for (const at::Tensor& sent : {x, x.t()}) {  // as it lies, and as a copy
      const at::Tensor answer = a.call<&echo>(to, sent);
      EXPECT_TRUE(at::equal(answer, sent));
      EXPECT_FALSE(answer.is_inference());
      EXPECT_FALSE(a.async<&echo>(to, sent).wait().is_inference());
    }
  EXPECT_TRUE(c10::InferenceMode::is_enabled());
}

TEST_F(ThreadsOfCalls, AnswersToAHandlerThatWaitsAreOrdinary) {
  for (const char* to : {"A", "B"}) EXPECT_EQ(a.call<&callBack>(to), (State{1, 0, 0, 0, 1}));
}

TEST_F(ThreadsOfCalls, AnswersAreNotEncodedUnderWhatTheirHandlerLeft) {
  for (const char* to : {"A", "B"}) EXPECT_EQ(a.call<&leaveGradientsOff>(to).encoded, kDefault);
}

// Under no_grad, say, the callee gets plain values.
TEST_F(ThreadsOfCalls, ArgumentsAreEncodedUnderTheCallersState) {
  const at::NoGradGuard noGradients;
  EXPECT_EQ(a.call<&encodedUnder>("B", Probe()), (State{0, 0, 0}));
}

}  // namespace
}  // namespace treadle::test::threads_of_calls_test
