#pragma once
// What a worker is made of, in the order in which it is built; torn down in the reverse order, after the threads have
// stopped. Only the files of this room see it.

#include "treadle/core/cluster/admission.h"
#include "treadle/core/cluster/costs.h"
#include "treadle/core/cluster/key_service.h"
#include "treadle/core/cluster/rendezvous.h"
#include "treadle/core/cluster/status_socket.h"
#include "treadle/core/group/group_service.h"
#include "treadle/core/summation/services.h"
#include "treadle/core/worker/address_book.h"
#include "treadle/core/worker/worker.h"

namespace treadle {

class Worker::Core {
 public:
  static std::unique_ptr<Core> make(JoinOptions options, Launch launch);
  ~Core();

  // Makes the engine, which needs the worker and its extensions; then meets the others and connects to all.
  void start(Worker& worker, WorkerExtensions extensions);
  Status meet();
  // An open job: this worker, its keeper, lets another one be that before it leaves.
  void handOver();

  // Says `reason` to the peers (empty: the job is over), fails all that waits, stops the threads. Idempotent.
  void leave(const std::string& reason);

  Result<PeerChannels> channelsTo(int rank) const;
  static size_t memoryLimitBytes();

  const JoinOptions options;
  const Channels channels;
  const std::optional<cluster::Costs> givenCosts;  // of links, in place of measuring
  const Launch launch;
  const cluster::LauncherWatch launcher;  // reports which worker ended first
  const WorkerInfo self;
  const pid_t process;  // that joined
  std::unique_ptr<io::Reactor> reactor;
  std::unique_ptr<io::Executor> executor;
  io::ThreadCache laneThreads;
  std::unique_ptr<cluster::KeyService> keyService;
  std::atomic<bool> joined = false;
  std::unique_ptr<cluster::RendezvousServer> rendezvous;
  std::unique_ptr<cluster::Admission> admission;  // of the keeper of an open job
  std::vector<std::unique_ptr<link::Acceptor>> acceptors;
  std::unique_ptr<cluster::Membership> membership;
  std::unique_ptr<cluster::Coordinator> coordinator;
  std::unique_ptr<group::GroupService> groups;
  std::unique_ptr<summation::Services> summations;
  std::unique_ptr<rpc::Engine> engine;
  std::any extensionState;

 private:
  // A worker that is about to join an open job: it has a rank, and the keeper waits for it.
  struct Entrance {
    link::Credentials credentials;
    std::unique_ptr<cluster::RendezvousClient> client;
    TimePoint deadline;
    int rank;
  };

  Core(JoinOptions joinOptions, Launch launchInfo);

  // ---- core.cc
  void trimWhenIdle();
  Status meetAll();
  Status meetAt(const cluster::MasterAddresses& masters, TimePoint deadline);
  // Sets `client` as soon as rank 0 is reached.
  Status connectToAll(const cluster::MasterAddresses& masters, TimePoint deadline,
                      std::unique_ptr<cluster::RendezvousClient>& client);
  Status setCredentials(TimePoint deadline);
  Status connectTo(const cluster::RosterEntry& peer, TimePoint deadline);
  void beginMeasuring();
  bool sharesMemory() const;
  void setCosts(const cluster::Costs& costs);
  Result<io::Stream> dialFor(link::Purpose purpose, uint64_t number, int rank, TimePoint deadline) const;
  Result<io::Stream> dial(const cluster::RosterEntry& peer, const link::Credentials& credentials, TimePoint deadline,
                          AddressBook::Failures& failures) const;

  // ---- listening.cc
  Status listen();
  Result<std::vector<io::Address>> wantedAddresses() const;
  Status listenOn(const io::Address& address);
  Status checkAnnounced(const std::optional<io::Address>& listening) const;
  void onPeer(const WorkerInfo& worker, io::Stream stream);
  std::vector<std::string> announced() const;

  // ---- open_job.cc
  static Result<Entrance> enter(const JoinOptions& options, const Launch& launch);
  Status found();
  Status comeIn();
  Status connectToAll(const cluster::Present& present);
  Status startAdmission(int nextRank);
  void endHelpers();
  bool inBackground(UniqueFunction<void()> task);
  void dialBack(const WorkerInfo& worker);
  void takeOver(int nextRank);
  std::optional<int> closeAdmission(const Status& why);
  void removeMeetingFile(const io::Address& address) const;

  std::atomic<bool> left_ = false, leaving_ = false, dialsBack_ = false;
  std::optional<Entrance> entrance_;
  std::vector<std::string> listening_;  // the addresses
  link::Credentials credentials_;       // from `meet` on
  AddressBook addressBook_;
  cluster::Costs costs_;  // of the job's links; from before this worker connects to the others
  Mutex helperMutex_;
  std::unique_ptr<io::ThreadCache> helperThreads_ TREADLE_GUARDED_BY(helperMutex_) =
      std::make_unique<io::ThreadCache>();
};

}  // namespace treadle
