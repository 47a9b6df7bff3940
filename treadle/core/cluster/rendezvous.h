#pragma once
// Where the workers of a job find each other (docs/protocol/rendezvous.md). Rank 0 serves at the master's address;
// every rank, rank 0 too, registers there with its world size and the addresses it listens on, gets the roster once
// all have come, connects to the others, reports that it is connected, and goes when all are. Whatever is wrong (a
// name used twice, another world size, a rank that started twice, one that left or never came) is told to all who
// have come, and to those who come later, and nobody goes.

#include <memory>
#include <string>
#include <vector>

#include "treadle/core/link/handshake.h"

namespace treadle::cluster {

// Roster entries are in the order of ranks; an address is the text that io::Address::parse takes, at most 16
// of them of 256 bytes each.
struct RosterEntry {
  WorkerInfo worker;
  std::vector<std::string> addresses;  // in the order in which to try them
};
using Roster = std::vector<RosterEntry>;  // by rank

// Rank 0's side, on the reactor's thread. Ends the wait for late ranks at the deadline.
class RendezvousServer {
 public:
  // At the first of `addresses` whose port is free. FailedPrecondition naming the last one when none is.
  static Result<std::unique_ptr<RendezvousServer>> start(io::Reactor& reactor,
                                                         const std::vector<io::Address>& addresses,
                                                         link::Credentials credentials, int worldSize,
                                                         Duration joinTimeout, TimePoint deadline);
  // The reactor's thread must have stopped.
  ~RendezvousServer();

  // When the job does not start: waits until all ranks have come, and so have been told why, at most until the
  // deadline.
  void tellLateComers(TimePoint deadline);
  // Closes the address and all connections. Idempotent.
  void stop();

  class Core;

 private:
  RendezvousServer(std::shared_ptr<Core> core, std::unique_ptr<link::Acceptor> acceptor);

  std::shared_ptr<Core> core_;
  std::unique_ptr<link::Acceptor> acceptor_;
};

// A worker's side: blocking, on the thread that joins.
class RendezvousClient {
 public:
  // Tries until the master answers at one of its addresses, or the deadline passes. At several others may answer: who
  // does not prove to know the secret is passed over then.
  static Result<std::unique_ptr<RendezvousClient>> connect(const std::vector<io::Address>& masters,
                                                           link::Credentials credentials, TimePoint deadline);

  // Registers and waits for all others. What the server found wrong; PeerLost when rank 0 went.
  Result<Roster> exchange(int worldSize, const std::vector<std::string>& addresses, TimePoint deadline);
  // Reports that this worker is connected to all and waits until all are.
  Status ready(TimePoint deadline);
  // Reports why this worker cannot join. What rank 0 then tells all: `why`, or what it had heard of before, which is
  // mostly the cause. `why` itself when rank 0 does not answer.
  Status giveUp(const Status& why, TimePoint deadline);

 private:
  explicit RendezvousClient(io::Fd fd) : fd_(std::move(fd)) {}

  io::Fd fd_;
};

}  // namespace treadle::cluster
