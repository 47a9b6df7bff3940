#pragma once
// A loss of 0 for a rank without a batch: its backward pass, local or distributed, is reported although it comes to no
// parameter. So such a rank goes through the same steps as a rank whose pass does.
//
// No gradient of its own is left, in `.grad` or in a context.
//
// Owned by a reducer; used by one thread at a time.

#include "treadle/train/ddp/gradient_hooks.h"

namespace treadle::ddp {

class EmptyLoss {
 public:
  // Calls `onBackward` on the thread that runs the pass. It may throw, which fails the pass.
  explicit EmptyLoss(std::function<void()> onBackward);

  // A new tensor without dimensions, of float32, that requires a gradient. Added to a loss it changes no gradient.
  at::Tensor make() const;

 private:
  at::Tensor leaf_;
  const GradientHooks hook_;
};

}  // namespace treadle::ddp
