#include "treadle/tensor/autograd/gradients.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include "treadle/tensor/autograd/accumulate.h"

namespace treadle::autograd {
namespace {

bool hasLayoutOf(const at::Tensor& gradient, const at::Tensor& leaf) {
  return gradient.layout() == at::kStrided && leaf.layout() == at::kStrided &&
         torch::autograd::utils::obeys_layout_contract(gradient, leaf);
}

// A gradient that nobody else can see change, in the leaf's memory layout: optimizers run fastest on that.
at::Tensor owned(const at::Tensor& leaf, at::Tensor&& gradient) {
  if (isUnshared(gradient) && hasLayoutOf(gradient, leaf)) {
    const at::Tensor taken = std::move(gradient);
    // Without what it may be a view of.
    return taken.requires_grad() || taken.is_view() ? taken.variable_data() : taken;
  }
  // Sparse gradients have no strides to obey; a plain copy will do.
  bool dense = gradient.layout() == at::kStrided && leaf.layout() == at::kStrided;
  return dense ? torch::autograd::utils::clone_obey_contract(gradient, leaf) : gradient.clone();
}

}  // namespace

void Gradients::add(const at::Tensor& leaf, at::Tensor&& gradient) { put(leaf, std::move(gradient), true); }

void Gradients::replace(const at::Tensor& leaf, at::Tensor&& gradient) { put(leaf, std::move(gradient), false); }

void Gradients::put(const at::Tensor& leaf, at::Tensor&& gradient, bool keepSum) {
  if (!gradient.defined()) return;
  // Also called outside of the engine, at the end of a pass, where grad mode may be on.
  torch::autograd::AutoGradMode noGrad(false);
  std::lock_guard lock(mutex_);
  const auto found = indexOf_.find(leaf.unsafeGetTensorImpl());
  if (found == indexOf_.end()) {
    entries_.emplace_back(leaf, owned(leaf, std::move(gradient)));  // which may throw
    indexOf_.emplace(leaf.unsafeGetTensorImpl(), entries_.size() - 1);
  } else if (!keepSum) {
    entries_[found->second].second = owned(leaf, std::move(gradient));
  } else {
    // Adds in place unless somebody holds the sum: whoever called gradient() keeps the values that he saw.
    addGradient(entries_[found->second].second, std::move(gradient));
  }
}

void Gradients::scale(const at::Tensor& leaf, double factor) {
  const torch::autograd::AutoGradMode noGrad(false);
  std::lock_guard lock(mutex_);
  auto found = indexOf_.find(leaf.unsafeGetTensorImpl());
  if (found == indexOf_.end()) return;
  at::Tensor& gradient = entries_[found->second].second;
  if (isUnshared(gradient)) {
    gradient.mul_(factor);
  } else {
    gradient = at::mul(gradient, factor);
  }
}

at::Tensor Gradients::gradient(const at::Tensor& leaf) const {
  if (!leaf.defined()) return {};
  std::lock_guard lock(mutex_);
  auto found = indexOf_.find(leaf.unsafeGetTensorImpl());
  return found == indexOf_.end() ? at::Tensor() : entries_[found->second].second;
}

std::vector<std::pair<at::Tensor, at::Tensor>> Gradients::all() const {
  std::lock_guard lock(mutex_);
  return entries_;
}

void Gradients::clear() {
  std::vector<std::pair<at::Tensor, at::Tensor>> dropped;  // freed after the lock is let go
  std::lock_guard lock(mutex_);
  indexOf_.clear();
  dropped.swap(entries_);
}

}  // namespace treadle::autograd
