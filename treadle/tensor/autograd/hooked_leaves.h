#pragma once
// The parameters with gradient hooks that one pass runs over. Their hooks look at `.grad`, so for the length
// of the pass each has a fresh `.grad`; the old one is put back at the end. Owned by a pass, used by one
// thread at a time.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstdint>
#include <unordered_map>

#include "treadle/core/base/status.h"
#include "treadle/tensor/autograd/gradients.h"
#include "treadle/tensor/autograd/leaf_slots.h"

namespace treadle::autograd {

// True when what happens after accumulation is somebody's business: such a leaf must really accumulate.
bool hasGradHooks(torch::autograd::AccumulateGrad& node);

class HookedLeaves {
 public:
  HookedLeaves(LeafSlots& slots, int64_t contextId) : slots_(slots), contextId_(contextId) {}
  ~HookedLeaves() { restore(); }
  HookedLeaves(const HookedLeaves&) = delete;
  HookedLeaves& operator=(const HookedLeaves&) = delete;

  // Keeps other passes away from `leaf`. Does nothing when this pass has it already.
  Status claim(const at::Tensor& leaf);

  // Replaces the `.grad` of a claimed leaf by an empty one, the first time.
  void swapIn(const at::Tensor& leaf);

  // Moves what the pass accumulated.
  void moveInto(Gradients& gradients);

  // Puts the old `.grad` back and lets other passes in.
  void restore();

 private:
  struct Slot {
    at::Tensor leaf;
    at::Tensor oldGrad;
    bool swapped = false;
  };

  LeafSlots& slots_;
  const int64_t contextId_;
  std::unordered_map<c10::TensorImpl*, Slot> held_;
};

}  // namespace treadle::autograd
