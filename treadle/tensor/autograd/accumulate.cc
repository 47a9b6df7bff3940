#include "treadle/tensor/autograd/accumulate.h"

#include <ATen/ops/add.h>

namespace treadle::autograd {

bool isUnshared(const at::Tensor& tensor) {
  // Sparse and nested tensors keep their numbers in inner tensors of their own: not looked into.
  if (tensor.layout() != at::kStrided || tensor.use_count() != 1 || !tensor.has_storage()) return false;
  // A view keeps its base, which keeps the storage too. The gradient of a linear layer's weight is one of a product
  // that nobody else has.
  const bool holdsBase = tensor.is_view() && tensor._base().use_count() == 1 &&
                         tensor._base().unsafeGetTensorImpl()->unsafe_storage().is_alias_of(tensor.storage());
  return tensor.storage().use_count() == (holdsBase ? 2 : 1);
}

bool missesItsPlace(const at::Tensor& sum, const at::Tensor& gradient) {
  return !sum.is_sparse() && gradient.is_sparse() && gradient.dense_dim() == 0 && sum.storage_offset() != 0;
}

void addGradient(at::Tensor& sum, at::Tensor&& gradient) {
  if (!gradient.defined()) return;
  if (!sum.defined()) {
    sum = std::move(gradient);
    return;
  }
  // An expanded tensor has several elements in one place: it cannot be added to. A sparse gradient can be
  // added in place to a dense sum, not a dense one to a sparse sum.
  const bool inPlace = isUnshared(sum) && sum.is_non_overlapping_and_dense() && !sum.requires_grad() &&
                       sum.scalar_type() == gradient.scalar_type() && !missesItsPlace(sum, gradient);
  // Half of the memory traffic of the other, and no new pages.
  if (inPlace) {
    sum.add_(gradient);
  } else {
    sum = sum.is_sparse() ? at::add(gradient, sum) : at::add(sum, gradient);
  }
}

}  // namespace treadle::autograd
