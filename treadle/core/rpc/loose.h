#pragma once
// Arguments of `make` are written as a user would write them for a constructor (`make<Net>(peer, 64, 10)`), where the
// types of literals need not be those of the parameters. On the wire every number is an int64 or a double and every
// text a string; the callee makes the parameter's own type of it again and refuses what does not fit.

#include <cmath>
#include <concepts>
#include <limits>
#include <string>
#include <utility>

#include "treadle/core/rpc/codec.h"

namespace treadle::rpc {

// A number of any type but bool. An integer may be given where a floating number is wanted, and not the other way.
struct Number {
  bool isInteger = true;
  int64_t integer = 0;
  double real = 0;
};

template <>
struct Codec<Number> {
  static void encode(Encoder& encoder, const Number& value) {
    Codec<bool>::encode(encoder, value.isInteger);
    value.isInteger ? Codec<int64_t>::encode(encoder, value.integer) : Codec<double>::encode(encoder, value.real);
  }
  static Number decode(Decoder& decoder) {
    if (Codec<bool>::decode(decoder)) return {true, Codec<int64_t>::decode(decoder), 0};
    return {false, 0, Codec<double>::decode(decoder)};
  }
  static std::string name() { return "number"; }
};

// What an argument of type A travels as when no parameter says so.
template <class A>
struct SentAs {
  using Type = A;
};
template <>
struct SentAs<const char*> {
  using Type = std::string;
};
template <>
struct SentAs<char*> {  // what a literal's type decays to once a reference to it was taken
  using Type = std::string;
};
template <class A>
using Sent = typename SentAs<std::decay_t<A>>::Type;

template <class T>
struct LooseOf {
  using Type = Sent<T>;
};
template <class T>
  requires(std::is_arithmetic_v<T> && !std::same_as<T, bool>)
struct LooseOf<T> {
  using Type = Number;
};
template <class T>
using Loose = typename LooseOf<std::decay_t<T>>::Type;

template <class N>
Status doesNotFit(N number) {
  return invalidArgument("the number " + std::to_string(number) + " does not fit the parameter it is for");
}

// The parameter's own type back. ArgumentError for a number that it cannot hold.
template <class T, class V>
T tighten(V value) {
  if constexpr (!std::same_as<V, Number>) {
    return T(std::move(value));
  } else if constexpr (std::floating_point<T>) {
    const double number = value.isInteger ? static_cast<double>(value.integer) : value.real;
    if (std::isfinite(number) && std::abs(number) > static_cast<double>(std::numeric_limits<T>::max()))
      raise(doesNotFit(number));
    return static_cast<T>(number);
  } else {
    if (!value.isInteger)
      raise(invalidArgument("the number " + std::to_string(value.real) + " is given for a parameter of whole numbers"));
    if (!std::in_range<T>(value.integer)) raise(doesNotFit(value.integer));
    return static_cast<T>(value.integer);
  }
}

// An argument as it is sent. ArgumentError for an unsigned number above the int64 range.
template <class A>
Loose<A> loosen(const A& argument) {
  if constexpr (!std::same_as<Loose<A>, Number>) {
    return static_cast<Loose<A>>(argument);
  } else if constexpr (std::integral<A>) {
    if (!std::in_range<int64_t>(argument))
      raise(invalidArgument("the number " + std::to_string(argument) + " is too large to travel"));
    return {true, static_cast<int64_t>(argument), 0};
  } else {
    return {false, 0, static_cast<double>(argument)};
  }
}

}  // namespace treadle::rpc
