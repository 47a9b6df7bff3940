#pragma once
// Collective operations on tensors: those of core/group, for dense CPU tensors of any strides. An operation owns the
// memory of its tensor until its future is ready, and keeps the tensor alive until then. Any thread; members match
// operations by the order of the calls, so use one thread at a time.
//
// Operations work in place, and autograd does not see them: do not give a tensor that a pending backward pass has
// saved, because nothing would detect the change. A contiguous tensor is used directly; another tensor is copied to a
// contiguous one and copied back at the end. Failures are those of core/group (group.h): TimeoutError, PeerLostError,
// ArgumentError when the members' calls differ. After a failure the contents are unspecified.

#include <ATen/core/Tensor.h>

#include "treadle/core/group/group.h"

namespace treadle {

// tensor[i] becomes the sum (or the reduction `op`) of tensor[i] of all members, in place, with the same bits on all.
// Members give the same number of elements of the same dtype; shapes are not compared. float16, bfloat16, float32,
// float64, int8 to int64 and uint8; ArgumentError at once for other dtypes, devices and layouts.
Future<void> allReduce(const ProcessGroup& group, at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);

// Copies `tensor` of the group's rank `root` to all members, in place. Any dtype: bytes are copied. Members give the
// same number of bytes. ArgumentError when the group has no such rank.
Future<void> broadcast(const ProcessGroup& group, at::Tensor& tensor, int root);

}  // namespace treadle
