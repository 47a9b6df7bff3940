#include "treadle/core/rpc/inputs.h"

namespace treadle::rpc {

Status typeFits(const OwnedValue& value, const std::type_info& type) {
  if (*value.type == type) return {};
  return failedPrecondition("the reference is to a " + demangled(value.type->name()) + ", not to a " +
                            demangled(type.name()));
}

}  // namespace treadle::rpc
