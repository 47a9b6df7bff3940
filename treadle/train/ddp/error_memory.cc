#include "treadle/train/ddp/error_memory.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace treadle::ddp {

std::optional<at::ScalarType> dtypeOfErrors(const at::Tensor& parameter) {
  switch (parameter.scalar_type()) {
    case at::kDouble: return at::kDouble;
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16: return at::kFloat;
    default: return std::nullopt;
  }
}

ErrorMemory::ErrorMemory(const std::vector<HookParameter>& parameters)
    : parameters_(parameters), errors_(parameters.size()), held_(parameters.size()) {}

void ErrorMemory::beginPass(double lossScale) {
  lossScale_ = lossScale;
  isFrozen_ = false;
  held_.assign(held_.size(), std::nullopt);
}

at::Tensor ErrorMemory::withError(size_t parameter, const at::Tensor& gradient) const {
  const at::ScalarType dtype = dtypeOfErrors(parameters_[parameter].tensor).value();
  at::Tensor sum = gradient.to(dtype, /*non_blocking=*/false, /*copy=*/true);
  if (has(parameter) && !isFrozen_) sum.add_(errors_[parameter].view(gradient.sizes()), lossScale_);
  return sum;
}

void ErrorMemory::hold(size_t parameter, at::Tensor error) {
  if (isFrozen_) return;
  if (error.defined() && lossScale_ != 1) error.div_(lossScale_);
  held_[parameter] = std::move(error);
}

void ErrorMemory::commit(const std::vector<bool>& isUsed) {
  for (size_t i = 0; i < errors_.size(); ++i)
    if (isUsed[i] && held_[i]) errors_[i] = *std::move(held_[i]);
  held_.assign(held_.size(), std::nullopt);
}

void ErrorMemory::save(optim::NamedTensors& state, const std::string& prefix) const {
  for (size_t i = 0; i < errors_.size(); ++i)
    if (has(i)) state[prefix + parameters_[i].name] = errors_[i].view(parameters_[i].tensor.sizes()).clone();
}

void ErrorMemory::load(optim::NamedTensors& state, const std::string& prefix) {
  for (size_t i = 0; i < errors_.size(); ++i) {
    const std::string name = prefix + parameters_[i].name;
    const std::optional<at::ScalarType> dtype = dtypeOfErrors(parameters_[i].tensor);
    if (!dtype || !state.contains(name)) continue;
    errors_[i] = optim::takeLike(state, name, at::empty(parameters_[i].tensor.sizes(), *dtype)).contiguous();
  }
}

}  // namespace treadle::ddp
