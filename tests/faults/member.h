#pragma once
// A member of process groups that may be a process of its own: it knows the other workers by sockets that the test
// gives it. The test and the program in member_program.cc execute the same cases of the fault matrix
// (tests/core/group/fault_case.h), with chunks that are large enough to be lent.

#include <system_error>

#include "tests/core/group/fault_case.h"
#include "tests/core/group/group_job.h"

namespace treadle::test {

inline const Setting kMembers{.size = 3, .victim = 1, .chunkBytes = memory::kSmallestBlock, .rest = 0};

// The same in both processes: those in which blocks are lent.
inline std::vector<Case> memberCases() {
  std::vector<Case> cases = casesOf(kMembers, {Phase::kAgreed, Phase::kMoving, Phase::kDone});
  std::erase_if(cases, [](const Case& one) { return one.cell.small(); });
  return cases;
}

class Member {
 public:
  // Lends blocks of the pool, and is connected to itself, as each worker is. Silence of a peer counts once `startWatch`
  // has been called.
  Member(int rank, memory::BlockPool& pool, Duration heartbeatTimeout)
      : worker_({LocalJob::nameOf(rank), rank}, kMembers.size, optionsOf(pool, heartbeatTimeout), {}),
        groups_(worker_),
        seat_(groups_, tap_, names(), rank) {
    tap_.connect(groups_.groups());
    membership().setHandler(link::Subject::kGroup, tap_);
    join(*this, *this);
  }
  ~Member() {
    groups_.groups().close(cancelled("the test is over"));
    membership().finish();
    worker_.executor->stop();
    membership().close("", Clock::now());
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  static std::vector<std::string> names() {
    std::vector<std::string> names;
    for (int rank = 0; rank < kMembers.size; ++rank) names.push_back(LocalJob::nameOf(rank));
    return names;
  }

  cluster::Membership& membership() { return *worker_.membership; }
  group::Job& job() { return groups_; }
  Tap& tap() { return tap_; }
  Seat& seat() { return seat_; }
  // The calls of the one to the other; both are in this process.
  static void join(Member& from, Member& to) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0)
      throw std::system_error(errno, std::generic_category(), "socketpair");
    io::Fd calls(ends[0]), serving(ends[1]);
    to.attach(from.seat().rank(), std::move(serving), link::Connection::Kind::kServing);
    from.attach(to.seat().rank(), std::move(calls), link::Connection::Kind::kCalls);
  }
  void attach(int peer, io::Fd socket, link::Connection::Kind kind) {
    throwIfError(membership().attach({LocalJob::nameOf(peer), peer}, std::move(socket), kind));
  }
  // Memory is shared with the peer.
  bool lendsTo(int peer) { return valueOrThrow(membership().channels(peer)).sharedMemory.inUse; }
  // All members have come so far.
  Future<void> ready() { return barrier(ProcessGroup::make(groups_, names(), {.name = "ready"})); }

 private:
  static cluster::MembershipOptions optionsOf(memory::BlockPool& pool, Duration heartbeatTimeout) {
    cluster::MembershipOptions options{.heartbeatTimeout = heartbeatTimeout, .connection = {}};
    options.connection.pool = &pool;
    options.lendLimitBytes = pool.limitBytes() / 2;
    return options;
  }

  Tap tap_;
  LocalWorker worker_;
  GroupWorker groups_;
  Seat seat_;
};

}  // namespace treadle::test
