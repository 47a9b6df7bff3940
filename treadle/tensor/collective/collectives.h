#pragma once
// Collective operations on tensors: those of core/group, for dense CPU tensors of any strides, and a sum of sparse
// ones. An operation owns the memory of its tensor until its future is ready, and keeps the tensor alive until then.
// Any thread; members match operations by the order of the calls, so use one thread at a time.
//
// Autograd does not see what they write: do not give a tensor that a pending backward pass has saved, because nothing
// would detect the change. A contiguous tensor is used directly; another tensor is copied to a contiguous one, and an
// output copied back at the end, which may still happen once after `cancel`. Inputs stay as they are, and do not
// overlap outputs. Failures are those of core/group (group.h): TimeoutError, PeerLostError, ArgumentError when the
// members' calls differ, also in the shapes or dtypes of their tensors: it names two members and what they call. After
// a failure the contents are unspecified.

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "treadle/core/group/group.h"

namespace treadle {

// tensor[i] becomes the sum (or the reduction `op`) of tensor[i] of all members, in place, with the same bits on all.
// Members give the same shape and dtype. float16, bfloat16, float32, float64, int8 to int64, uint8 to uint64; complex64
// and complex128 without kMin and kMax; bool with these alone (and, or). ArgumentError at once for other dtypes,
// devices and layouts.
Future<void> allReduce(const ProcessGroup& group, at::Tensor& tensor, ReduceOp op = ReduceOp::kSum);

// As allReduce, but members match the tensors by name and not by the order of their calls: each offers the same names,
// in any order, many at a time, as gradients become ready. Small tensors are summed together, large ones in pieces.
// Shape, dtype and reduction must be the same on all members (a scalar counts as [1]); a difference fails this name on
// all, and names two members and what they offer. `options.shape` is not used. See core/group for what else is
// promised.
Future<void> pushPull(const ProcessGroup& group, std::string_view name, at::Tensor& tensor,
                      PushPullOptions options = {});

// The sum of the sparse tensors (COO) of all members, or their average over all members, as a new sparse tensor of the
// same shape and dtype; it is coalesced and has the same bits on all. The first sparse_dim() indices name a row. A row
// is in the result when any member has it, also where its values cancel out. The input need not be coalesced, is read
// before this returns, and stays as it is.
//
// A member first adds its rows with the same indices, 16-bit floats in float. Among up to 16 members, and in any group
// with SumOrder::kRank, values are then added in the order of ranks, 16-bit floats in double. Among more members small
// rows are added along a tree, 16-bit floats in float. The sum is rounded once. Otherwise, let a member have k rows,
// the result K rows, and the group n members. The member sends (n-1)/n (k + K) rows if these are spread evenly over the
// shape's rows, which the members add in runs of up to 256, in turn; at worst one member sends (n-1) K rows. Own rows
// of 16-bit floats travel as float. Besides the input a member holds its own rows, those that others send to it, and
// twice the result.
//
// Dtypes as for allReduce, without bool. Members give the same shape, sparse_dim, dtype and reduction. ArgumentError at
// once for reductions other than kSum and kAverage, other dtypes, devices and layouts, indices outside of the shape,
// 2^59 elements or more, and a forced algorithm other than kAutomatic, kDirect and, above 16 members, kTree.
Future<at::Tensor> sparseAllReduce(const ProcessGroup& group, const at::Tensor& input, ReduceOp op = ReduceOp::kSum);

// As allReduce, but only the group's rank `root` gets the result, in place; the tensors of the others stay as they are.
// Values are combined in the order of ranks, 16-bit floats in double. ArgumentError when the group has no such rank.
Future<void> reduce(const ProcessGroup& group, at::Tensor& tensor, int root, ReduceOp op = ReduceOp::kSum);

// The input is as large as the outputs of all members together, and each output becomes the reduction of its rank's
// part of the inputs of all members. Values are combined as by allReduce. ArgumentError: other sizes, or dtypes that
// differ.
Future<void> reduceScatter(const ProcessGroup& group, const at::Tensor& input, at::Tensor& output,
                           ReduceOp op = ReduceOp::kSum);

// The output becomes the inputs of all members, one after the other in the order of ranks: [n, ...] of n inputs [...].
// Any dtype. ArgumentError: other sizes, or dtypes that differ.
Future<void> allGather(const ProcessGroup& group, const at::Tensor& input, at::Tensor& output);

// The n-th part of the input goes to the group's rank n, where it becomes the part of this member in the output: of
// [n, ...] that is a transposition across the members. Any dtype. ArgumentError: elements that cannot be cut into as
// many for each member, dtypes that differ; and on all members if another one gives another size, naming both.
Future<void> allToAll(const ProcessGroup& group, const at::Tensor& input, at::Tensor& output);

// As allGather, but only the group's rank `root` has an output; the others give an undefined or empty tensor.
Future<void> gather(const ProcessGroup& group, const at::Tensor& input, at::Tensor& output, int root);

// The n-th part of the input of the group's rank `root` becomes the output of rank n; the others give an undefined
// or empty tensor as input.
Future<void> scatter(const ProcessGroup& group, const at::Tensor& input, at::Tensor& output, int root);

// These take a tensor for each member, in the order of ranks, of any sizes; all have the same dtype. They are copied to
// and from contiguous memory. ArgumentError: not a tensor for each member.

// outputs[m] becomes the input of the group's rank m, and has its size. ArgumentError on all members where they give
// outputs of other shapes, naming both shapes unless their text has more than 2,048 bytes.
Future<void> allGather(const ProcessGroup& group, const at::Tensor& input, std::vector<at::Tensor>& outputs);

// inputs[m] goes to the group's rank m; outputs[m] becomes what comes from there, and has its size. Either all members
// give lists or none does. Where a member expects another size than is sent, ArgumentError names both on all
// members.
Future<void> allToAll(const ProcessGroup& group, const std::vector<at::Tensor>& inputs,
                      std::vector<at::Tensor>& outputs);

// Copies `tensor` of the group's rank `root` to all members, in place. Any dtype. Members give the same shape and
// dtype. ArgumentError when the group has no such rank.
Future<void> broadcast(const ProcessGroup& group, at::Tensor& tensor, int root);

// Sends the numbers of a tensor to the group's rank `to`, whose `recv` gives a tensor of the same shape and dtype. Any
// dtype. Matching and failures are those of core/group.
Future<void> send(const ProcessGroup& group, const at::Tensor& tensor, int to);
Future<void> recv(const ProcessGroup& group, at::Tensor& tensor, int from);

}  // namespace treadle
