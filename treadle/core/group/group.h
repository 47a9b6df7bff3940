#pragma once
// Process groups and their collective operations over plain memory: what several workers do together, each calling
// the same operations in the same order. Operations are asynchronous, any number may be under way, and nothing spins.
//
// A Group is a handle; copies mean the same group. It may outlive its job, when every operation fails. Any thread may
// call anything, but members match operations by the order of the calls: let one thread at a time make them.
//
// The memory of an operation belongs to it until the future is ready: do not touch it, and do not free it. After a
// failure what is in it is unspecified. `cancel` on the future returns when the memory is free; on a thread that polls
// or reads it may return before, as such a thread never waits, and the memory is free when the future is ready.
//
// Each operation ends: with its result, which is the same bits on every member; at the group's `timeout`, with
// TimeoutError naming who has not taken part; with ArgumentError on all members when they do not call the same; and
// with PeerLostError, as do all later ones, when a member is lost. Who gives up tells the others.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/group/data_type.h"
#include "treadle/core/group/job.h"
#include "treadle/core/group/options.h"
#include "treadle/core/io/future.h"

namespace treadle::group {

class GroupCore;

class Group {
 public:
  // `members` are names of workers, by rank in the group; this worker must be one. Every member makes the group by the
  // same list, the n-th such call there and here meaning the same group; nothing is sent. ArgumentError: a name twice,
  // this worker missing, options out of range. NotFoundError: an unknown name.
  static Group make(Job& job, std::vector<std::string> members, GroupOptions options = {});

  Group() = default;  // means no group; everything but `valid` throws StateError

  bool valid() const { return core_ != nullptr; }
  int rank() const;
  int size() const;
  std::vector<std::string> members() const;
  const GroupOptions& options() const;

  // For operations on groups.
  GroupCore& core() const;

 private:
  explicit Group(std::shared_ptr<GroupCore> core) : core_(std::move(core)) {}

  std::shared_ptr<GroupCore> core_;
};

// Large data goes around a ring (P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters
// of workstations", 2009): each member sends and takes 2 (n-1)/n times its size. Small data
// (GroupOptions::smallBytes) is sent to all at once. Sums, averages and products of 16-bit floats are those of float64,
// rounded once: large ones go by as many bytes, each segment to the member that combines it and from there to all.
// data[i] = the sum (or what `op` says) of data[i] of all members; `count` elements of `type`, aligned for it.
Future<void> allReduce(const Group& group, void* data, size_t count, DataType type, ReduceOp op = ReduceOp::kSum);

template <Reducible T>
Future<void> allReduce(const Group& group, std::span<T> values, ReduceOp op = ReduceOp::kSum) {
  return allReduce(group, values.data(), values.size(), DataTypeOf<T>::kValue, op);
}

// What the group's rank `root` (a rank in the group, not in the job) has in `bytes`, on all members, who give
// memory of the same size. ArgumentError: no such rank.
Future<void> broadcast(const Group& group, MutableBytes bytes, int root);

template <class T>
  requires(std::is_trivially_copyable_v<T> && !std::is_const_v<T> && !std::is_same_v<T, std::byte>)
Future<void> broadcast(const Group& group, std::span<T> values, int root) {
  return broadcast(group, std::as_writable_bytes(values), root);
}

// Ready when all members have called it equally often. Its place is among the other operations of the group.
Future<void> barrier(const Group& group);

}  // namespace treadle::group

namespace treadle {

using group::allReduce;
using group::barrier;
using group::broadcast;
using group::Group;
using group::GroupOptions;
using group::ReduceOp;

}  // namespace treadle
