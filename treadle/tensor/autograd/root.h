#pragma once
// What a backward pass starts from. Plain values; no threads.

#include <ATen/core/Tensor.h>

namespace treadle::autograd {

// A tensor that backward starts from, and the gradient of the loss with respect to it: same shape; undefined
// stands for 1 and needs a tensor of one element.
struct Root {
  at::Tensor tensor;
  at::Tensor gradient;
};

}  // namespace treadle::autograd
