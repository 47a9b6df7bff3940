#pragma once
// The typed face of the engine: from a C++ function and arguments to an outgoing call, and from its answer to a
// Future. Used by Worker, Caller and RRef; a program uses those.

#include <algorithm>

#include "treadle/core/rpc/conversions.h"
#include "treadle/core/rpc/engine.h"

namespace treadle::rpc {

// The name under which this worker knows F or T. StateError saying what to do when it has none.
const Functions::Entry& entryOf(const Engine& engine, const void* key, std::string (*what)());

// Reads until `future` is ready, also what is for others. `interceptor` may be empty or gone.
void readUntilReady(const io::FutureCore& future, link::Connection& connection,
                    const std::weak_ptr<Interceptor>& interceptor, TimePoint deadline);

template <class Values, class... A>
void encodeArguments(Encoder& encoder, A&&... arguments) {
  static_assert(std::tuple_size_v<Values> == sizeof...(A),
                "give every argument of the remote function: default arguments are not known through a pointer to it");
  [&]<size_t... I>(std::index_sequence<I...>) {
    static_assert((Argument<std::tuple_element_t<I, Values>, A&&> && ...),
                  "an argument has a type that the remote function's parameter cannot be made from");
    (encodeArgument<std::tuple_element_t<I, Values>>(encoder, I, std::forward<A>(arguments)), ...);
  }(std::index_sequence_for<A...>{});
}

// Makes `call.complete` fill a future, and a future that reads for itself and can be cancelled.
// `decode(decoder)` gives the Stored<R>.
template <class R, class Decode>
Future<R> startCall(Engine& engine, OutgoingCall call, Decode decode) {
  auto state = std::make_shared<io::FutureState<Stored<R>>>();
  state->executor = &engine.executor();
  call.complete = [state, decode = std::move(decode)](Result<Decoder*> result) mutable {
    if (!result.ok()) return (void)state->complete(result.status());
    try {
      Stored<R> value = decode(**result);
      (*result)->finish();
      state->complete(std::move(value));
    } catch (...) {
      state->complete(statusOfCurrentException("decoding an answer"));
    }
  };
  CallTicket ticket = engine.send(std::move(call));
  if (!ticket.connection) return Future<R>(state);
  // Does not own the interceptor: what that keeps may hold this future, as a backward pass holds its calls.
  state->assist = [raw = state.get(), connection = std::move(ticket.connection), end = ticket.deadline,
                   interceptor = std::weak_ptr(engine.sharedInterceptor())](TimePoint deadline) {
    readUntilReady(*raw, *connection, interceptor, std::min(deadline, end));
  };
  state->cancelHook = [references = engine.references().shared_from_this(), id = ticket.id] {
    if (auto alive = references->engine()) alive->cancel(id);
  };
  return Future<R>(state);
}

template <class R>
Future<R> startCall(Engine& engine, OutgoingCall call) {
  static_assert(Travels<Stored<R>>,
                "the function's result does not travel: call it with remote(), which leaves it there");
  return startCall<R>(engine, std::move(call), [](Decoder& decoder) { return Codec<Stored<R>>::decode(decoder); });
}

// What a blocking call waits with. If it cannot wait, because too many handlers do, nobody is interested in the answer.
template <class R>
R waitForCall(Future<R> future) {
  try {
    return future.wait();
  } catch (...) {
    future.cancel();  // unless it is ready
    throw;
  }
}

template <auto F, class Of = typename Traits<F>::Target>  // Note [Of] in invoke.h
const Functions::Entry& entryOfFunction(const Engine& engine) {
  return entryOf(engine, &functionKey<F>, &Signature<F>::text);
}

// Whether F's parameters can be made from arguments of these types.
template <class Values, class... A>
inline constexpr bool kTakes = [] {
  if constexpr (std::tuple_size_v<Values> != sizeof...(A)) return false;
  return []<size_t... I>(std::index_sequence<I...>) {
    return (Argument<std::tuple_element_t<I, Values>, A> && ...);
  }(std::index_sequence_for<A...>());
}();

// An outgoing call of F without its arguments.
template <auto F, class Of = typename Traits<F>::Target>  // likewise
OutgoingCall callOf(const Engine& engine, int rank, CallOptions options) {
  const Functions::Entry& entry = entryOfFunction<F>(engine);
  OutgoingCall call;
  call.rank = rank;
  call.function = entry.name;
  call.signature = entry.signature;
  call.options = options;
  return call;
}

// The arguments are encoded before the call that is given them returns, so that they may be captured by reference.
template <auto F, class Of = typename Traits<F>::Target, class... A>  // likewise
OutgoingCall callWith(const Engine& engine, int rank, CallOptions options, A&&... arguments) {
  OutgoingCall call = callOf<F>(engine, rank, options);
  call.encode = [&arguments...](Encoder& encoder) {
    encodeArguments<typename Traits<F>::Values>(encoder, std::forward<A>(arguments)...);
  };
  return call;
}

}  // namespace treadle::rpc
