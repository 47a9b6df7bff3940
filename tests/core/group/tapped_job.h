#pragma once
// A job whose members have one group, each behind a tap, so that a member comes to a phase of an operation and gets no
// further. One thread.

#include <deque>

#include "tests/core/group/group_job.h"
#include "tests/core/group/tap.h"

namespace treadle::test {

class TappedJob {
 public:
  explicit TappedJob(int size, const GroupOptions& options = {})
      : taps_(static_cast<size_t>(size)),
        job_(size, {},
             [this](int rank, group::GroupService& service) -> cluster::MessageHandler& {
               tap(rank).connect(service);
               return tap(rank);
             }),
        groups_(job_.makeAll(options)) {
    std::vector<Future<void>> meeting;  // now each tap knows the group
    for (const ProcessGroup& group : groups_) meeting.push_back(barrier(group));
    waitAll(meeting);
  }

  std::vector<ProcessGroup>& groups() { return groups_; }
  ProcessGroup& group(int rank) { return groups_[static_cast<size_t>(rank)]; }
  static std::string nameOf(int rank) { return LocalJob::nameOf(rank); }

  // The member gets none of the messages for which the rule holds.
  void hold(int rank, Tap::Rule rule) { tap(rank).setRule(tap(rank).groupAt(0), std::move(rule)); }
  void waitUntilHeld(int rank, int messages) { tap(rank).heldOf(tap(rank).groupAt(0)).waitFor(messages); }
  void waitUntilSeen(int rank, int messages) { tap(rank).seenOf(tap(rank).groupAt(0)).waitFor(messages); }
  int seen(int rank) { return tap(rank).seenOf(tap(rank).groupAt(0)).count(); }
  // How many messages the members have got from each other.
  int messages() {
    int messages = 0;
    for (Tap& tap : taps_) messages += tap.seenOf(tap.groupAt(0)).count();
    return messages;
  }
  void letGo() {
    for (Tap& tap : taps_) tap.letGo();
  }
  void kill(int rank) { job_.local().kill(rank); }

  // The member's call has failed because that one is lost.
  static void expectLoss(const Future<void>& future, int lost) {
    const Status why = failureOf(future);
    EXPECT_EQ(why.code(), Code::kPeerLost) << why.toString();
    EXPECT_EQ(why.worker(), nameOf(lost));
  }

 private:
  Tap& tap(int rank) { return taps_[static_cast<size_t>(rank)]; }

  std::deque<Tap> taps_;
  GroupJob job_;
  std::vector<ProcessGroup> groups_;
};

}  // namespace treadle::test
