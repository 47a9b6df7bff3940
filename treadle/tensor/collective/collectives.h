#pragma once
// Collective operations on tensors: those of core/group, for dense CPU tensors of any strides. The tensor belongs to
// the operation until its future is ready, and is kept alive until then. Any thread; members match operations by the
// order of the calls.

#include <ATen/core/Tensor.h>

#include "treadle/core/group/group.h"

namespace treadle {

// tensor[i] = the sum (or what `op` says) of tensor[i] of all members, in place. float16, bfloat16, float32, float64 and
// integers; ArgumentError for other dtypes, devices and layouts.
Future<void> allReduce(const Group& group, at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);

// What rank `root` of the group has in `tensor`, on all members, in place. Any dtype.
Future<void> broadcast(const Group& group, at::Tensor& tensor, int root);

}  // namespace treadle
