#include "treadle/train/ddp/gradient_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "treadle/tensor/autograd/accumulate.h"

namespace treadle::ddp {
namespace {

class HookBefore final : public torch::autograd::FunctionPreHook {
 public:
  HookBefore(at::Tensor parameter, GradientHooks::Before before, size_t index)
      : parameter_(std::move(parameter)), before_(std::move(before)), index_(index) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    const at::Tensor& gradient = gradients.front();
    if (before_) before_(index_, gradient);
    const at::Tensor& sum = parameter_.grad();
    if (sum.defined() && gradient.defined() && autograd::missesItsPlace(sum, gradient)) return {gradient.to_dense()};
    return gradients;
  }

 private:
  const at::Tensor parameter_;  // the node, which has the hook, holds it too
  const GradientHooks::Before before_;
  const size_t index_;
};

// Only reports; the gradient goes on as it is.
class Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(std::function<void(size_t)> onGradient, size_t index) : onGradient_(std::move(onGradient)), index_(index) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    onGradient_(index_);
    return outputs;
  }

 private:
  const std::function<void(size_t)> onGradient_;
  const size_t index_;
};

}  // namespace

GradientHooks::GradientHooks(const std::vector<at::Tensor>& parameters, Before before,
                             std::function<void(size_t)> onGradient) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    // The node that every graph over this parameter ends in. It exists as long as somebody holds it, so we
    // do.
    autograd::NodePtr accumulator = torch::autograd::impl::grad_accumulator(parameters[i]);
    uintptr_t key = accumulator->add_post_hook(std::make_unique<Hook>(onGradient, i));
    auto hookBefore = std::make_unique<HookBefore>(parameters[i], before, i);
    const torch::autograd::FunctionPreHook* known = hookBefore.get();
    accumulator->add_pre_hook(std::move(hookBefore));
    hooked_.push_back({std::move(accumulator), known, key});
  }
}

GradientHooks::~GradientHooks() {
  for (Hooked& hooked : hooked_) {
    hooked.accumulator->del_post_hook(hooked.key);
    std::erase_if(hooked.accumulator->pre_hooks(), [&](const auto& hook) { return hook.get() == hooked.before; });
  }
}

}  // namespace treadle::ddp
