#pragma once
// Where the gradients of one backward pass live, with those of earlier passes: in `.grad`, or in the context of a
// distributed pass. Used by one thread at a time, with grad mode off.

#include <ATen/core/Tensor.h>

#include "treadle/tensor/autograd/pass.h"

namespace treadle::ddp {

class GradientStore {
 public:
  virtual ~GradientStore() = default;

  // Whether this rank has one, of this pass or of earlier ones.
  virtual bool has(const at::Tensor& parameter, bool arrived) const = 0;
  // Copies this rank's gradient of a parameter into `place`, which has its shape and dtype: the sum of this pass, if
  // the pass has come to the parameter (`arrived`), and of earlier ones. Returns whether there is one; zeros if not.
  virtual bool copyTo(at::Tensor& place, const at::Tensor& parameter, bool arrived) const = 0;
  // The average takes the place of that sum. It is copied, or its memory becomes that of the gradient, where nobody can
  // notice.
  virtual void put(const at::Tensor& average, const at::Tensor& parameter, bool arrived) = 0;
};

// `.grad` holds the sum over all passes.
class LocalGradients final : public GradientStore {
 public:
  bool has(const at::Tensor& parameter, bool arrived) const override;
  bool copyTo(at::Tensor& place, const at::Tensor& parameter, bool arrived) const override;
  void put(const at::Tensor& average, const at::Tensor& parameter, bool arrived) override;
};

// Until the pass ends, `.grad` holds its own gradient alone, where it has come to the parameter. The context has the
// sum of earlier passes, and takes the average at the end.
class ContextGradients final : public GradientStore {
 public:
  explicit ContextGradients(autograd::Pass& pass) : pass_(pass) {}
  bool has(const at::Tensor& parameter, bool arrived) const override;
  bool copyTo(at::Tensor& place, const at::Tensor& parameter, bool arrived) const override;
  void put(const at::Tensor& average, const at::Tensor& parameter, bool arrived) override;

 private:
  autograd::Pass& pass_;  // outlives this
};

}  // namespace treadle::ddp
