#pragma once
// How a tensor travels: dtype, sizes and its elements in row-major order; of a sparse one (COO) its sizes, indices and
// values. Strides do not travel: a view
// or a transposed tensor sends just its elements and arrives contiguous. Whether it requires a gradient does
// not travel either; within an autograd context the receiver's tensor is part of the distributed graph when
// it should be.
//
//   tensor := dtype:u8  dimensions:u8  size:i64 *     and one buffer of the elements; or 255:u8 for undefined; or
//             254:u8  dimensions:u8  size:i64 *  coalesced:u8  and two of the first kind, indices (int64) and values
//
// The memory of a received tensor belongs to it alone: it is the block that the message was read into, not a
// copy of it, and goes with the last tensor over it. No state; any thread, one Encoder or Decoder per thread.
//
// Budget: to encode, one allocation, which keeps the elements until the message has left, beside the message's lists;
// to decode, four (sizes, what holds the block, storage, tensor). No lock, no copy, none of libtorch's operators.
//
// Numbers and elements are little-endian, as they lie in the memory of the machines that Treadle runs on.

#include <ATen/core/Tensor.h>

#include "treadle/core/rpc/codec.h"

namespace treadle::bridge {

// Writes `tensor` of any shape, zero-dim, empty and undefined ones included. Its elements are not copied when
// it is contiguous: the message borrows them until it has been sent. Throws ArgumentError, naming what to
// send instead, for tensors that are sparse in another layout than COO, quantized, on another device than the CPU, of
// over 64 dimensions, or of a dtype without a number. Two tensors that share memory arrive as two that do not.
void encodeTensor(rpc::Encoder& encoder, const at::Tensor& tensor);
// A contiguous or sparse tensor on the CPU that does not require a gradient by itself. Throws DataError for an unknown
// dtype, sizes that are negative or overflow, a buffer that is not exactly as long as the sizes ask for, or indices
// outside of the sizes.
at::Tensor decodeTensor(rpc::Decoder& decoder);

// The number by which a dtype travels. ArgumentError naming a dtype that does not travel.
uint8_t wireType(at::ScalarType type);
// DataError for a number that names none.
at::ScalarType scalarType(uint8_t wireType);

}  // namespace treadle::bridge

namespace treadle::rpc {

template <>
inline constexpr bool kOwnsAll<at::Tensor> = true;

template <>
struct Codec<at::Tensor> {
  static void encode(Encoder& encoder, const at::Tensor& value) { bridge::encodeTensor(encoder, value); }
  static at::Tensor decode(Decoder& decoder) { return bridge::decodeTensor(decoder); }
  static std::string name() { return "tensor"; }
};

}  // namespace treadle::rpc

// Wherever an RRef<at::Tensor> can be used, it has its methods.
#include "treadle/tensor/bridge/tensor_rref.h"  // NOLINT: needs the codec above
