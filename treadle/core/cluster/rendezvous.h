#pragma once
// Where the workers of a job find each other (docs/protocol/rendezvous.md). Rank 0 serves at the master's address;
// every rank, rank 0 too, registers there with its world size and the addresses it listens on, gets the roster once
// all have come, connects to the others, reports that it is connected, and goes when all are. Whatever is wrong (a
// name used twice, another world size, a rank that started twice, one that left or never came) is told to all who
// have come, and to those who come later, and nobody goes. When all have come, rank 0 measures what the links cost
// (cost_survey.h) and sends that with the roster.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "treadle/core/cluster/costs.h"
#include "treadle/core/cluster/meeting_point.h"
#include "treadle/core/cluster/roster_entry.h"

namespace treadle::cluster {

using Roster = std::vector<RosterEntry>;  // by rank

// Who is in an open job when a worker comes.
struct Present {
  int keeper = -1;  // its rank
  Roster workers;   // by rank, with gaps
  Costs costs = {};
};

// How many ranks a job has, and how many of them, the highest ones, are servers.
struct World {
  World(int ofRanks, int ofServers = 0) : ranks(ofRanks), servers(ofServers) {}  // NOLINT: a number is a world
  bool operator==(const World&) const = default;

  int ranks, servers;
};

enum class Step : uint8_t;
struct RendezvousMessage;

// Rank 0's side, on the reactor's thread. Ends the wait for late ranks at the deadline.
class RendezvousServer {
 public:
  // At the first of `addresses` whose port is free, and at the socket beside it. FailedPrecondition naming the last one
  // when none is.
  static Result<std::unique_ptr<RendezvousServer>> start(io::Reactor& reactor,
                                                         const std::vector<io::Address>& addresses,
                                                         const link::Credentials& credentials, World world,
                                                         Duration joinTimeout, TimePoint deadline);
  // The reactor's thread must have stopped.
  ~RendezvousServer();

  // The server asks before it reports a failure: `causeOf` returns that failure, or what is behind it if somebody else
  // knows. It is called under the server's lock, by any thread, until `stop`.
  using CauseOf = std::function<Status(const Status& why)>;
  void setCause(CauseOf causeOf);
  // Reports to all that the job does not start because of `why`, unless it failed before. Returns why it failed.
  Status fail(const Status& why);
  // The costs that go with the roster; defaults until then.
  void setCosts(const Costs& costs);
  // They are measured. `known`: what this worker knows before it measures links; it goes for all that is not measured
  // within `time` and kSurveyPatience. `sharesMemory`: workers of a host do.
  void measureFrom(const Costs& known, bool sharesMemory, Duration time = kSurveyTime);
  // When the job does not start: waits until all ranks have come, and so have been told why, at most until the
  // deadline.
  void tellLateComers(TimePoint deadline);
  // Closes the address and all connections. Idempotent.
  void stop();
  const io::Address& address() const { return acceptors_.front()->address(); }  // the port's; before `stop`

  class Core;

 private:
  RendezvousServer(std::shared_ptr<Core> core, Acceptors acceptors);

  std::shared_ptr<Core> core_;
  Acceptors acceptors_;
};

// Where the master may be; asked again for every try, as it may not be known yet. Never an empty list.
using MasterAddresses = std::function<Result<std::vector<io::Address>>()>;

// A worker's side: blocking, on the thread that joins.
class RendezvousClient {
 public:
  // Tries until the master answers at one of its addresses, or the deadline passes; first at the sockets beside them.
  // At several others may answer: who does not prove to know the secret is passed over then. So they may be where an
  // address is `uncertain`.
  static Result<std::unique_ptr<RendezvousClient>> connect(const MasterAddresses& masters,
                                                           link::Credentials credentials, TimePoint deadline,
                                                           bool uncertain = false);

  // Of an open job: waits for this worker's turn to join, and yields its rank.
  Result<int> awaitRank(TimePoint deadline);
  // Of an open job: registers and waits until all who are there know of this worker.
  Result<Present> comeIn(const std::vector<std::string>& addresses, TimePoint deadline);

  // Is told of each of those that is lost until `ready` returns.
  void onGone(std::function<void(int rank)> lost) { onGone_ = std::move(lost); }
  // Whether one is before the deadline. What rank 0 found wrong.
  Result<bool> awaitGone(TimePoint deadline);

  // Registers and waits for all others. What the server found wrong; PeerLost when rank 0 went.
  Result<Roster> exchange(World world, const std::vector<std::string>& addresses, TimePoint deadline);
  // What the links of the job cost, as it came with the roster.
  const Costs& costs() const { return costs_; }
  // Reports that this worker is connected to all and waits until all are.
  Status ready(TimePoint deadline);
  // Reports why this worker cannot join. Returns rank 0's verdict for all: `why`, or what rank 0 heard of before, which
  // is mostly the cause. PeerLost naming rank 0 when that is lost: it may be the cause too. `why` when rank 0 is
  // silent.
  Status giveUp(const Status& why, TimePoint deadline);

 private:
  RendezvousClient(io::Stream stream, WorkerInfo server) : server_(std::move(server)), stream_(std::move(stream)) {}

  Result<RendezvousMessage> next(TimePoint deadline);
  Result<RendezvousMessage> receive(Step expected, TimePoint deadline);
  Status serverLost(const Status& why) const;
  std::string whereTheyMeet() const;

  const WorkerInfo server_;  // rank 0, or who keeps the open job
  io::Stream stream_;
  Status verdict_;  // why the job does not start, once rank 0 has said so
  Costs costs_;
  std::function<void(int rank)> onGone_ = [](int) {};
};

}  // namespace treadle::cluster
