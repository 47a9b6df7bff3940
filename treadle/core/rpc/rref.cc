#include "treadle/core/rpc/rref.h"

namespace treadle::rpc {

OwnedValue waitForOwned(Engine& engine, const RefId& ref, const std::type_info& type, std::optional<Duration> limit) {
  Duration timeout = limit.value_or(engine.rpcTimeout());
  auto state = std::make_shared<io::FutureState<OwnedValue>>();
  uint64_t number =
      engine.references().whenReady(ref, [state](Result<OwnedValue> value) { state->complete(std::move(value)); });
  Result<bool> made = state->waitUntil(deadlineAfter(timeout));
  if (!made.ok() || !*made) {
    engine.references().stopWaiting(ref, number);
    throwIfError(made.status());
    raise(deadlineExceeded("the value of this reference was not made here within " + toText(timeout))
              .withWorker(engine.membership().self().name));
  }
  OwnedValue value = valueOrThrow(state->result());
  throwIfError(typeFits(value, type));
  return value;
}

}  // namespace treadle::rpc
