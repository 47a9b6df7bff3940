#pragma once
// The gradients that the passes of one context left on this worker, by leaf tensor. Contexts keep their own
// instead of writing `.grad`, so that many of them can run over the same parameters at once. Any thread may
// call it.

#include <ATen/core/Tensor.h>

#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace treadle::autograd {

class Gradients {
 public:
  // Adds to the gradient of `leaf`. The stored gradient has the leaf's strides and shares memory with nobody:
  // a tensor is taken over only when nobody else holds it or its storage, otherwise copied. An undefined one
  // adds nothing.
  void add(const at::Tensor& leaf, at::Tensor&& gradient);
  // The same, but what is there goes.
  void replace(const at::Tensor& leaf, at::Tensor&& gradient);

  // Multiplies the gradient of `leaf` by a number, if there is one. Tensors that gradient() returned do not change.
  void scale(const at::Tensor& leaf, double factor);

  // Undefined when there is none. What is returned keeps its values when later passes add more.
  at::Tensor gradient(const at::Tensor& leaf) const;

  // (leaf, gradient) in the order in which the leaves were first reached.
  std::vector<std::pair<at::Tensor, at::Tensor>> all() const;

  void clear();

 private:
  void put(const at::Tensor& leaf, at::Tensor&& gradient, bool keepSum);

  mutable std::mutex mutex_;
  // Guarded by mutex_. The list keeps each leaf alive, so that its address cannot come to mean another
  // tensor.
  std::vector<std::pair<at::Tensor, at::Tensor>> entries_;
  std::unordered_map<c10::TensorImpl*, size_t> indexOf_;
};

}  // namespace treadle::autograd
