#include "treadle/core/rpc/conversions.h"

namespace treadle::rpc {

std::shared_ptr<const void> valueToSend(Encoder& encoder, const HandlePtr& handle, const std::type_info& type) {
  if (!handle) raise(invalidArgument("an RRef that refers to nothing cannot be sent"));
  encoder.checkThatItCanBeSent(*handle);
  References& references = encoder.references();
  if (!handle->local() || encoder.toRank() == references.self()) return nullptr;
  std::optional<OwnedValue> value = references.valueOf(handle);
  if (!value) return nullptr;
  throwIfError(typeFits(*value, type));
  encoder.keep(value->value);
  return value->value;
}

}  // namespace treadle::rpc
