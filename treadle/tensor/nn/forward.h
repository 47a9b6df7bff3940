#pragma once
// `forward` of a module as a remote function. A pointer to a member function loses its default arguments, and many
// modules have default arguments or overload forward. So a call carries its number of arguments, and the callee calls
// the forward that takes that many. Where `&M::forward` names one function, arguments have its parameters' types; where
// it is overloaded or a template, they are tensors.
//
//   request values := count:u8 argument *       the answer holds what forward returns
//
// Templates only, without state. `encode` runs on the caller's thread, `invoke` on the thread that runs the handler.
// Two calls of one module may run at once; libtorch's own modules allow that when forward changes nothing.

#include <ATen/core/Tensor.h>

#include "treadle/core/rpc/rref.h"

namespace treadle::nn {

// Identifies the forward of module class I.
template <class I>
inline char forwardKey = 0;

inline constexpr size_t kMostTensors = 6;  // limit of arguments of an overloaded forward

// The types of the arguments as they travel: those of the only forward, or as many tensors as any of libtorch's modules
// takes.
template <class I>
struct ForwardValues {
  using Type = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
};
template <class I>
  requires requires { &I::forward; }
struct ForwardValues<I> {
  using Type = typename rpc::Traits<&I::forward>::Values;
};

// The result type of forward: `find()` tries 0, 1, 2, ... arguments and takes the first number with which forward can
// be called. All overloads of a module are assumed to return the same type.
template <class I, class Values, size_t Count = 0>
struct ForwardResult;
template <class I, class... V, size_t Count>
struct ForwardResult<I, std::tuple<V...>, Count> {
  // Default arguments count here, because this is an expression and not a pointer to a member function.
  template <size_t... K>
  static constexpr bool takes(std::index_sequence<K...>) {
    return requires(I& module, std::tuple<V...>& values) { module.forward(std::get<K>(values)...); };
  }
  template <size_t... K>
  static auto call(I& module, std::tuple<V...>& values, std::index_sequence<K...>) {
    return module.forward(std::get<K>(values)...);
  }
  static constexpr bool works = takes(std::make_index_sequence<Count>());
  static auto find() {
    static_assert(works || Count < sizeof...(V), "this module has no forward that can be called remotely");
    if constexpr (works) {
      using R =
          decltype(call(std::declval<I&>(), std::declval<std::tuple<V...>&>(), std::make_index_sequence<Count>()));
      return std::type_identity<std::decay_t<R>>{};
    } else {
      return ForwardResult<I, std::tuple<V...>, Count + 1>::find();
    }
  }
};

// The remote function itself, in the shape that Functions::put takes.
template <class I>
struct Forward {
  using Values = typename ForwardValues<I>::Type;
  using Result = typename decltype(ForwardResult<I, Values>::find())::type;
  static constexpr size_t kMost = std::tuple_size_v<Values>;

  // Names the class and the result, so that a mix-up of two classes under one name is found before a byte is decoded.
  static std::string signature() {
    return rpc::nameOf<Result>() + " " + demangled(typeid(I).name()) + "::forward(" + rpc::NamesIn<Values>::text() +
           ")";
  }

  // Converts each argument to the type of its parameter; a reference may stand for a value (conversions.h). Too many
  // arguments are a compile error.
  template <class... A>
  static void encode(rpc::Encoder& encoder, const A&... arguments) {
    static_assert(sizeof...(A) <= kMost, "forward takes fewer arguments");
    encoder.writer().number(static_cast<uint8_t>(sizeof...(A)));
    [&]<size_t... K>(std::index_sequence<K...>) {
      (rpc::encodeArgument<std::tuple_element_t<K, Values>>(encoder, K, arguments), ...);
    }(std::index_sequence_for<A...>{});
  }

  // The handler. The count comes from a peer: ArgumentError when no forward takes that many arguments, DataError when
  // it does not match the values that follow.
  static void invoke(CallContext&, rpc::Decoder& decoder, const rpc::Responder& responder) {
    auto count = rpc::Codec<uint8_t>::decode(decoder);
    I& module = rpc::targetOf<I>(responder.call());
    if (!dispatch<0>(count, module, decoder, responder))
      raise(invalidArgument("forward cannot be called with " + std::to_string(count) + " arguments"));
  }

 private:
  // Finds the forward for the number of arguments in the message; false when there is none.
  template <size_t Count>
  static bool dispatch(size_t count, I& module, rpc::Decoder& decoder, const rpc::Responder& responder) {
    if constexpr (Count > kMost) {
      return false;
    } else {
      if (count != Count) return dispatch<Count + 1>(count, module, decoder, responder);
      if constexpr (ForwardResult<I, Values, Count>::works) {
        run(module, decoder, responder, std::make_index_sequence<Count>());
        return true;
      } else {
        return false;
      }
    }
  }
  template <size_t... K>
  static void run(I& module, rpc::Decoder& decoder, const rpc::Responder& responder, std::index_sequence<K...>) {
    auto values =
        rpc::decodeArguments<std::tuple<std::tuple_element_t<K, Values>...>>(decoder, responder.call().inputs);
    rpc::answer(responder, Result(module.forward(std::get<K>(values)...)));
  }
};

}  // namespace treadle::nn
