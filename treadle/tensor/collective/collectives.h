#pragma once
// Collective operations on tensors: those of core/group, for dense CPU tensors of any strides. The tensor
// belongs to the operation until its future is ready, and is kept alive until then. Any thread; members match
// operations by the order of the calls, so let one thread at a time make them.
//
// In place, behind autograd's back: a tensor that a pending backward pass saved must not be given, for
// nothing would notice that it changed. A contiguous tensor is worked on where it lies; of another one a
// contiguous copy is made and copied back at the end. Failures are those of core/group (group.h):
// TimeoutError, PeerLostError, ArgumentError when members do not call the same. After a failure the contents
// are unspecified.

#include <ATen/core/Tensor.h>

#include "treadle/core/group/group.h"

namespace treadle {

// tensor[i] = the sum (or what `op` says) of tensor[i] of all members, in place, the same bits on all.
// Members give the same number of elements of the same dtype; shapes are not compared. float16, bfloat16,
// float32, float64, int8 to int64 and uint8; ArgumentError at once for other dtypes, devices and layouts.
Future<void> allReduce(const Group& group, at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);

// What rank `root` of the group has in `tensor`, on all members, in place. Any dtype: bytes are copied.
// Members give the same number of bytes. ArgumentError when the group has no such rank.
Future<void> broadcast(const Group& group, at::Tensor& tensor, int root);

}  // namespace treadle
