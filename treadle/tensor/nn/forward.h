#pragma once
// `forward` of a module as a remote function. A pointer to a member function forgets its default arguments,
// and many modules have some or overload forward; so a call carries how many arguments it gives, and the
// callee calls the forward that takes so many. Where `&M::forward` names one function, arguments have its
// parameters' types; where it is overloaded or a template, they are tensors.
//
//   request values := count:u8 argument *       the answer holds what forward returns
//
// Templates only, without state. `encode` runs on the caller's thread, `invoke` on the one that runs the
// handler; two calls of one module may run at once, as libtorch's own modules allow when forward changes
// nothing.

#include <ATen/core/Tensor.h>

#include "treadle/core/rpc/rref.h"

namespace treadle::nn {

// Stands for the forward of module class I.
template <class I>
inline char forwardKey = 0;

inline constexpr size_t kMostTensors = 6;  // arguments of an overloaded forward

// The types of the arguments as they travel: those of the one forward there is, or tensors, as many as any of
// libtorch's modules takes.
template <class I>
struct ForwardValues {
  using Type = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
};
template <class I>
  requires requires { &I::forward; }
struct ForwardValues<I> {
  using Type = typename rpc::Traits<&I::forward>::Values;
};

// What forward returns: `find()` tries it with no argument, with one, and so on, and takes the first number
// of arguments it can be called with. All overloads of a module are held to return the same type.
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

  // Names the class and the result, so that two classes under one name are told apart before a byte is
  // decoded.
  static std::string signature() {
    return rpc::nameOf<Result>() + " " + demangled(typeid(I).name()) + "::forward(" + rpc::NamesIn<Values>::text() +
           ")";
  }

  // Converts each argument to the type of its parameter; a reference to one is a way to give it (conversions.h). A
  // compile error when there are too many.
  template <class... A>
  static void encode(rpc::Encoder& encoder, const A&... arguments) {
    static_assert(sizeof...(A) <= kMost, "forward takes fewer arguments");
    encoder.writer().number(static_cast<uint8_t>(sizeof...(A)));
    [&]<size_t... K>(std::index_sequence<K...>) {
      (rpc::encodeArgument<std::tuple_element_t<K, Values>>(encoder, K, arguments), ...);
    }(std::index_sequence_for<A...>{});
  }

  // The handler. The count comes from a peer: a number of arguments that no forward takes is refused with
  // ArgumentError, one that does not match the values that follow with DataError.
  static void invoke(Call&, rpc::Decoder& decoder, const rpc::Responder& responder) {
    auto count = rpc::Codec<uint8_t>::decode(decoder);
    I& module = rpc::targetOf<I>(responder.call());
    if (!dispatch<0>(count, module, decoder, responder))
      raise(invalidArgument("forward cannot be called with " + std::to_string(count) + " arguments"));
  }

 private:
  // From the number in the message to the forward that takes so many; false when none does.
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
