#pragma once
// One group's way to its members: who they are, and how a message gets to one. Owned by the group. Any thread may call
// anything; nothing here waits.
//
// All is sent with link::SendMode::kUrgent, for the senders are reading threads that must not wait for room. What may
// be queued is bounded by the protocol instead: see Note [What is under way] in group_core.h.

#include <vector>

#include "treadle/core/cluster/membership.h"
#include "treadle/core/group/messages.h"

namespace treadle::group {

class MemberLink {
 public:
  // `members` by rank in the group; `self` is this worker's rank there.
  MemberLink(cluster::Membership& membership, uint64_t group, std::vector<WorkerInfo> members, int self,
             Stream stream = Stream::kAll)
      : membership_(membership), group_(group), members_(std::move(members)), self_(self), stream_(stream) {}

  // For one stream between this member and another one: the sender of the data has rank 0, its receiver rank 1.
  MemberLink between(int peer, Stream stream) const;
  // For one stream of all members.
  MemberLink of(Stream stream) const { return MemberLink(membership_, group_, members_, self_, stream); }

  int size() const { return static_cast<int>(members_.size()); }
  uint64_t group() const { return group_; }  // its number, the same on all members
  int self() const { return self_; }
  const WorkerInfo& member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  // "worker 'ps' (rank 1)"; the rank is the one in the job.
  std::string nameOf(int rank) const { return link::describe(member(rank)); }
  // The rank in the group of the job's rank `jobRank`; -1 for a stranger.
  int memberOf(int jobRank) const;

  // The message's group and stream are filled in; the abort of a whole group is for all streams. `message.data` may be
  // borrowed: it is captured when this returns.
  Status send(int rank, Message message) const;
  // To every other member; the first failure.
  Status sendToOthers(Message message) const;

  // Why this member cannot be sent to; OK when it can.
  Status connected(int rank) const { return membership_.outgoing(member(rank).rank).status(); }
  // A member that does not keep to the protocol is lost from now on. Its connections are closed when that is known with
  // this reason: closing one of them first, its end of another might be noticed before.
  void lose(int rank, const Status& why) const;

 private:
  std::vector<std::byte> encoded(Message message) const;
  Status sendPayload(int rank, Bytes payload, const Buffer& data) const;

  cluster::Membership& membership_;
  const uint64_t group_;
  const std::vector<WorkerInfo> members_;
  const int self_;
  const Stream stream_;
};

}  // namespace treadle::group
