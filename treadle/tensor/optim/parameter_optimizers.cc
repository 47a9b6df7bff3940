#include "treadle/tensor/optim/parameter_optimizers.h"

#include <torch/optim/optimizer.h>

#include "treadle/core/base/error.h"

namespace treadle::optim {

namespace {

// The gradient is the context's; the optimizer only borrows it.
class Borrowed {
 public:
  Borrowed(at::Tensor& alias, at::Tensor gradient) : alias_(alias) { alias_.mutable_grad() = std::move(gradient); }
  ~Borrowed() { alias_.mutable_grad().reset(); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

 private:
  at::Tensor& alias_;
};

}  // namespace

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
    slot->optimizer = make({slot->alias}, slots_.size());
    slot->parameter = std::move(parameter);
    slots_.push_back(std::move(slot));
  }
}

ParameterOptimizers::~ParameterOptimizers() = default;
ParameterOptimizers::ParameterOptimizers(ParameterOptimizers&&) noexcept = default;

void ParameterOptimizers::step(GradientOf& gradientOf, Visit& beforeEach) {
  for (size_t index = 0; index < slots_.size(); ++index) {
    Slot& slot = *slots_[index];
    at::Tensor gradient = gradientOf(slot.parameter);
    if (!gradient.defined()) continue;
    if (!slot.alias.is_alias_of(slot.parameter))
      raise(failedPrecondition("a parameter was converted or moved after its optimizer was made; make it after that"));
    // Readers are not kept out: a forward pass that runs meanwhile may see a half-stepped parameter, as in
    // Hogwild training (Niu et al. 2011). Who wants none steps when no forward pass runs.
    std::lock_guard lock(*slot.lock);
    beforeEach(index, *slot.optimizer);
    const Borrowed borrowed(slot.alias, std::move(gradient));
    slot.optimizer->step();
  }
}

void ParameterOptimizers::each(Visit& visit) {
  for (size_t index = 0; index < slots_.size(); ++index) {
    std::lock_guard lock(*slots_[index]->lock);
    visit(index, *slots_[index]->optimizer);
  }
}

std::vector<at::Tensor> ParameterOptimizers::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& slot : slots_) parameters.push_back(slot->parameter);
  return parameters;
}

void ParameterOptimizers::replace(Make& make) {
  std::vector<std::unique_ptr<torch::optim::Optimizer>> made;
  for (const auto& slot : slots_) made.push_back(make({slot->alias}, made.size()));
  for (size_t index = 0; index < slots_.size(); ++index) {
    std::lock_guard lock(*slots_[index]->lock);
    slots_[index]->optimizer = std::move(made[index]);
  }
}

}  // namespace treadle::optim
