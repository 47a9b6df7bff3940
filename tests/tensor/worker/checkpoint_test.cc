// Checkpointing (a segment of the model is computed again in the backward pass, instead of being kept) within
// distributed passes: the kind that uses torch::autograd::grad works, the kind that calls backward() is refused by
// name.

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <treadle/autograd.h>

#include <atomic>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/kept_gradient.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::checkpoint_test {
namespace {

using torch::autograd::variable_list;

std::atomic<int> segmentRuns = 0;

at::Tensor segment(const at::Tensor& input, const at::Tensor& weight) {
  ++segmentRuns;
  return at::tanh(input.mm(weight)).mm(weight);
}

// The inputs of the segment that is computed again, as leaves of a graph of its own.
std::vector<at::Tensor> fresh(const variable_list& saved) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& tensor : saved) leaves.push_back(tensor.detach().requires_grad_());
  return leaves;
}

// Non-reentrant: the gradients of the segment are returned, and no leaf is written to.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight) {
    context->save_for_backward({input, weight});
    return segment(input, weight);
  }
  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& gradients) {
    at::AutoGradMode grad(true);
    const std::vector<at::Tensor> leaves = fresh(context->get_saved_variables());
    return torch::autograd::grad({segment(leaves[0], leaves[1])}, leaves, {gradients[0]});
  }
};

at::Tensor& captured() {
  static at::Tensor weight = at::eye(4, at::kDouble).mul(0.5).requires_grad_();
  return weight;
}

// Re-entrant: the backward() within writes `.grad` of the weight, which the graph around it does not know.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input) {
    context->save_for_backward({input});
    return segment(input, captured());
  }
  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& gradients) {
    at::AutoGradMode grad(true);
    const at::Tensor input = fresh(context->get_saved_variables()).at(0);
    segment(input, captured()).backward(gradients[0]);
    return {input.grad()};
  }
};

at::Tensor doubled(const at::Tensor& x) { return x * 2; }

// Its segment calls another worker. The first run is without gradients, as any forward of a Function.
struct RemoteSegment : torch::autograd::Function<RemoteSegment> {
  static at::Tensor segment(Worker& worker, const at::Tensor& input) {
    return worker.call<&doubled>("C", at::GradMode::is_enabled() ? input : input.detach());
  }
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input, Worker* worker) {
    context->save_for_backward({input});
    context->saved_data["worker"] = reinterpret_cast<int64_t>(worker);
    return segment(*worker, input);
  }
  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& gradients) {
    at::AutoGradMode grad(true);
    const std::vector<at::Tensor> leaves = fresh(context->get_saved_variables());
    auto& worker = *reinterpret_cast<Worker*>(context->saved_data["worker"].toInt());
    return {torch::autograd::grad({segment(worker, leaves[0])}, leaves, {gradients[0]})[0], at::Tensor()};
  }
};
at::Tensor withRemoteSegment(CallContext& call, const at::Tensor& input) {
  return RemoteSegment::apply(input, &call.worker());
}

at::Tensor checkpointed(const at::Tensor& input, const at::Tensor& weight) { return Checkpoint::apply(input, weight); }
at::Tensor reentrant(const at::Tensor& input) { return Reentrant::apply(input); }

class Checkpoints : public ::testing::TestWithParam<AutogradMode> {
 protected:
  TensorJob job{{"A", "B", "C"},
                Functions()
                    .add<&checkpointed>("checkpointed")
                    .add<&reentrant>("reentrant")
                    .add<&doubled>("doubled")
                    .add<&withRemoteSegment>("withRemoteSegment"),
                {GetParam()}};
  Worker& a = job[0];
  at::Tensor x = at::randn({3, 4}, at::kDouble).requires_grad_();
  at::Tensor w = at::randn({4, 4}, at::kDouble).requires_grad_();
};

// At the caller, at the callee, and one behind the other.
TEST_P(Checkpoints, NonReentrantOnesEqualPlainGradientsAndComputeTheirSegmentTwice) {
  std::vector<at::Tensor> expected =
      torch::autograd::grad({segment(segment(segment(x, w), w), w).square().sum()}, {x, w});
  segmentRuns = 0;
  AutogradContext context(a);
  at::Tensor there = a.call<&checkpointed>("B", Checkpoint::apply(x, w), w);
  at::Tensor loss = Checkpoint::apply(there, w).square().sum();
  EXPECT_EQ(segmentRuns, 3);
  context.backward({loss});
  EXPECT_EQ(segmentRuns, 6);
  EXPECT_TRUE(close(context.gradient(x), expected[0]));
  EXPECT_TRUE(close(context.gradient(w), expected[1]));
  EXPECT_FALSE(x.grad().defined() || w.grad().defined());
}

TEST_P(Checkpoints, ReentrantOnesAreRefusedByName) {
  AutogradContext context(a);
  at::Tensor loss = a.call<&reentrant>("B", x).square().sum();
  try {
    context.backward({loss});
    ADD_FAILURE() << "it went well";
  } catch (const StateError& error) {
    const std::string message = error.what();
    for (const std::string part : {"plain backward()", "Reentrant", "torch::autograd::grad", "non-reentrant"})
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_FALSE(captured().grad().defined());
  EXPECT_FALSE(keptGradient(a, context.id(), x).defined());
}

// On the worker with the roots, and on another one, where no context is current while nodes run.
TEST_P(Checkpoints, OnesWhoseSegmentCallsOtherWorkersAreRefusedByName) {
  for (const bool isElsewhere : {false, true}) {
    AutogradContext context(a);
    const at::Tensor y = isElsewhere ? a.call<&withRemoteSegment>("B", x) : RemoteSegment::apply(x, &a);
    const std::string message = messageOf<StateError>([&] { context.backward({y.square().sum()}); });
    for (const std::string part : {"'doubled'", "in a node or hook", isElsewhere ? "'B' (rank 1)" : "RemoteSegment"})
      EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_FALSE(keptGradient(a, context.id(), x).defined());
  }
}

// Hooks may call, as for statistics: without gradients, or with detached tensors.
TEST_P(Checkpoints, HooksMayCallOtherWorkers) {
  AutogradContext context(a);
  const at::Tensor y = x.sin();
  at::Tensor heard;
  y.register_hook([&](const at::Tensor& gradient) {
    at::AutoGradMode grad(true);
    heard = a.call<&doubled>("C", gradient);
  });
  context.backward({a.call<&doubled>("B", y).sum()});
  EXPECT_TRUE(close(heard, at::full_like(x, 4)));
}

// What a hook does in a context of its own is no part of the pass.
TEST_P(Checkpoints, HooksMayRunPassesOfTheirOwn) {
  AutogradContext context(a);
  const at::Tensor y = x.sin();
  at::Tensor within;
  y.register_hook([&](const at::Tensor&) {
    at::AutoGradMode grad(true);
    AutogradContext inner(a);
    inner.backward({a.call<&doubled>("B", w).sum()});
    within = inner.gradient(w);
  });
  context.backward({a.call<&doubled>("C", y).sum()});
  EXPECT_TRUE(close(within, at::full_like(w, 2)));
  EXPECT_TRUE(close(context.gradient(x), (2 * x.cos()).detach()));
}

// In one process they are what they were, also while a context is current.
TEST_P(Checkpoints, ReentrantOnesWorkInPlainPasses) {
  at::Tensor weight = captured().detach().clone().requires_grad_();
  std::vector<at::Tensor> expected = torch::autograd::grad({segment(x, weight).square().sum()}, {x, weight});
  AutogradContext context(a);
  context.backward({(a.call<&checkpointed>("B", x, w) * 2).sum()});
  Reentrant::apply(x).square().sum().backward();
  EXPECT_TRUE(close(x.grad(), expected[0]));
  EXPECT_TRUE(close(captured().grad(), expected[1]));
  captured().mutable_grad().reset();
}

INSTANTIATE_TEST_SUITE_P(Modes, Checkpoints, ::testing::Values(AutogradMode::kSmart, AutogradMode::kFast),
                         [](const auto& info) { return info.param == AutogradMode::kSmart ? "smart" : "fast"; });

}  // namespace
}  // namespace treadle::test::checkpoint_test
