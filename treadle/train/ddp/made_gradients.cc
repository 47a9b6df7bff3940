#include "treadle/train/ddp/made_gradients.h"

namespace treadle::ddp {

void MadeGradients::after(size_t parameter) {
  const at::Tensor& grad = parameters_[parameter].grad();
  if (!hadNone_[parameter] || !grad.defined() || !grad.has_storage()) return;
  made_[parameter] = Made{decltype(Made::tensor)(grad.getIntrusivePtr()), grad.storage().getWeakStorageImpl()};
}

bool MadeGradients::has(size_t parameter) const {
  const at::Tensor& grad = parameters_[parameter].grad();
  const std::optional<Made>& made = made_[parameter];
  if (!made || !grad.defined() || !grad.has_storage()) return false;
  return made->tensor._unsafe_get_target() == grad.unsafeGetTensorImpl() &&
         made->storage._unsafe_get_target() == grad.storage().unsafeGetStorageImpl();
}

}  // namespace treadle::ddp
