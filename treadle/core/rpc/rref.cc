#include "treadle/core/rpc/rref.h"

namespace treadle::rpc {

Status typeFits(const OwnedValue& value, const std::type_info& type) {
  if (*value.type == type) return {};
  return failedPrecondition("the reference is to a " + demangled(value.type->name()) + ", not to a " +
                            demangled(type.name()));
}

OwnedValue waitForOwned(Engine& engine, const RefId& ref, const std::type_info& type, std::optional<Duration> limit) {
  Duration timeout = limit.value_or(engine.rpcTimeout());
  auto state = std::make_shared<io::FutureState<OwnedValue>>();
  engine.references().whenReady(ref, engine.membership().self().rank,
                                [state](Result<OwnedValue> value) { state->complete(std::move(value)); });
  if (!valueOrThrow(state->waitUntil(deadlineAfter(timeout))))
    raise(deadlineExceeded("the value of this reference was not made here within " + toText(timeout))
              .withWorker(engine.membership().self().name));
  OwnedValue value = valueOrThrow(state->result());
  throwIfError(typeFits(value, type));
  return value;
}

}  // namespace treadle::rpc
