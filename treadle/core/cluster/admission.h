#pragma once
// Lets workers into an open job, one after the other, at the address where the job meets (docs/protocol/rendezvous.md).
// At the keeper, for as long as that is the keeper. A guest is given a rank, which nobody ever had; all who are there
// are told of it, and take its connections from then on; it is told of them, connects, and is in when it and all of
// them say that they are connected. One that is lost or too slow on the way is out for all, and the next comes.
//
// On the reactor's thread and those that read; nothing waits.

#include <deque>
#include <memory>
#include <set>

#include "treadle/core/cluster/keeper.h"
#include "treadle/core/cluster/rendezvous.h"

namespace treadle::cluster {

// How long one guest may take, while others wait for their turn.
inline constexpr Duration kAdmissionTime = std::chrono::seconds(20);

class Admission {
 public:
  // `roster`: where those listen that are there; `costs`: what all in the job know of its links. At the first of
  // `addresses` whose port is free, and at the socket beside it; FailedPrecondition naming the last one when none is.
  using RosterOf = std::function<Roster(const std::vector<int>& ranks)>;
  static Result<std::unique_ptr<Admission>> start(io::Reactor& reactor, const std::vector<io::Address>& addresses,
                                                  const link::Credentials& credentials, Membership& membership,
                                                  Keeper& keeper, int nextRank, RosterOf roster,
                                                  const Costs& costs = {});
  // The reactor's thread must have stopped, or `stop` been called.
  ~Admission();

  const io::Address& address() const { return address_; }  // the port's
  // Nobody comes in any more: who is on the way fails with `why`. The rank to give out next. Idempotent.
  int stop(const Status& why);

  class Core;

 private:
  Admission(std::shared_ptr<Core> core, Acceptors acceptors);

  std::shared_ptr<Core> core_;
  Acceptors acceptors_;
  const io::Address address_;
};

}  // namespace treadle::cluster
