#pragma once
// How the arguments of libtorch's operators travel, whose types are known at run time only:
//
//   ivalue := kind:u8 content
//   0 none, 1 tensor, 2 an i64, 3 an f64, 4 a bool, 5 a string, 6 a complex number (two f64), and lists, each a
//   count:u32 and its elements: 7 of i64, 8 of f64, 9 of bool, 10 of tensors, 11 of tensors that may be undefined
//
// dtypes, layouts and memory formats are integers to an operator. No state; any thread.

#include <ATen/core/ivalue.h>

#include "treadle/tensor/bridge/tensor_codec.h"

namespace treadle::rpc {

template <>
inline constexpr bool kOwnsAll<c10::IValue> = false;

template <>
struct Codec<c10::IValue> {
  // ArgumentError naming the type of a value that does not travel.
  static void encode(Encoder& encoder, const c10::IValue& value);
  static c10::IValue decode(Decoder& decoder);
  static std::string name() { return "ivalue"; }
};

}  // namespace treadle::rpc
