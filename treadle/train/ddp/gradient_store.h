#pragma once
// Where the gradients of one backward pass live, with those of earlier passes: in `.grad`, or in the context of a
// distributed pass. Used by one thread at a time, with grad mode off.

#include <ATen/core/Tensor.h>

#include "treadle/tensor/autograd/pass.h"

namespace treadle::ddp {

// This rank's gradient of a parameter: the sum of two tensors, each dense, sparse (COO) or undefined. It shares memory
// with what it comes from: let it go before the average is put.
struct OwnGradient {
  at::Tensor ofPass, earlier;

  bool isDefined() const { return ofPass.defined() || earlier.defined(); }
  // Whether there is a dense sum: one of the two is dense, or they have different numbers of sparse dimensions.
  bool isDense() const;
  bool isSparse() const { return isDefined() && !isDense(); }
  // As a dense tensor into `place`, which has its shape and dtype; zeros if there is none.
  void copyTo(at::Tensor& place) const;
  // If isSparse().
  int64_t sparseDims() const;
  at::Tensor sparse() const;
};

class GradientStore {
 public:
  virtual ~GradientStore() = default;

  // The sum of this pass, if it has come to the parameter (`arrived`), and of earlier ones.
  virtual OwnGradient gradientOf(const at::Tensor& parameter, bool arrived) const = 0;
  // The average takes the place of that sum; it is sparse only where that sum is, or where there is none. It becomes
  // the gradient, or is copied into the tensor that is there if a program may hold that. `made`: a pass has made what
  // is in `.grad`, so its memory may be that of other gradients, and is not written then. One of another layout is
  // always replaced, and so is the memory of a sparse one.
  virtual void put(const at::Tensor& average, const at::Tensor& parameter, bool made) = 0;
};

// `.grad` holds the sum over all passes.
class LocalGradients final : public GradientStore {
 public:
  OwnGradient gradientOf(const at::Tensor& parameter, bool arrived) const override;
  void put(const at::Tensor& average, const at::Tensor& parameter, bool made) override;
};

// Until the pass ends, `.grad` holds its own gradient alone, where it has come to the parameter and so made it. The
// context has the sum of earlier passes, and takes the average at the end.
class ContextGradients final : public GradientStore {
 public:
  explicit ContextGradients(autograd::Pass& pass) : pass_(pass) {}
  OwnGradient gradientOf(const at::Tensor& parameter, bool arrived) const override;
  void put(const at::Tensor& average, const at::Tensor& parameter, bool made) override;

 private:
  autograd::Pass& pass_;  // outlives this
};

}  // namespace treadle::ddp
