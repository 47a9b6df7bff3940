#pragma once
// What a worker is made of, in the order in which it is built; torn down in the reverse order, after the threads have
// stopped. Only the files of this room see it.

#include "treadle/core/cluster/key_service.h"
#include "treadle/core/cluster/rendezvous.h"
#include "treadle/core/group/group_service.h"
#include "treadle/core/worker/worker.h"

namespace treadle {

class Worker::Core {
 public:
  static std::unique_ptr<Core> make(JoinOptions options, Launch launch);
  ~Core();

  // Makes the engine, which needs the worker and its extensions; then meets the others and connects to all.
  void start(Worker& worker, WorkerExtensions extensions);
  Status meet();
  Status meetAt(const std::vector<io::Address>& masters, const link::Credentials& credentials, TimePoint deadline);

  // Says `reason` to the peers (empty: the job is over), fails all that waits, stops the threads. Idempotent.
  void leave(const std::string& reason);

  Result<PeerChannels> channelsTo(int rank) const;
  static size_t memoryLimitBytes();

  const JoinOptions options;
  const Channels channels;
  const Launch launch;
  const WorkerInfo self;
  const pid_t process;  // that joined
  std::unique_ptr<io::Reactor> reactor;
  std::unique_ptr<io::Executor> executor;
  io::ThreadCache laneThreads;
  std::unique_ptr<cluster::KeyService> keyService;
  std::atomic<bool> joined = false;
  std::unique_ptr<cluster::RendezvousServer> rendezvous;
  std::vector<std::unique_ptr<link::Acceptor>> acceptors;
  std::unique_ptr<cluster::Membership> membership;
  std::unique_ptr<cluster::Coordinator> coordinator;
  std::unique_ptr<group::GroupService> groups;
  std::shared_ptr<rpc::Engine> engine;
  std::any extensionState;

 private:
  Core(JoinOptions joinOptions, Launch launchInfo);

  Result<link::Credentials> credentials(TimePoint deadline);
  Status listen(const link::Credentials& credentials);
  Status listenOn(const io::Address& address, const link::Credentials& credentials);
  Status connectTo(const cluster::RosterEntry& peer, const link::Credentials& credentials, TimePoint deadline);
  // Why the addresses of a peer that come before the one in use could not be connected to.
  struct DialFailures {
    std::string unixSockets, tcp;
  };
  Result<io::Fd> dial(const cluster::RosterEntry& peer, const link::Credentials& credentials, TimePoint deadline,
                      DialFailures* failures = nullptr) const;
  std::vector<std::string> addresses() const;

  std::atomic<bool> left_ = false;
  cluster::Roster roster_;                  // from `meet` on
  std::vector<DialFailures> dialFailures_;  // by rank; likewise
};

}  // namespace treadle
