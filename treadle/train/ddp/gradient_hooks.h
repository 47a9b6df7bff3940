#pragma once
// Reports when the gradient of a parameter is about to be accumulated into its `.grad`, and when it has been, in local
// and in distributed backward passes alike. Owned by a reducer. Post-hooks of AccumulateGrad are what torch's own DDP
// uses: they run once per pass, when the sum over all uses of a parameter is in `.grad`.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::ddp {

class GradientHooks {
 public:
  using Before = std::function<void(size_t index, const at::Tensor& gradient)>;

  // Calls `before(index, gradient)`, if it is there, and `onGradient(index)`, on the thread that runs the backward
  // pass. They may throw, which fails the pass.
  //
  // libtorch 2.13 adds a sparse gradient without dense dimensions to a dense `.grad` beside its place, if that is a
  // part of a larger tensor, as an average in its bucket is: so such a gradient becomes a dense one before.
  GradientHooks(const std::vector<at::Tensor>& parameters, Before before, std::function<void(size_t)> onGradient);
  // Takes the hooks away again. Not while a backward pass over the parameters runs.
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  // By the key, and by their pointer, hooks are taken away from their node.
  struct Hooked {
    autograd::NodePtr accumulator;  // kept: a parameter holds its accumulator, and with it the hooks, weakly
    const torch::autograd::FunctionPreHook* before;
    uintptr_t key;
  };
  std::vector<Hooked> hooked_;
};

}  // namespace treadle::ddp
