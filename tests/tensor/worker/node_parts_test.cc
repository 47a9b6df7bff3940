// Nodes that run in two parts (node_parts.h): the gradient of what was received goes before those of parameters are
// computed. Operations are counted by libtorch's observers.

#include <ATen/record_function.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/nn/modules/linear.h>
#include <treadle/autograd.h>

#include <atomic>
#include <string_view>

#include "tests/support/gate.h"
#include "tests/support/passes_of.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::node_parts_test {
namespace {

std::vector<at::Tensor> parametersOfB;
at::Tensor layer(const at::Tensor& x) { return at::linear(x, parametersOfB[0], parametersOfB[1]); }

// Keeps the input elsewhere, as a program may to save memory, and counts how often it is brought back.
std::atomic<int> broughtBack = 0;
at::Tensor layerWithHooks(const at::Tensor& x) {
  struct Elsewhere : torch::autograd::SavedVariableHooks {
    void call_pack_hook(const at::Tensor& tensor) override { kept = tensor.detach().clone(); }
    at::Tensor call_unpack_hook() override {
      ++broughtBack;
      return kept.clone();
    }
    at::Tensor kept;
  };
  const at::Tensor result = layer(x);
  auto& node = dynamic_cast<torch::autograd::generated::AddmmBackward0&>(*result.grad_fn());
  node.mat1_.register_hooks(std::make_unique<Elsewhere>());
  return result;
}
// The gradient of `x` can be computed, that of the weight not.
at::Tensor spoiled(const at::Tensor& x) {
  const at::Tensor h = x * 2;
  const at::Tensor result = layer(h);
  const at::NoGradGuard noGrad;
  h.zero_();
  return result;
}

// What each kind of node makes of inputs of four rows, with parameters of B. The last one shares its gradient with a
// hook that changes it in place, when the product has run in one process.
std::vector<at::Tensor> ofAllKinds(const at::Tensor& x) {
  const at::Tensor h = at::tanh(x), &weight = parametersOfB[0], &bias = parametersOfB[1];
  const at::Tensor image = h.view({1, 1, 4, 3}), kernel = weight.narrow(0, 0, 3).view({1, 1, 3, 3});
  const at::Tensor beside = at::matmul(x.sin(), at::ones({3, 5}, at::kDouble));
  beside.register_hook([](const at::Tensor& gradient) { return gradient.mul_(0.5); });
  return {at::mm(h, weight.t()),
          at::mm(weight, h.t()),
          at::addmm(h.sum(), h, weight.t()),
          at::addmm(bias, h, weight.t()),
          at::bmm(h.view({1, 4, 3}), weight.t().unsqueeze(0)),
          at::conv2d(image, kernel),
          at::conv2d(image, kernel, bias.narrow(0, 0, 1)),
          beside + at::mm(h, weight.t())};
}
at::Tensor kind(const at::Tensor& x, int64_t which) { return ofAllKinds(x)[static_cast<size_t>(which)]; }

// Counts the matrix products of backward passes, and calls `second` before the second one.
class Products {
 public:
  explicit Products(std::function<void()> second) : second_(std::move(second)) {
    here_ = this;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&Products::onOperation));
  }
  ~Products() {
    at::removeCallback(handle_);
    here_ = nullptr;
  }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  int count() const { return count_; }

 private:
  static std::unique_ptr<at::ObserverContext> onOperation(const at::RecordFunction& operation) {
    if (std::string_view(operation.name()) == "aten::mm" && ++here_->count_ == 2) here_->second_();
    return nullptr;
  }

  static inline Products* here_ = nullptr;
  const std::function<void()> second_;
  std::atomic<int> count_ = 0;
  at::CallbackHandle handle_ = 0;
};

class NodeParts : public ::testing::Test {
 protected:
  NodeParts() {
    parametersOfB = {at::rand({5, 3}, at::kDouble).requires_grad_(), at::rand({5}, at::kDouble).requires_grad_()};
  }
  ~NodeParts() override { parametersOfB.clear(); }

  // The gradients of a linear layer on B: of what it was sent, and of its weight and bias.
  std::vector<at::Tensor> gradientsOf(const at::Tensor& x, const std::function<void()>& whenSent) {
    AutogradContext context(job[0]);
    const at::Tensor leaf = x.detach().clone().requires_grad_(), sent = leaf * 2;
    sent.register_hook([&](const at::Tensor&) { whenSent(); });
    context.backward({job[0].call<&layer>("B", sent).square().sum()});
    return {context.gradient(leaf), gradient(job[1], context.id(), parametersOfB[0]),
            gradient(job[1], context.id(), parametersOfB[1])};
  }

  std::vector<at::Tensor> gradientsAlone(const at::Tensor& x) {
    const at::Tensor leaf = x.detach().clone().requires_grad_();
    return torch::autograd::grad({layer(leaf * 2).square().sum()}, {leaf, parametersOfB[0], parametersOfB[1]});
  }

  void expectEqual(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(close(found[i], expected[i])) << i;
  }

  TensorJob job{{"A", "B"},
                Functions()
                    .add<&layer>("layer")
                    .add<&kind>("kind")
                    .add<&layerWithHooks>("layerWithHooks")
                    .add<&spoiled>("spoiled")};
  const at::Tensor x = at::rand({4, 3}, at::kDouble);
};

TEST_F(NodeParts, TheGradientOfWhatCameGoesBeforeThatOfAParameterIsComputed) {
  const std::vector<at::Tensor> alone = gradientsAlone(x);
  Gate isAtA;
  const Products products([&] { isAtA.wait(); });
  expectEqual(gradientsOf(x, [&] { isAtA.open(); }), alone);
  EXPECT_EQ(products.count(), 2);
}

// It may be that of a DistributedDataParallel, which sends the gradient.
TEST_F(NodeParts, AParameterWithAHookIsNotPutOff) {
  const std::vector<at::Tensor> alone = gradientsAlone(x);
  int products = 0, whenAccumulated = 0;
  const Products counted([] {});
  auto accumulate = torch::autograd::impl::grad_accumulator(parametersOfB[0]);
  struct Hook : torch::autograd::FunctionPostHook {
    Hook(const Products& of, int* to) : counted(of), products(to) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) override {
      *products = counted.count();
      return outputs;
    }
    const Products& counted;
    int* products;
  };
  accumulate->add_post_hook(std::make_unique<Hook>(counted, &whenAccumulated));
  expectEqual(gradientsOf(x, [&] { products = counted.count(); }), alone);
  EXPECT_EQ(products, 2) << "both are computed before either goes";
  EXPECT_EQ(whenAccumulated, 2);
}

TEST_F(NodeParts, AllKindsGiveTheGradientsOfOneProcess) {
  for (int64_t which = 0; which < 8; ++which) {
    SCOPED_TRACE(which);
    at::Tensor leaf = x.clone().requires_grad_();
    const auto alone = torch::autograd::grad({kind(leaf * 2, which).square().sum()},
                                             {leaf, parametersOfB[0], parametersOfB[1]}, {}, {}, false, true);
    AutogradContext context(job[0]);
    context.backward({job[0].call<&kind>("B", leaf * 2, which).square().sum()});
    EXPECT_TRUE(close(context.gradient(leaf), alone[0]));
    EXPECT_TRUE(close(gradient(job[1], context.id(), parametersOfB[0]), alone[1]));
    const at::Tensor ofBias = gradient(job[1], context.id(), parametersOfB[1]);
    EXPECT_EQ(ofBias.defined(), alone[2].defined());
    if (ofBias.defined()) {
      EXPECT_TRUE(close(ofBias, alone[2]));
    }
  }
}

// 64 bytes a row: of the node's gradient, and of the tensor that its first gradient is for.
TEST_F(NodeParts, NoMoreIsKeptForLaterPartsThanTheBound) {
  constexpr int64_t kRows = 1 << 20;
  at::Tensor many = at::rand({kRows, 3}, at::kDouble);
  {
    const std::vector<at::Tensor> alone = gradientsAlone(many);
    Gate isAtA;
    const Products products([&] { isAtA.wait(); });
    expectEqual(gradientsOf(many, [&] { isAtA.open(); }), alone);
  }
  many = at::rand({kRows + 1, 3}, at::kDouble);
  const std::vector<at::Tensor> alone = gradientsAlone(many);
  int whenSent = 0;
  const Products products([] {});
  expectEqual(gradientsOf(many, [&] { whenSent = products.count(); }), alone);
  EXPECT_EQ(whenSent, 2) << "both are computed before either goes";
}

TEST_F(NodeParts, ASavedTensorWithHooksIsBroughtBackOnce) {
  const std::vector<at::Tensor> alone = gradientsAlone(x);
  broughtBack = 0;
  AutogradContext context(job[0]);
  const at::Tensor leaf = x.detach().clone().requires_grad_();
  context.backward({job[0].call<&layerWithHooks>("B", leaf * 2).square().sum()});
  EXPECT_EQ(broughtBack, 1);
  expectEqual({context.gradient(leaf), gradient(job[1], context.id(), parametersOfB[0]),
               gradient(job[1], context.id(), parametersOfB[1])},
              alone);
}

TEST_F(NodeParts, AFailureOfTheSecondPartIsOneOfThePass) {
  at::Tensor leaf = x.detach().clone().requires_grad_();
  AutogradContext context(job[0]);
  const at::Tensor loss = job[0].call<&spoiled>("B", leaf * 2).square().sum();
  const std::string why = messageOf<Error>([&] { context.backward({loss}); });
  for (const char* part : {"'B'", "AddmmBackward0", "modified by an inplace operation"})
    EXPECT_TRUE(contains(why, part)) << why;
  messageOf<Error>([&] { context.gradient(leaf); });
  messageOf<Error>([&] { gradient(job[1], context.id(), parametersOfB[0]); });
  expectEqual(gradientsOf(x, [] {}), gradientsAlone(x));
}

TEST_F(NodeParts, ATimeLimitThatPassesBetweenThePartsEndsThePass) {
  const std::vector<at::Tensor> alone = gradientsAlone(x);
  EXPECT_TRUE(withLongerLimits(std::chrono::milliseconds(300), [&](Duration limit) {
    Gate isBetween, released;
    const Products products([&] {
      isBetween.open();
      released.wait();
    });
    AutogradContext context(job[0]);
    const at::Tensor loss = job[0].call<&layer>("B", x.clone().requires_grad_()).square().sum();
    const std::string why = messageOf<TimeoutError>([&] { context.backward({loss}, {.timeout = limit}); });
    const bool gotThere = isBetween.isOpen();
    released.open();
    const autograd::ContextPtr there = contextOf(job[1], context);
    EXPECT_TRUE(eventually([&] {
      MutexLock lock(there->mutex);
      return !there->broken.ok() && !there->live;
    }));
    return gotThere && contains(why, "'B'");
  }));
  expectEqual(gradientsOf(x, [] {}), alone);
}

TEST_F(NodeParts, AGraphThatIsRetainedGivesTheSameAgain) {
  const std::vector<at::Tensor> alone = gradientsAlone(x);
  AutogradContext context(job[0]);
  const at::Tensor leaf = x.detach().clone().requires_grad_();
  const at::Tensor loss = job[0].call<&layer>("B", leaf * 2).square().sum();
  context.backward({loss}, {.retainGraph = true});
  context.backward({loss});
  EXPECT_TRUE(close(gradient(job[1], context.id(), parametersOfB[0]), 2 * alone[1]));
  EXPECT_THROW(context.backward({loss}), Error);
}

}  // namespace
}  // namespace treadle::test::node_parts_test
