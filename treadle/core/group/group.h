#pragma once
// Process groups and their collective operations over plain memory: several workers call the same operations in the
// same order. Operations are asynchronous, any number may be in flight, and nothing spins.
//
// A ProcessGroup is a handle; copies mean the same group. It may outlive its job; every operation fails then. Any
// thread may call any function, but members match operations by the order of the calls: use one thread at a time.
//
// An operation owns its memory until the future is ready: do not touch it, and do not free it. After a failure the
// contents are unspecified. `cancel` on the future returns when the memory is free. A thread that polls or reads never
// waits: there it may return earlier, and the memory is free when the future is ready.
//
// Each operation ends: with its result, which has the same bits on every member that gets it; at its timeout,
// with TimeoutError naming the members that have not taken part (in a group of more than 16 they are asked first, for a
// second at most); with ArgumentError on all members when their calls
// differ; and with PeerLostError when a member is lost, as do all later operations. A member that gives up notifies the
// others.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/group/data_type.h"
#include "treadle/core/group/job.h"
#include "treadle/core/group/options.h"
#include "treadle/core/io/future.h"

namespace treadle::group {

class GroupCore;
struct Call;
struct Description;
struct Signature;
enum class Stream : uint8_t;

class ProcessGroup {
 public:
  // `members` are names of workers, by rank in the group; this worker must be one of them. Every member makes the group
  // with the same list. The n-th such call on each member means the same group; nothing is sent. ArgumentError: a
  // duplicate name, this worker missing, a summation server (Worker::servers), options out of range. NotFoundError: an
  // unknown name.
  static ProcessGroup make(Job& job, std::vector<std::string> members, GroupOptions options = {});

  ProcessGroup() = default;  // means no group; every function except `valid` throws StateError

  bool valid() const { return core_ != nullptr; }
  int rank() const;
  int size() const;
  std::vector<std::string> members() const;
  const GroupOptions& options() const;
  Duration timeout() const;     // of operations that are called through this handle
  Algorithm algorithm() const;  // likewise; kAutomatic: none is forced

  // The same group; operations that are called through this handle have this limit in place of GroupOptions::timeout:
  // `allReduce(group.withTimeout(5s), tensor)`. Members may use different ones. ArgumentError: not positive.
  ProcessGroup withTimeout(Duration timeout) const;
  // The same group. Large operations that are called with this handle go before those of less urgency once all members
  // have begun them; of the same urgency, the first one goes first. 0 by default. For members that need the result of a
  // later operation first. Two large ones of a group move at a time, so a less urgent one may move beside one that is
  // urgent, and others stop. Their time limits go on meanwhile. One that was called 64 and more after an operation that
  // has not ended waits for that. The urgency is the same on all members, as a mismatch fails the operation. It does
  // not count for send, recv and pushPull.
  ProcessGroup withUrgency(uint32_t urgency) const;
  // The same group; operations that are called with this handle go by this algorithm in place of
  // GroupOptions::algorithm. kAutomatic: by the fastest one that GroupOptions::sumOrder allows. ArgumentError of an
  // operation that it cannot do. The same on all members, as a mismatch fails the operation. It does not count for
  // barrier, send, recv and pushPull.
  ProcessGroup withAlgorithm(Algorithm algorithm) const;
  // The same group; operations that are called through this handle say what their data is, such as "float32 [2, 3]",
  // where others have a number of elements or bytes. Members whose texts differ fail as where these numbers differ, and
  // the error has both texts. Operations on tensors use it, so a tensor meets no plain memory. pushPull and
  // sparseAllReduce have texts of their own. ArgumentError: more than 2,048 bytes.
  ProcessGroup withShape(std::string shape) const;

  // For operations on groups, and the rooms above.
  static ProcessGroup makeWithServers(Job& job, std::vector<std::string> members, GroupOptions options);
  Result<Algorithm> algorithmFor(const Description& what) const;
  GroupCore& core() const;
  Job& job() const;  // in which the group was made; it must still live
  Future<void> start(Call call) const;
  Future<void> startWith(int peer, Stream stream, Call call) const;
  Future<void> offer(std::string name, Signature signature, void* data, bool timeoutUntilMatched) const;

 private:
  ProcessGroup(Job& job, std::shared_ptr<GroupCore> core);

  std::shared_ptr<GroupCore> core_;
  Job* job_ = nullptr;
  Duration timeout_{};  // of operations
  uint32_t urgency_ = 0;
  Algorithm algorithm_ = Algorithm::kAutomatic;
  std::string shape_;
};

// data[i] becomes the sum (or the reduction `op`) of data[i] of all members; `count` elements of `type`, aligned for
// it. The group takes the algorithm with the shortest predicted time (`treadle plan` shows it), or the one that
// GroupOptions::algorithm forces. Large data goes around a ring (P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", 2009), in 2 log2 n rounds (J. L. Träff, arXiv 2410.14234), or each block to
// the member that combines it and from there to all: each member sends and receives 2 (n-1)/n times the data's size.
// Between h hosts with several members each, members of a host may first combine their data among themselves (M. Cho et
// al., "BlueConnect", 2019): each host then sends and receives 2 (h-1)/h times the data's size.
// Small data (GroupOptions::smallBytes) is also sent to all members at once or, in a group of more than 16, along a
// tree. Sums, averages and products of 16-bit floats are rounded once. They are computed in float64, or in float32
// where members pass on partial results (around a ring, in rounds, by hosts, along a tree; not with SumOrder::kRank),
// which then take twice the bytes, also in memory, and overflow where float32 does. ArgumentError: the type has no such
// reduction (checkReduces). ResourceError on all members: a member has no memory for partial results.
Future<void> allReduce(const ProcessGroup& group, void* data, size_t count, DataType type,
                       ReduceOp op = ReduceOp::kSum);

template <Reducible T>
Future<void> allReduce(const ProcessGroup& group, std::span<T> values, ReduceOp op = ReduceOp::kSum) {
  return allReduce(group, values.data(), values.size(), DataTypeOf<T>::kValue, op);
}

// As allReduce, but out of place, and only the group's rank `root` gets the result, in `output`, which is as large as
// the input; the others do not use theirs. The input stays as it is. The root's output may be its input. Each member
// sends its data once. The values are combined in the order of ranks, in double for 16-bit floats. ArgumentError: no
// such rank, an output of another size.
Future<void> reduce(const ProcessGroup& group, Bytes input, MutableBytes output, DataType type, int root,
                    ReduceOp op = ReduceOp::kSum);

template <Reducible T>
Future<void> reduce(const ProcessGroup& group, std::span<const T> input, std::span<T> output, int root,
                    ReduceOp op = ReduceOp::kSum) {
  return reduce(group, std::as_bytes(input), std::as_writable_bytes(output), DataTypeOf<T>::kValue, root, op);
}

// The input is cut into a block for each member, `counts[rank]` elements of `type` in the order of ranks, and the
// output becomes the reduction of this member's block of all members. Without counts all blocks are as large as the
// output. The input stays as it is. Each member sends the size of all blocks but its own: directly, or in log2 n rounds
// (Träff, as above), which take memory for the blocks of half of the members. Values are combined as by allReduce: with
// SumOrder::kRank in the order of ranks. ArgumentError: an input or output that has not the size of its blocks, not a
// count for each member, no such reduction.
Future<void> reduceScatter(const ProcessGroup& group, Bytes input, MutableBytes output, DataType type,
                           ReduceOp op = ReduceOp::kSum, std::vector<uint64_t> counts = {});

template <Reducible T>
Future<void> reduceScatter(const ProcessGroup& group, std::span<const T> input, std::span<T> output,
                           ReduceOp op = ReduceOp::kSum, std::vector<uint64_t> counts = {}) {
  return reduceScatter(group, std::as_bytes(input), std::as_writable_bytes(output), DataTypeOf<T>::kValue, op,
                       std::move(counts));
}

// These copy bytes. `sizes` are those of the members' blocks, by rank in the group and the same on all members; without
// any, all blocks are of the same size. Blocks lie one after the other in the order of ranks. Input and output do not
// overlap. ArgumentError: an input or output that has not the size of its blocks; no such root.

// The output becomes the inputs of all members, one after the other. Each member sends its input n-1 times; or all
// members together send as much in log2 n rounds, in which they pass on what they have received (Träff, as above).
Future<void> allGather(const ProcessGroup& group, Bytes input, MutableBytes output, std::vector<uint64_t> sizes = {});

// The same, but only the group's rank `root` has an output; the others give none.
Future<void> gather(const ProcessGroup& group, Bytes input, MutableBytes output, int root,
                    std::vector<uint64_t> sizes = {});

// The output becomes this member's block of the input of the group's rank `root`; the others give no input.
Future<void> scatter(const ProcessGroup& group, Bytes input, MutableBytes output, int root,
                     std::vector<uint64_t> sizes = {});

// Block m of the input goes to the group's rank m, where it becomes the block of this member in the output. `sent` and
// `received` are the sizes of the blocks of the input and of the output, which differ from member to member; either all
// members give sizes or none does. Where a member expects another size than is sent, ArgumentError names both on all
// members.
Future<void> allToAll(const ProcessGroup& group, Bytes input, MutableBytes output, std::vector<uint64_t> sent = {},
                      std::vector<uint64_t> received = {});

// Copies `bytes` of the group's rank `root` (a rank in the group, not in the job) to all members, which give memory of
// the same size. ArgumentError: no such rank.
Future<void> broadcast(const ProcessGroup& group, MutableBytes bytes, int root);

template <class T>
  requires(std::is_trivially_copyable_v<T> && !std::is_const_v<T> && !std::is_same_v<T, std::byte>)
Future<void> broadcast(const ProcessGroup& group, std::span<T> values, int root) {
  return broadcast(group, std::as_writable_bytes(values), root);
}

// Ready when all members have called it the same number of times. It keeps its order among the group's operations.
Future<void> barrier(const ProcessGroup& group);

// Sends the bytes to the group's rank `to`, whose `recv` gives memory of the same size. The n-th send from one member
// to another meets the n-th recv there, also when one of the two failed earlier; they keep no order with other
// operations of the group. There are no tags: a stream of its own is a group of its own (another GroupOptions::name).
// The send ends well when the other member has called its recv and the bytes are on their way, so call `barrier` before
// a member leaves. It fails as collective operations do: at its timeout, when the sizes differ, and when any member of
// the group is lost. ArgumentError: no such rank; this member's own.
Future<void> send(const ProcessGroup& group, Bytes bytes, int to);
Future<void> recv(const ProcessGroup& group, MutableBytes bytes, int from);

template <class T>
  requires(std::is_trivially_copyable_v<T> && !std::is_same_v<std::remove_const_t<T>, std::byte>)
Future<void> send(const ProcessGroup& group, std::span<T> values, int to) {
  return send(group, std::as_bytes(values), to);
}

template <class T>
  requires(std::is_trivially_copyable_v<T> && !std::is_const_v<T> && !std::is_same_v<T, std::byte>)
Future<void> recv(const ProcessGroup& group, std::span<T> values, int from) {
  return recv(group, std::as_writable_bytes(values), from);
}

// As allReduce, but members match the data by its name and not by the order of their calls: each member offers the same
// names, in any order and from any threads, many at a time. Small data (up to 4 MiB) of one type and reduction is
// summed together; larger data is cut, so that small data need not wait for all of it. An offer is a small message to
// the group's rank 0, which answers when all members have offered the name. Pieces of large data are summed where they
// lie, and small data is copied. What is summed together depends on what comes when, and so do the last bits of sums of
// floating-point numbers unless GroupOptions::sumOrder is kRank.
//
// The n-th offer of a name meets the n-th of the other members, also when one of them has failed. If shapes, types or
// reductions differ, the offers of this name fail on all members with ArgumentError naming two members and the
// difference; other names go on. At its timeout, or up to 4 s later while an answer is awaited, an offer fails with
// TimeoutError naming the members that have not offered it, on all members, and a late member's too; rank 0's log names
// them before (GroupOptions::stallReport). An offer that is cancelled, or late, after its data has come into the sum
// with others fails on this member alone. Before, when all have offered it, it fails the sum: all that is in it, up to
// 1,024 names, fails on all members and may be offered again. So does any other failure of a sum, but the group goes
// on. Large data that has failed may hold some pieces with sums.
//
// ArgumentError at once: a name that is empty, longer than 255 bytes or has control characters; a shape of other than
// `count` elements; no such reduction; GroupOptions::algorithm cannot do all-reduces of every size. StateError: the
// name is in flight here. ResourceError: 16,384 names are in flight here.
Future<void> pushPull(const ProcessGroup& group, std::string_view name, void* data, size_t count, DataType type,
                      PushPullOptions options = {});

template <Reducible T>
Future<void> pushPull(const ProcessGroup& group, std::string_view name, std::span<T> values,
                      PushPullOptions options = {}) {
  return pushPull(group, name, values.data(), values.size(), DataTypeOf<T>::kValue, std::move(options));
}

}  // namespace treadle::group

namespace treadle {

using group::Algorithm;
using group::allGather;
using group::allReduce;
using group::allToAll;
using group::barrier;
using group::broadcast;
using group::gather;
using group::GroupOptions;
using group::ProcessGroup;
using group::pushPull;
using group::PushPullOptions;
using group::recv;
using group::reduce;
using group::ReduceOp;
using group::reduceScatter;
using group::scatter;
using group::send;
using group::SumOrder;

}  // namespace treadle
