#pragma once
// Arguments of `make` are written as a user would write them for a constructor (`make<Net>(peer, 64, 10)`), where the
// types of literals need not be those of the parameters. On the wire every integer is an int64, every floating number
// a double and every text a string; the callee narrows them again and refuses what does not fit.

#include <concepts>
#include <string>
#include <utility>

#include "treadle/core/base/error.h"

namespace treadle::rpc {

template <class T>
struct LooseOf {
  using Type = T;
};
template <class T>
  requires(std::integral<T> && !std::same_as<T, bool>)
struct LooseOf<T> {
  using Type = int64_t;
};
template <std::floating_point T>
struct LooseOf<T> {
  using Type = double;
};
template <>
struct LooseOf<const char*> {
  using Type = std::string;
};
template <class T>
using Loose = typename LooseOf<std::decay_t<T>>::Type;

// The parameter's own type back. ArgumentError for a number that it cannot hold.
template <class T, class V>
T tighten(V value) {
  if constexpr (std::integral<T> && !std::same_as<T, bool>) {
    if (!std::in_range<T>(value))
      raise(invalidArgument("the number " + std::to_string(value) + " does not fit the parameter it is for"));
    return static_cast<T>(value);
  } else if constexpr (std::floating_point<T>) {
    return static_cast<T>(value);
  } else {
    return T(std::move(value));
  }
}

// An argument as it is sent. ArgumentError for an unsigned number above the int64 range.
template <class A>
Loose<A> loosen(const A& argument) {
  if constexpr (std::integral<A> && !std::same_as<A, bool>) {
    if (!std::in_range<int64_t>(argument))
      raise(invalidArgument("the number " + std::to_string(argument) + " is too large to travel"));
  }
  return static_cast<Loose<A>>(argument);
}

}  // namespace treadle::rpc
