#pragma once
// Which parameters with gradient hooks are in use by which context. Such a parameter accumulates into its real
// `.grad` (the hooks look at it), and there is only one: two passes over it at once would mix their
// gradients, so the second is refused. One table per worker, outliving its passes. Any thread may call it.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "treadle/core/base/status.h"

namespace treadle::autograd {

class LeafSlots {
 public:
  // Reserves the `.grad` of `leaf`; FailedPrecondition, naming the parameter's shape and both contexts, when
  // another pass has it. The caller keeps the leaf alive until it releases it.
  Status claim(const at::Tensor& leaf, int64_t contextId);
  void release(const at::Tensor& leaf);

 private:
  std::mutex mutex_;
  std::unordered_map<c10::TensorImpl*, int64_t> contextOf_;  // guarded by mutex_
};

}  // namespace treadle::autograd
