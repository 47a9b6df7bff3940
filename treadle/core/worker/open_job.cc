// Open jobs: how a worker begins one, comes into one that there is, and lets others in.

#include "treadle/core/base/log.h"
#include "treadle/core/cluster/host_costs.h"
#include "treadle/core/cluster/meeting_file.h"
#include "treadle/core/worker/core.h"
#include "treadle/core/worker/meeting.h"

namespace treadle {
namespace {

// A worker that comes in looks so often whether one that it cannot reach has been given up by all.
constexpr Duration kLook = std::chrono::milliseconds(50);
constexpr Duration kTriedAgainAfter = std::chrono::seconds(1);

}  // namespace

// The keeper lets one in at a time, so that this takes as long as those before need. When the keeper leaves meanwhile
// there will be another one.
Result<Worker::Core::Entrance> Worker::Core::enter(const JoinOptions& options, const Launch& launch) {
  const TimePoint deadline = deadlineAfter(options.joinTimeout);
  Result<link::Credentials> credentials =
      credentialsAtMeeting({options.name, cluster::kAnyRank}, launch, options, deadline);
  if (!credentials.ok()) return std::move(credentials).status();
  Entrance entrance{std::move(*credentials), nullptr, deadline, cluster::kAnyRank};
  Result<cluster::MasterAddresses> masters = whereToMeet(launch, options);
  if (!masters.ok()) return std::move(masters).status();
  for (;;) {
    auto client = cluster::RendezvousClient::connect(*masters, entrance.credentials, entrance.deadline,
                                                     !launch.meetingFile.empty());
    if (!client.ok()) return std::move(client).status();
    Result<int> rank = (*client)->awaitRank(entrance.deadline);
    if (!rank.ok() && rank.status().code() == Code::kPeerLost) continue;
    if (!rank.ok()) return std::move(rank).status();
    entrance.rank = entrance.credentials.self.worker.rank = *rank;
    entrance.client = std::move(*client);
    return entrance;
  }
}

// A job of one worker, which others may join.
Status Worker::Core::found() {
  TimePoint deadline = deadlineAfter(options.joinTimeout);
  TREADLE_RETURN_IF_ERROR(setCredentials(deadline));
  TREADLE_RETURN_IF_ERROR(listen());
  cluster::RosterEntry own{self, announced()};
  addressBook_.add(own);
  setCosts(givenCosts ? *givenCosts : cluster::costsOfThisHost());
  TREADLE_RETURN_IF_ERROR(connectTo(own, deadline));
  TREADLE_RETURN_IF_ERROR(membership->awaitConnected(deadline));
  membership->welcome(self.rank);
  coordinator->setKeeper(self.rank);
  coordinator->keeper().begin(true);
  membership->startWatch();
  dialsBack_ = joined = true;
  return startAdmission(1);
}

Status Worker::Core::startAdmission(int nextRank) {
  Result<std::vector<io::Address>> places = listenAddresses(launch, options);
  if (!places.ok()) return std::move(places).status();
  if (launch.jobKey.empty() && !credentials_.jobKey.empty() && !keyService) {
    auto service = cluster::KeyService::start(*reactor, launch.meetingName(), credentials_.jobKey);
    if (!service.ok()) return std::move(service).status();
    keyService = std::move(*service);
  }
  auto started = cluster::Admission::start(
      *reactor, *places, credentials_, *membership, coordinator->keeper(), nextRank,
      [this](const std::vector<int>& ranks) { return addressBook_.entries(ranks); }, costs_);
  if (!started.ok()) return std::move(started).status();
  admission = std::move(*started);
  return launch.meetingFile.empty() ? Status() : cluster::writeMeetingFile(launch.meetingFile, admission->address());
}

// Everybody who is there knows of this worker when it is told of them; it connects to each, and each then to it.
Status Worker::Core::comeIn() {
  cluster::RendezvousClient& client = *entrance_->client;
  const TimePoint deadline = std::min(entrance_->deadline, deadlineAfter(cluster::kAdmissionTime));
  credentials_ = entrance_->credentials;
  TREADLE_RETURN_IF_ERROR(listen());
  Result<cluster::Present> present = client.comeIn(announced(), deadline);
  if (!present.ok()) return std::move(present).status();
  client.onGone([this](int rank) { membership->lose(rank, cancelled("the keeper of the job says so")); });
  Status connected = connectToAll(*present);
  if (!connected.ok()) return client.giveUp(connected, deadline);
  dialsBack_ = true;
  TREADLE_RETURN_IF_ERROR(client.ready(deadline));
  for (const cluster::RosterEntry& entry : present->workers) membership->welcome(entry.worker.rank);
  joined = true;
  entrance_.reset();
  return {};
}

// One that dies meanwhile is no reason to fail: the keeper tells that it is out.
Status Worker::Core::connectToAll(const cluster::Present& present) {
  const TimePoint deadline = std::min(entrance_->deadline, deadlineAfter(cluster::kAdmissionTime));
  for (const cluster::RosterEntry& entry : present.workers) {
    addressBook_.add(entry);
    membership->expect(entry.worker);
  }
  setCosts(present.costs);
  coordinator->setKeeper(present.keeper);
  membership->loseUnexpected();
  membership->startWatch();  // those that are connected already watch this worker
  for (const cluster::RosterEntry& entry : present.workers) {
    Status connected = connectTo(entry, deadline);
    while (!connected.ok() && !membership->lossOf(entry.worker.rank)) {
      auto gone = entrance_->client->awaitGone(std::min(deadline, deadlineAfter(2 * options.heartbeatTimeout)));
      if (!gone.ok()) return std::move(gone).status();
      if (!*gone) return connected;
    }
  }
  for (;;) {
    Status connected = membership->awaitConnected(std::min(deadline, deadlineAfter(kLook)));
    if (connected.ok() || Clock::now() >= deadline) return connected;
    auto gone = entrance_->client->awaitGone(Clock::now());
    if (!gone.ok()) return std::move(gone).status();
  }
}

// On a thread that may wait, unless this worker leaves.
bool Worker::Core::inBackground(UniqueFunction<void()> task) {
  MutexLock lock(helperMutex_);
  return helperThreads_ && helperThreads_->run(task);
}

// It has connected to this worker, so it takes connections.
void Worker::Core::dialBack(const WorkerInfo& worker) {
  bool begun = inBackground([this, worker] {
    Status connected = connectTo(addressBook_.entry(worker.rank), deadlineAfter(options.heartbeatTimeout));
    if (connected.ok()) return coordinator->connectedTo(worker.rank);
    if (!left_) coordinator->suspect(worker.rank, connected);
  });
  if (!begun && !leaving_) coordinator->suspect(worker.rank, resourceExhausted("it has no thread to connect to it"));
}

void Worker::Core::takeOver(int nextRank) {
  bool begun = inBackground([this, nextRank] {
    const WorkerInfo keeper = membership->info(coordinator->keeperRank());
    coordinator->beginTakingOver();
    Status started = startAdmission(nextRank);
    if (!started.ok())
      logWarn(self.name, "this worker is the keeper of the job now, but nobody can join it: " + started.message());
    if (coordinator->tookOver()) return;
    closeAdmission(peerLost(keeper.name, "the keeper of the job, " + link::describe(keeper) +
                                             ", was lost, and nobody can join it any more"));
    keyService.reset();
  });
  if (begun || leaving_) return;
  logWarn(self.name, "this worker has no thread to become the keeper of the job on; it tries again");
  reactor->at(deadlineAfter(kTriedAgainAfter), [this, nextRank] { takeOver(nextRank); });
}

// First what runs for newcomers ends, and a take-over by this worker: it is the keeper then, or will not be asked.
void Worker::Core::handOver() {
  endHelpers();
  if (!coordinator->keeper().active()) return;
  std::optional<int> nextRank =
      closeAdmission(peerLost(self.name, link::describe(self) + ", the keeper of the job, leaves; try again"));
  keyService.reset();
  coordinator->handOver(nextRank.value_or(membership->worldSize()));
}

// The next rank to be given out, if this worker let others in.
std::optional<int> Worker::Core::closeAdmission(const Status& why) {
  if (!admission) return {};
  removeMeetingFile(admission->address());
  const int nextRank = admission->stop(why);
  admission.reset();
  return nextRank;
}

void Worker::Core::endHelpers() {
  leaving_ = true;
  std::unique_ptr<io::ThreadCache> helpers;
  MutexLock lock(helperMutex_);
  helpers.swap(helperThreads_);
  lock.unlock();
  helpers.reset();  // waits for what they do
}

void Worker::Core::removeMeetingFile(const io::Address& address) const {
  if (!launch.meetingFile.empty()) cluster::removeMeetingFile(launch.meetingFile, address);
}

}  // namespace treadle
