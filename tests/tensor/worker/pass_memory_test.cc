// Distributed passes of every kind, well or badly ended, leave nothing behind: no context, no graph, no memory.

#include <malloc.h>
#include <torch/csrc/autograd/custom_function.h>
#include <treadle/autograd.h>

#include "tests/support/gate.h"
#include "tests/support/seeds.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::pass_memory_test {
namespace {

using namespace std::chrono_literals;

struct FailingNode : torch::autograd::Function<FailingNode> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("the glue came off");
  }
};

at::Tensor square(const at::Tensor& x) { return x * x; }
at::Tensor squareAtC(CallContext& call, const at::Tensor& x) { return call.worker().call<&square>("C", x.sin()) * 2; }
at::Tensor fails(const at::Tensor& x) { return FailingNode::apply(x); }
void failsInForward(const at::Tensor&) { throw std::runtime_error("no such thing"); }

Functions functions() {
  return Functions()
      .add<&square>("square")
      .add<&squareAtC>("squareAtC")
      .add<&fails>("fails")
      .add<&failsInForward>("failsInForward");
}

template <class Body>
void badly(Body body) {
  try {
    body();
    ADD_FAILURE() << "it went well";
  } catch (const Error&) {}
}

void onePass(Worker& a, Random& random) {
  at::Tensor x = at::rand({64}, at::kDouble).requires_grad_();
  const bool fast = pick(random, 4) == 0;
  AutogradContext context(a, {fast ? AutogradMode::kFast : AutogradMode::kSmart});
  at::Tensor y = a.call<&squareAtC>("B", x);
  switch (pick(random, 8)) {
    case 0: return;  // no backward pass at all
    case 1: y.reset(), a.call<&square>("B", x); return;
    case 2: return badly([&] { context.backward({a.call<&fails>("C", y).sum()}); });
    case 3: return badly([&] { context.backward({fails(y).sum()}); });
    case 4: return badly([&] { context.backward({y}); });
    case 5:
      badly([&] { a.call<&failsInForward>("C", y); });
      if (fast) return badly([&] { context.backward({y.sum()}); });  // what it sent gets no gradient
      break;
    case 6: context.backward({y.sum()}, {.retainGraph = true, .timeout = kHangs}); break;
    default: break;
  }
  context.backward({y.sum()});
}

size_t bytesInUse() { return ::mallinfo2().uordblks; }

// What threads keep for later grows by 0.5 MiB over some 6,000 passes, and then no more. Of 10,000 passes the rest is
// less than 64 bytes each, or 640 for one of ten.
constexpr size_t kWarmUp = 2000, kPasses = 2000, kGrowth = 640 << 10;

TEST(PassMemory, PassesLeaveNothingBehind) {
  TensorJob job{{"A", "B", "C"}, functions()};
  Random random(1);
  const auto passes = [&](uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) onePass(job[0], random);
    EXPECT_TRUE(test::eventuallyReleased([&] { return job.openContexts() == 0; })) << job.openContexts();
  };
  passes(kWarmUp);
  const size_t before = bytesInUse();
  forSeeds(1, [&](Random&) { passes(kPasses); });  // 10,000 in the long tests
  const size_t after = bytesInUse();
  EXPECT_LT(after, before + kGrowth) << "of " << before << " bytes";
}

// The word of the kill may come at any moment of the pass.
TEST(PassMemory, WorkersThatAreKilledDuringPassesLeaveNothing) {
  size_t jobs = 0, before = 0;
  forSeeds(5, [&](Random& random) {
    // After the first few what is kept for later jobs is there.
    if (++jobs == 4) before = bytesInUse();
    TensorJob job{{"A", "B", "C"}, functions()};
    const auto moment = std::chrono::microseconds(pick(random, 3000));
    const auto victim = 1 + pick(random, 2);
    std::jthread killer([&] {
      std::this_thread::sleep_for(moment);
      job.kill(victim);
    });
    at::Tensor x = at::rand({64}, at::kDouble).requires_grad_();
    std::string ended;
    for (const TimePoint end = patience(); ended.empty() && Clock::now() < end;) {
      AutogradContext context(job[0]);
      try {
        context.backward({job[0].call<&squareAtC>("B", x).sum()});
      } catch (const PeerLostError& error) {
        ended = error.worker();
      }
    }
    killer.join();
    EXPECT_EQ(ended, victim == 1 ? "B" : "C");
    EXPECT_TRUE(test::eventuallyReleased([&] { return autograd::interceptorOf(job[0]).contexts().open() == 0; }));
    Worker& other = job[3 - victim];
    EXPECT_TRUE(test::eventuallyReleased([&] { return autograd::interceptorOf(other).contexts().open() == 0; }));
  });
  if (before != 0) {
    EXPECT_LT(bytesInUse(), before + (size_t{2} << 20)) << "of " << before << " bytes, " << jobs << " jobs";
  }
}

}  // namespace
}  // namespace treadle::test::pass_memory_test
