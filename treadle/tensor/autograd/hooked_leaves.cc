#include "treadle/tensor/autograd/hooked_leaves.h"

namespace treadle::autograd {

// Tensor pre-hooks do not count: they see the gradient on its way and never look at `.grad`.
bool hasGradHooks(torch::autograd::AccumulateGrad& node) {
  return !node.post_hooks().empty() || node.tensor_post_acc_grad_hooks() != nullptr;
}

Status HookedLeaves::claim(const at::Tensor& leaf) {
  if (held_.contains(leaf.unsafeGetTensorImpl())) return {};
  TREADLE_RETURN_IF_ERROR(slots_.claim(leaf, contextId_));
  held_.emplace(leaf.unsafeGetTensorImpl(), Slot{leaf, {}, false});
  return {};
}

void HookedLeaves::swapIn(const at::Tensor& leaf) {
  Slot& slot = held_.at(leaf.unsafeGetTensorImpl());
  if (slot.swapped) return;
  // A fresh one, so that hooks see the gradient of this pass alone and what a user keeps in `.grad` stays
  // his.
  slot.oldGrad = std::move(slot.leaf.mutable_grad());
  slot.leaf.mutable_grad() = at::Tensor();
  slot.swapped = true;
}

void HookedLeaves::moveInto(Gradients& gradients) {
  for (auto& [impl, slot] : held_) {
    if (slot.swapped) gradients.add(slot.leaf, std::move(slot.leaf.mutable_grad()));
  }
}

void HookedLeaves::restore() {
  for (auto& [impl, slot] : held_) {
    // After a failure too: what the pass accumulated so far is dropped.
    if (slot.swapped) slot.leaf.mutable_grad() = std::move(slot.oldGrad);
    slots_.release(slot.leaf);
  }
  held_.clear();
}

}  // namespace treadle::autograd
