#pragma once
// Reports when the gradient of a parameter has been accumulated into its `.grad`, in local and in distributed
// backward passes alike. Owned by a reducer. Post-hooks of AccumulateGrad are what torch's own DDP uses: they
// run once per pass, when the sum over all uses of a parameter is in `.grad`.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::ddp {

class GradientHooks {
 public:
  // Calls `onGradient(index)` on the thread that runs the backward pass. It may throw, which fails the pass.
  GradientHooks(const std::vector<at::Tensor>& parameters, std::function<void(size_t)> onGradient);
  // Takes the hooks away again. Not while a backward pass over the parameters runs.
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  // The hook is known to its node by a key, by which it is taken away.
  struct Hooked {
    autograd::NodePtr accumulator;  // kept: a parameter holds its accumulator, and with it the hook, weakly
    uintptr_t key;
  };
  std::vector<Hooked> hooked_;
};

}  // namespace treadle::ddp
