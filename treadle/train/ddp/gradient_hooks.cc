#include "treadle/train/ddp/gradient_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace treadle::ddp {
namespace {

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

GradientHooks::GradientHooks(const std::vector<at::Tensor>& parameters, std::function<void(size_t)> onGradient) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    // The node that every graph over this parameter ends in. It exists as long as somebody holds it, so we
    // do.
    autograd::NodePtr accumulator = torch::autograd::impl::grad_accumulator(parameters[i]);
    uintptr_t key = accumulator->add_post_hook(std::make_unique<Hook>(onGradient, i));
    hooked_.push_back({std::move(accumulator), key});
  }
}

GradientHooks::~GradientHooks() {
  for (Hooked& hooked : hooked_) hooked.accumulator->del_post_hook(hooked.key);
}

}  // namespace treadle::ddp
