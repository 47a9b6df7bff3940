#pragma once
// How a dense tensor travels: dtype, sizes and its elements in row-major order. Strides do not travel: a view or a
// transposed tensor sends just its elements and arrives contiguous. Whether it requires a gradient does not travel
// either; within an autograd context the receiver's tensor is part of the distributed graph when it should be.
//
//   tensor := dtype:u8 (255: undefined)  dimensions:u8  size:i64 *      and one buffer of the elements, unless undefined
//
// The memory of a received tensor belongs to it alone. Throws ArgumentError for tensors that are not dense, not on the
// CPU, or quantized; DataError for bytes that are no tensor.

#include <ATen/core/Tensor.h>

#include "treadle/core/rpc/codec.h"

namespace treadle::bridge {

void encodeTensor(rpc::Encoder& encoder, const at::Tensor& tensor);
at::Tensor decodeTensor(rpc::Decoder& decoder);

// The number by which a dtype travels. ArgumentError naming a dtype that does not travel.
uint8_t wireType(at::ScalarType type);
// DataError for a number that names none.
at::ScalarType scalarType(uint8_t wireType);

}  // namespace treadle::bridge

namespace treadle::rpc {

template <>
struct Codec<at::Tensor> {
  static void encode(Encoder& encoder, const at::Tensor& value) { bridge::encodeTensor(encoder, value); }
  static at::Tensor decode(Decoder& decoder) { return bridge::decodeTensor(decoder); }
  static std::string name() { return "tensor"; }
};

}  // namespace treadle::rpc
