#include "treadle/tensor/optim/parameter_optimizers.h"

#include <torch/optim/optimizer.h>

namespace treadle::optim {

struct ParameterOptimizers::Slot {
  // See Note [Alias]. The parameter is kept because the context knows gradients by it.
  at::Tensor parameter, alias;
  std::shared_ptr<std::mutex> lock;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

std::shared_ptr<std::mutex> ParameterLocks::lockOf(const at::Tensor& parameter) {
  MutexLock lock(mutex_);
  // Swept here, where it is called once per parameter and optimizer: an address may be used again by another
  // tensor.
  std::erase_if(locks_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<std::mutex>& known = locks_[parameter.unsafeGetTensorImpl()];
  auto shared = known.lock();
  if (!shared) known = shared = std::make_shared<std::mutex>();
  return shared;
}

ParameterOptimizers::ParameterOptimizers(ParameterLocks& locks, std::vector<at::Tensor> parameters, Make& make) {
  for (at::Tensor& parameter : parameters) {
    auto slot = std::make_unique<Slot>();
    slot->alias = parameter.variable_data();
    slot->lock = locks.lockOf(parameter);
    slot->optimizer = make({slot->alias});
    slot->parameter = std::move(parameter);
    slots_.push_back(std::move(slot));
  }
}

ParameterOptimizers::~ParameterOptimizers() = default;
ParameterOptimizers::ParameterOptimizers(ParameterOptimizers&&) noexcept = default;

void ParameterOptimizers::step(GradientOf& gradientOf) {
  for (const auto& slot : slots_) {
    at::Tensor gradient = gradientOf(slot->parameter);
    if (!gradient.defined()) continue;
    // Readers are not kept out: a forward pass that runs meanwhile may see a half-stepped parameter, as in
    // Hogwild training (Niu et al. 2011). Who wants none steps when no forward pass runs.
    std::lock_guard lock(*slot->lock);
    slot->alias.mutable_grad() = std::move(gradient);
    slot->optimizer->step();
    // The gradient is the context's; the optimizer only borrows it.
    slot->alias.mutable_grad().reset();
  }
}

}  // namespace treadle::optim
