// The nodes of a pass see the thread state (autocast, dispatch keys) of the thread that called backward, on its worker:
// also those that run when a gradient comes from another worker, on whichever thread. On other workers it is that of a
// fresh thread.

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <treadle/autograd.h>

#include <map>

#include "tests/support/tensor_job.h"

namespace treadle::test::pass_thread_state_test {
namespace {

// Keys that no operation here looks at.
constexpr auto kIncluded = c10::DispatchKey::Tracer, kExcluded = c10::DispatchKey::TESTING_ONLY_GenericMode;

struct ThreadState {
  bool gradients, autocast, included, excluded;
  at::ScalarType autocastType, typeOfProducts;
  bool operator==(const ThreadState&) const = default;
};
std::ostream& operator<<(std::ostream& out, const ThreadState& state) {
  return out << (state.gradients ? "gradients " : "") << (state.autocast ? "autocast " : "")
             << (state.included ? "included " : "") << (state.excluded ? "excluded " : "") << state.autocastType << " "
             << state.typeOfProducts;
}

ThreadState stateOfThread() {
  const at::Tensor one = at::ones({1, 1});
  return {at::GradMode::is_enabled(),
          at::autocast::is_autocast_enabled(at::kCPU),
          c10::impl::tls_is_dispatch_key_included(kIncluded),
          c10::impl::tls_is_dispatch_key_excluded(kExcluded),
          at::autocast::get_autocast_dtype(at::kCPU),
          one.mm(one).scalar_type()};
}

// What the nodes of the test that runs have seen, by their names.
class Seen {
 public:
  void note(const std::string& node) {
    MutexLock lock(mutex_);
    EXPECT_TRUE(states_.emplace(node, stateOfThread()).second) << node << " ran twice";
  }
  std::map<std::string, ThreadState> take() {
    MutexLock lock(mutex_);
    return std::exchange(states_, {});
  }

 private:
  Mutex mutex_;
  std::map<std::string, ThreadState> states_;
};
Seen* seen = nullptr;

struct NotingNode : torch::autograd::Function<NotingNode> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const std::string& name) {
    context->saved_data["name"] = name;
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    seen->note(context->saved_data["name"].toStringRef());
    return {gradients[0], at::Tensor()};
  }
};
at::Tensor noted(const at::Tensor& x, const std::string& name) { return NotingNode::apply(x, name); }

// For its lifetime the thread has another state than a fresh one.
class OtherState {
 public:
  OtherState() {
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~OtherState() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  OtherState(const OtherState&) = delete;
  OtherState& operator=(const OtherState&) = delete;

 private:
  const c10::impl::IncludeDispatchKeyGuard include_{kIncluded};
  const c10::impl::ExcludeDispatchKeyGuard exclude_{kExcluded};
};

class PassThreadState : public ::testing::TestWithParam<AutogradMode> {
 protected:
  PassThreadState() { seen = &states; }
  ~PassThreadState() override { seen = nullptr; }

  Seen states;
  TensorJob job{{"A", "B"}, Functions().add<&noted>("noted"), {GetParam()}};
  Worker& a = job[0];
};
INSTANTIATE_TEST_SUITE_P(Modes, PassThreadState, ::testing::Values(AutogradMode::kSmart, AutogradMode::kFast));

TEST_P(PassThreadState, IsThatOfTheCallerInEachNodeOnItsWorker) {
  const ThreadState fresh = stateOfThread();
  AutogradContext context(a);
  at::Tensor x = at::ones({2}).requires_grad_(), y = noted(x, "A runs it last");
  y = noted(a.call<&noted>("B", y, "B runs it last"), "A runs it between");
  y = noted(a.call<&noted>("B", y, "B runs it first"), "A runs it first");
  const at::Tensor loss = y.sum();
  ThreadState caller = fresh;
  {
    const OtherState other;
    caller = stateOfThread();
    context.backward({loss});
    EXPECT_EQ(stateOfThread(), caller) << "as it was before";
  }
  EXPECT_EQ(caller, (ThreadState{true, true, true, true, at::kHalf, at::kHalf}));
  auto inNodes = states.take();
  ASSERT_EQ(inNodes.size(), 5U);
  for (auto [node, state] : inNodes) {
    EXPECT_FALSE(std::exchange(state.gradients, true)) << node;
    EXPECT_EQ(state, node.starts_with("A") ? caller : fresh) << node;
  }
  EXPECT_TRUE(close(context.gradient(x), at::ones({2})));
}

// What one pass ran under is not kept for the next.
TEST_P(PassThreadState, IsTakenAnewByEachPass) {
  AutogradContext context(a);
  at::Tensor x = at::ones({2}).requires_grad_();
  const at::Tensor loss = a.call<&noted>("B", noted(x, "of A"), "of B").sum();
  for (const bool other : {true, false, true}) {
    std::optional<OtherState> state;
    if (other) state.emplace();
    context.backward({loss}, {.retainGraph = true});
    const auto inNodes = states.take();
    ASSERT_EQ(inNodes.size(), 2U);
    EXPECT_EQ(inNodes.at("of A").autocast, other);
    EXPECT_EQ(inNodes.at("of A").typeOfProducts, other ? at::kHalf : at::kFloat);
    EXPECT_FALSE(inNodes.at("of B").autocast) << "it does not travel";
  }
}

}  // namespace
}  // namespace treadle::test::pass_thread_state_test
