#pragma once
// Which tensors in `.grad` local passes have made: those that a pass put where there was none. A program may know any
// other one, and its memory. A made one may share its memory with other gradients (pytorch#34082).
//
// Owned by a reducer, and used under its lock.

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace treadle::ddp {

class MadeGradients {
 public:
  // `parameters` outlive it.
  explicit MadeGradients(const std::vector<at::Tensor>& parameters)
      : parameters_(parameters), hadNone_(parameters.size()), made_(parameters.size()) {}

  // A local pass is about to add a gradient to what `.grad` of the parameter has.
  void before(size_t parameter) { hadNone_[parameter] = !parameters_[parameter].grad().defined(); }
  // It has; the gradient may be undefined.
  void after(size_t parameter);
  // `.grad` of the parameter is still that tensor, in the same memory.
  bool has(size_t parameter) const;

 private:
  // An address alone could come to mean another one.
  struct Made {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  };

  const std::vector<at::Tensor>& parameters_;
  std::vector<bool> hadNone_;
  std::vector<std::optional<Made>> made_;
};

}  // namespace treadle::ddp
