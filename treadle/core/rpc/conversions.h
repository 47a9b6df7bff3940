#pragma once
// The four ways in which an argument becomes a parameter, chosen by their types when a call is compiled:
//
//   argument  parameter
//   T         T          its value travels
//   T         RRef<T>    it stays at the caller; the callee is given a reference to it
//   RRef<T>   T          who owns it? The caller: its value travels, if it is there already. Else the callee looks it
//                        up, or fetches it straight from its owner, before the function begins
//   RRef<T>   RRef<T>    the callee is given a reference
//
// They are those of "Remote Reference Protocol" and of the RFC of PyTorch's RPC.

#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "treadle/core/rpc/invoke.h"

namespace treadle {

template <class T>
class RRef;

namespace rpc {

template <class T>
struct Referred {
  using Value = void;
};
template <class T>
struct Referred<RRef<T>> {
  using Value = Stored<T>;
};

// RRef<T> -> T.
template <class P, class A>
concept LookedUp = std::same_as<typename Referred<std::decay_t<A>>::Value, P>;

// T -> RRef<T>. An RRef<T> for an RRef<RRef<T>> too.
template <class P, class A>
concept LeftHere = !std::is_void_v<typename Referred<P>::Value> && !std::same_as<std::decay_t<A>, P> &&
                   std::constructible_from<typename Referred<P>::Value, A>;

// Whether an A may be given for a parameter of type P.
template <class P, class A>
concept Argument = LookedUp<P, A> || LeftHere<P, A> || std::constructible_from<P, A>;

// The value of a reference that this worker owns and that has been made. Null when the callee looks it up, which also
// reports why it could not be made. Throws StateError when it is no `type`.
std::shared_ptr<const void> valueToSend(Encoder& encoder, const HandlePtr& handle, const std::type_info& type);

// Encodes `argument` as a parameter of type P. An rvalue is taken, so that memory that nobody else holds may go with
// it.
template <class P, class A>
void encodeAs(Encoder& encoder, A&& argument) {
  if constexpr (std::is_same_v<P, std::decay_t<A>> && (std::is_lvalue_reference_v<A> || std::is_arithmetic_v<P>)) {
    Codec<P>::encode(encoder, argument);
  } else {
    P own(std::forward<A>(argument));
    Encoder::Giving giving(encoder, kOwnsAll<P>);
    Codec<P>::encode(encoder, own);
  }
}

// The same in whichever of the four ways their types ask for. `index`: of the parameter.
template <class P, class A>
void encodeArgument(Encoder& encoder, uint16_t index, A&& argument) {
  if constexpr (LookedUp<P, A>) {
    std::shared_ptr<const void> value = valueToSend(encoder, handleOf(argument), typeid(P));
    if (!value) return encoder.addInput(index, handleOf(argument));
    Codec<P>::encode(encoder, *static_cast<const P*>(value.get()));
  } else if constexpr (LeftHere<P, A>) {
    using Value = typename Referred<P>::Value;
    auto own = std::make_shared<Value>(std::forward<A>(argument));
    Codec<P>::encode(encoder, P(encoder.references().own(ownedValue(std::move(own)))));
  } else {
    encodeAs<P>(encoder, std::forward<A>(argument));
  }
}

}  // namespace rpc
}  // namespace treadle
