// Hooks of all kinds, on tensors that were sent and on ones that came, and on leaves: over real workers they are called
// exactly as often, and with the same gradients, as in one process, what they make of a gradient counts, and what
// they queue with the engine is called.

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <treadle/autograd.h>

#include <map>

#include "tests/support/gate.h"
#include "tests/support/tensor_job.h"
#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::test::pass_hooks_test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Transfer = std::function<at::Tensor(const at::Tensor&)>;
using Hook = std::function<at::Tensor(const at::Tensor&)>;

struct PreHook : torch::autograd::FunctionPreHook {
  explicit PreHook(Hook hook) : hook(std::move(hook)) {}
  Tensors operator()(const Tensors& gradients) override { return {hook(gradients.at(0))}; }
  Hook hook;
};
struct PostHook : torch::autograd::FunctionPostHook {
  explicit PostHook(Hook hook) : hook(std::move(hook)) {}
  Tensors operator()(const Tensors& outputs, const Tensors& inputs) override { return hook(inputs.at(0)), outputs; }
  Hook hook;
};
struct AccumulatedHook : torch::autograd::PostAccumulateGradHook {
  explicit AccumulatedHook(Hook hook) : hook(std::move(hook)) {}
  void operator()(const at::Tensor& leaf) override { leaf.mutable_grad() = hook(leaf.grad()); }
  Hook hook;
};

// One forward pass and what its hooks saw. The leaf x is on A, the weight on B.
struct Model {
  at::Tensor x = at::tensor({0.3, -1.2}, at::kDouble).requires_grad_();
  at::Tensor weight = at::tensor({1.5, 0.7}, at::kDouble).requires_grad_();

  Counter callbacks;  // that hooks have queued

  // Has each kind of hook change the gradient in another way.
  void hook(const std::string& place, const at::Tensor& tensor) {
    tensor.register_hook(noting(place + ", tensor", [](const at::Tensor& gradient) { return gradient * 2; }));
    autograd::NodePtr node = torch::autograd::impl::gradient_edge(tensor).function;
    node->add_pre_hook(std::make_unique<PreHook>(
        noting(place + ", before the node", [](const at::Tensor& gradient) { return gradient + 0.5; })));
    node->add_post_hook(std::make_unique<PostHook>(noting(place + ", after the node", {})));
    if (tensor.is_leaf()) {
      auto halved = [](const at::Tensor& gradient) { return gradient / 2; };
      torch::autograd::impl::set_post_acc_grad_hooks(
          tensor, std::make_unique<AccumulatedHook>(noting(place + ", accumulated", halved)));
    } else {
      tensor.retain_grad();
    }
    MutexLock lock(mutex);
    kept.emplace(place, tensor);
    nodes.push_back(node);  // a leaf does not own the node that accumulates
  }

  // Of each hook, and what each tensor retained.
  std::map<std::string, Tensors> takeSeen() {
    MutexLock lock(mutex);
    for (const auto& [place, tensor] : kept)
      if (!tensor.is_leaf()) seen[place + ", retained"].push_back(std::exchange(tensor.mutable_grad(), {}));
    return std::exchange(seen, {});
  }

 private:
  Hook noting(const std::string& what, Hook then) {
    return [this, what, then](const at::Tensor& gradient) {
      EXPECT_GE(torch::autograd::get_current_graph_task_id(), 0) << what;
      torch::autograd::Engine::get_default_engine().queue_callback([this] { callbacks.add(); });
      MutexLock lock(mutex);
      seen[what].push_back(gradient.clone());
      return then ? then(gradient) : gradient;
    };
  }

  Mutex mutex;
  std::map<std::string, Tensors> seen;
  std::map<std::string, at::Tensor> kept;
  std::vector<autograd::NodePtr> nodes;
};
Model* model = nullptr;  // the one that is at work

at::Tensor doneAtC(const std::string& from, const at::Tensor& came) {
  model->hook("C, came from " + from, came);
  at::Tensor goes = came.sin();
  model->hook("C, goes to " + from, goes);
  return goes;
}
at::Tensor doneAtB(const at::Tensor& came, const Transfer& atC) {
  model->hook("B, came", came);
  model->hook("B, weight", model->weight);
  at::Tensor goes = came * model->weight;
  model->hook("B, goes to C", goes);
  at::Tensor back = atC(goes);
  model->hook("B, came back", back);
  at::Tensor answer = back * goes;
  model->hook("B, goes to A", answer);
  return answer;
}
// The leaf is sent, and so is what is made of it; both are used here too.
at::Tensor doneAtA(const Transfer& atB, const Transfer& atC) {
  model->hook("A, x", model->x);
  at::Tensor goes = model->x.exp();
  model->hook("A, goes to B", goes);
  at::Tensor back = atB(goes), other = atC(model->x);
  model->hook("A, came from B", back);
  model->hook("A, came from C", other);
  return (back * other + goes * model->x).sum();
}
at::Tensor atC(CallContext& call, const at::Tensor& came) { return doneAtC(call.caller().name, came); }
at::Tensor atB(CallContext& call, const at::Tensor& came) {
  return doneAtB(came, [&](const at::Tensor& goes) { return call.worker().call<&atC>("C", goes); });
}

// Copies, as a network makes.
at::Tensor inOneProcess() {
  const auto toC = [](const std::string& from) {
    return [from](const at::Tensor& goes) { return doneAtC(from, goes.clone()).clone(); };
  };
  return doneAtA([&](const at::Tensor& goes) { return doneAtB(goes.clone(), toC("B")).clone(); }, toC("A"));
}
at::Tensor overWorkers(Worker& a) {
  return doneAtA([&](const at::Tensor& goes) { return a.call<&atB>("B", goes); },
                 [&](const at::Tensor& goes) { return a.call<&atC>("C", goes); });
}

void expectSame(const std::map<std::string, Tensors>& found, const std::map<std::string, Tensors>& expected) {
  for (const auto& [hook, gradients] : expected) {
    ASSERT_TRUE(found.contains(hook)) << hook << ": it was not called";
    ASSERT_EQ(found.at(hook).size(), gradients.size()) << hook;
    for (size_t i = 0; i < gradients.size(); ++i) EXPECT_TRUE(close(found.at(hook)[i], gradients[i])) << hook;
  }
  EXPECT_EQ(found.size(), expected.size()) << "hooks that should not be called";
}

class PassHooks : public ::testing::TestWithParam<AutogradMode> {
 protected:
  ~PassHooks() override { model = nullptr; }

  TensorJob job{{"A", "B", "C"}, Functions().add<&atB>("atB").add<&atC>("atC"), {GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Modes, PassHooks, ::testing::Values(AutogradMode::kSmart, AutogradMode::kFast));

TEST_P(PassHooks, AreCalledAsOftenAndWithTheSameGradientsAsInOneProcess) {
  Model alone, together;
  model = &alone;
  const at::Tensor lossAlone = inOneProcess();
  model = &together;
  AutogradContext context(job[0]);
  const at::Tensor loss = overWorkers(job[0]);
  constexpr int kPasses = 3;
  for (int pass = 1; pass <= kPasses; ++pass) {
    for (at::Tensor* leaf : {&alone.x, &alone.weight}) leaf->mutable_grad() = at::Tensor();
    torch::autograd::backward({lossAlone}, {}, /*retain_graph=*/true);
    context.backward({loss}, {.retainGraph = pass < kPasses});
    const auto seenAlone = alone.takeSeen();
    EXPECT_EQ(seenAlone.size(), 4U * 13) << "four kinds of hooks at each of 13 places";
    expectSame(together.takeSeen(), seenAlone);
    EXPECT_EQ(together.callbacks.count(), alone.callbacks.count());
    EXPECT_TRUE(close(context.gradient(together.x), pass * alone.x.grad()));
    EXPECT_TRUE(close(gradient(job[1], context.id(), together.weight), pass * alone.weight.grad()));
    EXPECT_FALSE(together.x.grad().defined() || together.weight.grad().defined()) << "they belong to the context";
  }
}

}  // namespace
}  // namespace treadle::test::pass_hooks_test
