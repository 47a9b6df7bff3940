#include "treadle/core/rpc/rref.h"

namespace treadle::rpc {
namespace {

Status notMadeWithin(Duration limit, Engine& engine) {
  return deadlineExceeded("the value of this reference was not made here within " + toText(limit))
      .withWorker(engine.membership().self().name);
}

}  // namespace

EngineUse engineOf(const HandlePtr& handle, std::string_view what) {
  if (!handle) raise(failedPrecondition("this " + std::string(what) + " refers to nothing"));
  auto alive = handle->references()->engine();
  if (!alive) raise(failedPrecondition("this " + std::string(what) + " belongs to a worker that has left its job"));
  return alive;
}

EngineUse engineForValue(const HandlePtr& handle, std::string_view what) {
  auto alive = engineOf(handle, what);
  throwIfError(handle->references()->failureOf(handle));
  return alive;
}

OwnedValue waitForOwned(Engine& engine, const RefId& ref, const std::type_info& type, std::optional<Duration> limit) {
  Duration timeout = limit.value_or(engine.rpcTimeout());
  auto state = std::make_shared<io::FutureState<OwnedValue>>();
  uint64_t number =
      engine.references().whenReady(ref, [state](Result<OwnedValue> value) { state->complete(std::move(value)); });
  Result<bool> made = state->waitUntil(deadlineAfter(timeout));
  if (!made.ok() || !*made) {
    engine.references().stopWaiting(ref, number);
    throwIfError(made.status());
    raise(notMadeWithin(timeout, engine));
  }
  OwnedValue value = valueOrThrow(state->result());
  throwIfError(typeFits(value, type));
  return value;
}

void boundWait(Engine& engine, const RefId& ref, uint64_t number, std::optional<Duration> limit,
               io::FutureCore& waiting) {
  auto references = engine.references().shared_from_this();
  waiting.cancelHook = [references, ref, number] { references->stopWaiting(ref, number); };
  const Duration most = limit.value_or(engine.rpcTimeout());
  if (most == kNoTimeout) return;
  Future<void> over = engine.after(most);
  sharedStateOf(over)->onReady(
      [references, ref, number, late = notMadeWithin(most, engine), timer = std::weak_ptr(sharedStateOf(over))] {
        if (auto rung = timer.lock(); rung && rung->result().ok()) references->endWait(ref, number, late);
      });
  waiting.onReady([over]() mutable { over.cancel(); });
}

}  // namespace treadle::rpc
