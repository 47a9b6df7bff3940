// Nodes on another worker that return gradients which are none of theirs: the pass fails with the words of libtorch's
// own validation, the worker and the node, and the next one is right. What is of another type only, or of the shape
// that a value was broadcast to, becomes what it should be.

#include <torch/csrc/autograd/custom_function.h>
#include <treadle/autograd.h>

#include <string>

#include "tests/support/gate.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::wrong_gradients_test {
namespace {

using torch::autograd::variable_list;

// What the node gives for its only input, whose gradient would be `gradient`.
template <class Gives>
struct Careless : torch::autograd::Function<Careless<Gives>> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static variable_list backward(torch::autograd::AutogradContext*, variable_list gradients) {
    return Gives::instead(gradients[0]);
  }
};
struct AnotherShape {
  static variable_list instead(const at::Tensor& gradient) { return {gradient.new_ones({7})}; }
};
struct TooMany {
  static variable_list instead(const at::Tensor& gradient) { return {gradient, gradient}; }
};
struct None {
  static variable_list instead(const at::Tensor&) { return {}; }
};
struct AnotherType {
  static variable_list instead(const at::Tensor& gradient) { return {gradient.to(at::kDouble)}; }
};
struct OfABroadcast {
  static variable_list instead(const at::Tensor& gradient) { return {gradient.expand({5, gradient.size(0)})}; }
};

template <class Gives>
at::Tensor through(const at::Tensor& x) {
  return Careless<Gives>::apply(x * 2);
}

class WrongGradients : public ::testing::TestWithParam<AutogradMode> {
 protected:
  template <class Gives>
  void expectRefusal(const std::string& why) {
    at::Tensor x = at::ones({3}).requires_grad_();
    AutogradContext context(job[0]);
    const at::Tensor y = job[0].call<&through<Gives>>("B", x);
    try {
      context.backward({y.sum()}, {.timeout = kHangs});
      ADD_FAILURE() << "the pass went well, in place of: " << why;
    } catch (const Error& error) {
      EXPECT_EQ(error.worker(), "B") << error.what();
      EXPECT_TRUE(contains(error.what(), why)) << error.what();
      EXPECT_TRUE(contains(error.what(), "autograd node")) << error.what();
      EXPECT_TRUE(contains(error.what(), "Careless")) << error.what();
    }
    expectGradient<AnotherType>(2);
  }
  template <class Gives>
  void expectGradient(float each) {
    at::Tensor x = at::ones({3}).requires_grad_();
    AutogradContext context(job[0]);
    context.backward({job[0].call<&through<Gives>>("B", x).sum()}, {.timeout = kHangs});
    EXPECT_TRUE(close(context.gradient(x), at::full({3}, each)));
  }

  TensorJob job{{"A", "B"},
                Functions()
                    .add<&through<AnotherShape>>("anotherShape")
                    .add<&through<TooMany>>("tooMany")
                    .add<&through<None>>("none")
                    .add<&through<AnotherType>>("anotherType")
                    .add<&through<OfABroadcast>>("ofABroadcast"),
                {GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Modes, WrongGradients, ::testing::Values(AutogradMode::kSmart, AutogradMode::kFast));

TEST_P(WrongGradients, FailThePassAndNameTheNode) {
  expectRefusal<AnotherShape>("invalid gradient at index 0 - got [7] but expected shape compatible with [3]");
  expectRefusal<TooMany>("returned an incorrect number of gradients (expected 1, got 2)");
  expectRefusal<None>("returned an incorrect number of gradients (expected 1, got 0)");
}

TEST_P(WrongGradients, OfAnotherTypeOrABroadcastShapeBecomeRight) {
  expectGradient<AnotherType>(2);
  expectGradient<OfABroadcast>(10);
}

}  // namespace
}  // namespace treadle::test::wrong_gradients_test
