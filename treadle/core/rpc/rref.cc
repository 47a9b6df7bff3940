#include "treadle/core/rpc/rref.h"

namespace treadle::rpc {

OwnedValue waitForOwned(Engine& engine, const RefId& ref, const std::type_info& type) {
  auto state = std::make_shared<io::FutureState<OwnedValue>>();
  engine.references().whenReady(ref, engine.membership().self().rank,
                                [state](Result<OwnedValue> value) { state->complete(std::move(value)); });
  if (!valueOrThrow(state->waitUntil(deadlineAfter(engine.rpcTimeout()))))
    raise(deadlineExceeded("the value of this reference was not made within " + toText(engine.rpcTimeout())));
  OwnedValue value = valueOrThrow(state->result());
  if (*value.type != type)
    raise(failedPrecondition("the reference is to a " + demangled(value.type->name()) + ", not to a " +
                             demangled(type.name())));
  return value;
}

}  // namespace treadle::rpc
