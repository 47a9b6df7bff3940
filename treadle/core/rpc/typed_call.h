#pragma once
// The typed face of the engine: from a C++ function and arguments to an outgoing call, and from its answer to a
// Future. Used by Worker, CallProxy and RRef; a program uses those.

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

// The blocking form of every call.
template <class R, class... Decode>
R callAndWait(Engine& engine, OutgoingCall call, Decode... decode) {
  WaitingCaller caller;
  call.caller = &caller;
  return startCall<R>(engine, std::move(call), std::move(decode)...).wait();
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

// `encode` writes the arguments. It is done when the call has been sent, so they may be captured by reference.
OutgoingCall outgoingCall(int rank, std::string_view function, std::string_view signature, const CallOptions& options,
                          UniqueFunction<void(Encoder&)> encode);

// A fetch: `owner` answers when it has the value of `target`. `what` is kFetchValue or kAwaitValue.
OutgoingCall fetchCall(int owner, std::string_view what, HandlePtr target, const CallOptions& options);

// Of F, under the name that this worker knows it by.
template <auto F, class Of = typename Traits<F>::Target, class... A>  // likewise
OutgoingCall callWith(const Engine& engine, int rank, const CallOptions& options, A&&... arguments) {
  const Functions::Entry& entry = entryOfFunction<F>(engine);
  return outgoingCall(rank, entry.name, entry.signature, options, [&arguments...](Encoder& encoder) {
    encodeArguments<typename Traits<F>::Values>(encoder, std::forward<A>(arguments)...);
  });
}

// Of the maker of a T that `entry` is. Numbers travel at their widest. ArgumentError when it takes other arguments.
template <class T, class... A>
OutgoingCall makerCall(const Functions::Entry& entry, int rank, const CallOptions& options, const A&... arguments) {
  if (const std::string wanted = makerSignature<T, A...>(); wanted != entry.signature)
    raise(invalidArgument("'" + entry.name + "' is a " + entry.signature + ", not a " + wanted));
  return outgoingCall(rank, entry.name, entry.signature, options, [&arguments...](Encoder& encoder) {
    (Codec<Loose<A>>::encode(encoder, loosen(arguments)), ...);
  });
}

}  // namespace treadle::rpc
