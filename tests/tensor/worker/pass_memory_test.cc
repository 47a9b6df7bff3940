// Distributed passes of every kind, well or badly ended, leave nothing behind: no context, no graph, no memory.

#include <malloc.h>
#include <torch/csrc/autograd/custom_function.h>
#include <treadle/autograd.h>

#include <optional>

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
at::Tensor lookUp(const at::Tensor& rows) {
  static at::Tensor table = at::ones({16, 4}, at::kDouble).requires_grad_();
  return at::embedding(table, rows, -1, false, /*sparse=*/true);
}
at::Tensor checkpointed(const at::Tensor& x) {
  return checkpoint([](const at::Tensor& in) { return at::tanh(in) * in; }, x);
}
at::Tensor sum(const at::Tensor& x) { return x.sum(); }
std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> activation;  // the memory of the last one that was kept
at::Tensor keepsAnActivation(const at::Tensor& x) {
  const at::Tensor inner = x.exp();
  activation = inner.storage().getWeakStorageImpl();
  return inner * inner;
}
at::Tensor fails(const at::Tensor& x) { return FailingNode::apply(x); }
void failsInForward(const at::Tensor&) { throw std::runtime_error("no such thing"); }

Functions functions() {
  return Functions()
      .add<&square>("square")
      .add<&squareAtC>("squareAtC")
      .add<&lookUp>("lookUp")
      .add<&checkpointed>("checkpointed")
      .add<&sum>("sum")
      .add<&keepsAnActivation>("keepsAnActivation")
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

int expired = 0;  // passes over their limit

void onePass(Worker& a, Random& random) {
  at::Tensor x = at::rand({64}, at::kDouble).requires_grad_();
  const bool fast = pick(random, 4) == 0;
  AutogradContext context(a, {fast ? AutogradMode::kFast : AutogradMode::kSmart});
  at::Tensor y = a.call<&squareAtC>("B", x);
  switch (pick(random, 13)) {
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
    case 7: y.register_hook([](const at::Tensor& gradient) { return gradient * 2; }); break;
    case 8: y = y.sum() + a.call<&lookUp>("C", at::arange(3)).sum(); break;
    case 9: y = a.call<&checkpointed>("C", checkpointed(y)); break;
    case 10: return context.backward(a.remote<&sum>("C", y));
    case 11: {  // which expires at some moment of the pass, or not at all
      const auto limit = std::chrono::microseconds(pick(random, 500));
      try {
        return context.backward({y.sum()}, {.timeout = limit});
      } catch (const TimeoutError&) {
        return void(++expired);
      }
    }
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
  EXPECT_GT(expired, 0);
}

// What a backward pass needs of a forward pass on B is gone there when the gradients come to A, unless the graph is
// retained.
TEST(PassMemory, ActivationsAreGivenBackWhileThePassGoesOn) {
  TensorJob job{{"A", "B", "C"}, functions()};
  at::Tensor x = at::rand({64}, at::kDouble).requires_grad_();
  AutogradContext context(job[0]);
  at::Tensor sent = x * 2;
  int gone = 0, kept = 0;
  sent.register_hook([&](const at::Tensor&) { ++(activation->expired() ? gone : kept); });
  const at::Tensor y = job[0].call<&keepsAnActivation>("B", sent);
  EXPECT_FALSE(activation->expired());
  context.backward({y.sum()}, {.retainGraph = true});
  EXPECT_EQ(kept, 1);
  context.backward({y.sum()});
  EXPECT_EQ(gone, 1);
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
