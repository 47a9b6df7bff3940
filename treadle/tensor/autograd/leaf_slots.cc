#include "treadle/tensor/autograd/leaf_slots.h"

#include <sstream>

namespace treadle::autograd {

Status LeafSlots::claim(const at::Tensor& leaf, int64_t contextId) {
  std::lock_guard lock(mutex_);
  // Refused and not waited for: two passes that wait for each other across workers would never end.
  auto [found, isNew] = contextOf_.try_emplace(leaf.unsafeGetTensorImpl(), contextId);
  if (isNew) return {};
  std::ostringstream message;
  message << "a parameter of shape " << leaf.sizes()
          << " has hooks on its .grad (DistributedDataParallel sets them, or "
          << "register_post_accumulate_grad_hook) and cannot be in the backward passes of autograd contexts "
          << found->second << " and " << contextId << " at once: let the first finish before the second starts";
  return failedPrecondition(message.str());
}

void LeafSlots::release(const at::Tensor& leaf) {
  std::lock_guard lock(mutex_);
  contextOf_.erase(leaf.unsafeGetTensorImpl());
}

}  // namespace treadle::autograd
