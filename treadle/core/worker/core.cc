#include "treadle/core/worker/core.h"

#include <unistd.h>

#include <algorithm>

#include "treadle/core/base/log.h"
#include "treadle/core/cluster/host_costs.h"
#include "treadle/core/cluster/meeting_file.h"
#include "treadle/core/io/interruption.h"
#include "treadle/core/memory/warm_cache.h"
#include "treadle/core/summation/server.h"
#include "treadle/core/worker/meeting.h"

namespace treadle {
namespace {

// Parts of the join timeout. Rank 0 ends the wait a little before the others would, so that all hear from it who is
// missing.
constexpr double kServerShare = 0.9, kClientShare = 0.95;
// Of what is left of it when all are known: for connecting to them, so that rank 0 still hears who does not answer.
constexpr double kDialShare = 0.75;
// How long a leaving worker may take to tell all others so, together: a peer that reads nothing must not hold
// it.
constexpr Duration kFarewell = std::chrono::seconds(1);
// How long rank 0 may take to answer a worker that gives up because another one ended.
constexpr Duration kVerdictTime = std::chrono::milliseconds(500);
// Below that a socket is faster than a thread that reads the caller's memory (docs/rooms/link.md).
constexpr size_t kOfferBytes = size_t{1} << 20;

TimePoint partOf(TimePoint start, Duration limit, double share) {
  if (limit == kNoTimeout) return kNever;
  return start + std::chrono::duration_cast<Duration>(limit * share);
}

// What the peer's user may do when nobody answered there.
Status withAdvice(Status why, const io::Address& address) {
  const bool isUnanswered = why.code() == Code::kPeerLost || why.code() == Code::kDeadlineExceeded;
  if (!isUnanswered || address.isUnix() || address.isLoopback()) return why;
  return Status(why.code(), why.message() +
                                "; unless it was given another one, a worker listens at the address by which its host "
                                "reaches rank 0, at any free port: if this host reaches it by another, or through a "
                                "firewall, set its JoinOptions::listenAddress");
}

}  // namespace

Worker::Core::Core(JoinOptions joinOptions, Launch launchInfo)
    : options(std::move(joinOptions)),
      channels(valueOrThrow(options.channelsToUse())),
      givenCosts(valueOrThrow(cluster::costsOfEnvironment())),
      launch(std::move(launchInfo)),
      launcher(launch),
      self{options.name, launch.rank},
      process(::getpid()) {}

std::unique_ptr<Worker::Core> Worker::Core::make(JoinOptions options, Launch launch) {
  std::optional<Entrance> entrance;
  if (launch.open() && launch.rank != 0) {
    entrance = valueOrThrow(enter(options, launch));
    launch.rank = entrance->rank;
  }
  std::unique_ptr<Core> core(new Core(std::move(options), std::move(launch)));  // NOLINT: private constructor
  core->entrance_ = std::move(entrance);
  core->reactor = valueOrThrow(io::Reactor::make(core->options.serverSpinTimeout));
  io::ExecutorOptions threads{.maxConcurrentHandlers = core->options.maxConcurrentHandlers,
                              .maxBlockedHandlers = core->options.maxBlockedHandlers};
  core->executor = std::make_unique<io::Executor>(*core->reactor, threads);
  cluster::MembershipOptions membership;
  membership.heartbeatTimeout = core->options.heartbeatTimeout;
  memory::BlockPool* pool = memory::BlockPool::ofProcess();
  membership.connection = {.maxQueuedBytes = core->options.maxQueuedBytes,
                           .limits = core->options.messageLimits,
                           .spinTimeout = core->options.spinTimeout,
                           .pool = pool,
                           .threads = &core->laneThreads,
                           .probeLimit = 2 * core->options.heartbeatTimeout,
                           .offerBytes = core->channels.crossMemory ? kOfferBytes : 0,
                           .requestBytes = core->options.maxInFlightBytes};
  if (pool != nullptr && core->options.memoryLimitBytes) pool->limitTo(*core->options.memoryLimitBytes);
  if (core->channels.sharedMemory && pool != nullptr) membership.lendLimitBytes = pool->limitBytes() / 2;
  if (pool != nullptr) pool->prefault(core->options.prefaultBytes.value_or(0));
  membership.lanes = core->channels.lanes;
  membership.open = core->launch.open();
  membership.servers = core->launch.servers;
  const int ranks = membership.open ? core->self.rank + 1 : core->launch.worldSize;
  core->membership = std::make_unique<cluster::Membership>(*core->reactor, core->self, ranks, membership);
  return core;
}

// Who is in the engine by a reference may dial lanes, which takes what goes before the engine does.
Worker::Core::~Core() {
  leave("it ended without shutdown()");
  if (engine) engine->references().awaitUsers();
}

void Worker::Core::start(Worker& worker, WorkerExtensions extensions) {
  Functions functions = options.functions;
  functions.merge(extensions.functions);
  extensionState = std::move(extensions.state);
  auto interceptor = extensions.interceptor ? extensions.interceptor(worker) : nullptr;
  engine = std::make_unique<rpc::Engine>(
      *membership, *reactor, *executor, std::move(functions), std::move(interceptor),
      rpc::EngineOptions{options.rpcTimeout, options.maxInFlightBytes, options.maxQueuedBytes, options.referenceLimit},
      &worker);
  coordinator = std::make_unique<cluster::Coordinator>(*membership, *reactor, [this] {
    rpc::CallCounts counts = engine->counts();
    return cluster::WorkCount{counts.sentToLiving, counts.handledOfLiving, counts.pending == 0 && counts.running == 0};
  });
  coordinator->setHooks({[this](const cluster::RosterEntry& worker) { addressBook_.add(worker); },
                         [this](int nextRank) { takeOver(nextRank); }});
  engine->setIdleHook([this] { coordinator->workDone(); });
  groups = std::make_unique<group::GroupService>(*membership, *reactor, *executor);
  summations = std::make_unique<summation::Services>(*membership, executor.get(),
                                                     [this](int rank, uint64_t number, TimePoint before) {
                                                       return dialFor(link::Purpose::kSummation, number, rank, before);
                                                     });
  if (launch.isServer())
    summations->setServer([this, &worker](summation::Invitation invitation, std::function<void()> ended) {
      executor->post([&worker, invitation = std::move(invitation), ended = std::move(ended)] {
        summation::serve(worker, invitation);
        ended();
      });
    });
  if (options.warmMemory.value_or(false)) trimWhenIdle();
  membership->setHandler(link::Subject::kCluster, *coordinator);
  membership->setHandler(link::Subject::kRpc, *engine);
  membership->setHandler(link::Subject::kGroup, *groups);
  membership->setHandler(link::Subject::kSummation, *summations);
  membership->setLaneDialer(
      [this](int rank, link::Purpose purpose, TimePoint before) { return dialFor(purpose, 0, rank, before); });
}

// Trims in a task: unmapping large blocks is slow, and this thread polls.
void Worker::Core::trimWhenIdle() {
  reactor->at(deadlineAfter(memory::WarmCache::kIdle / 2), [this] {
    executor->post([] { memory::WarmCache::ofProcess().trimIdle(); });
    trimWhenIdle();
  });
}

Status Worker::Core::meet() {
  if (!launch.open()) return meetAll();
  return entrance_ ? comeIn() : found();
}

// Listening begins before the addresses are told, and nobody goes before all are connected to all: so from
// `join` on every call finds its connection.
Status Worker::Core::meetAll() {
  TimePoint begin = Clock::now();
  TimePoint deadline = partOf(begin, options.joinTimeout, kClientShare);
  TimePoint serverDeadline = partOf(begin, options.joinTimeout, kServerShare);
  Result<std::vector<io::Address>> places = listenAddresses(launch, options);
  if (!places.ok()) return std::move(places).status();
  TREADLE_RETURN_IF_ERROR(setCredentials(deadline));
  TREADLE_RETURN_IF_ERROR(listen());
  std::optional<io::Address> written;
  if (self.rank == 0) {
    auto server = cluster::RendezvousServer::start(*reactor, *places, credentials_, {launch.worldSize, launch.servers},
                                                   options.joinTimeout, serverDeadline);
    if (!server.ok()) return std::move(server).status();
    rendezvous = std::move(*server);
    rendezvous->setCause([this](const Status& why) { return launcher.causeOf(why); });
    written = rendezvous->address();
    if (!launch.meetingFile.empty()) TREADLE_RETURN_IF_ERROR(cluster::writeMeetingFile(launch.meetingFile, *written));
    beginMeasuring();
  }
  Result<cluster::MasterAddresses> masters = whereToMeet(launch, options);
  if (!masters.ok()) return std::move(masters).status();
  Status met = meetAt(*masters, deadline);
  // A worker that comes later would find nobody at the master's address, and could not say why.
  if (!met.ok() && rendezvous && serverDeadline != kNever) {
    io::Interruption ended(launcher.fd(), [this] { return launcher.ended(); });
    rendezvous->tellLateComers(serverDeadline);
  }
  if (written) removeMeetingFile(*written);
  if (!met.ok()) return met;
  if (rendezvous) rendezvous->stop();
  keyService.reset();  // all have it; the port is free for the next job
  membership->startWatch();
  joined = true;
  return {};
}

// The launcher may report that another worker has ended: then the job cannot start, and all waits here end early.
Status Worker::Core::meetAt(const cluster::MasterAddresses& masters, TimePoint deadline) {
  std::unique_ptr<cluster::RendezvousClient> client;
  Status met;
  {
    io::Interruption ended(launcher.fd(), [this] { return launcher.ended(); });
    met = connectToAll(masters, deadline, client);
  }
  const bool othersEnded = cluster::mayBeConsequence(met) && launcher.ended();
  if (othersEnded) met = launcher.causeOf(met);
  // Rank 0 may have found another reason before. If not, it passes this one on, and takes no worker that gives up for
  // the one that was lost first.
  if (rendezvous && !met.ok()) return launcher.causeOf(rendezvous->fail(met));
  return othersEnded && client ? launcher.causeOf(client->giveUp(met, deadlineAfter(kVerdictTime))) : met;
}

// One that cannot be connected to may itself have left because of another: rank 0 knows whom the job lost first.
Status Worker::Core::connectToAll(const cluster::MasterAddresses& masters, TimePoint deadline,
                                  std::unique_ptr<cluster::RendezvousClient>& client) {
  auto connected = cluster::RendezvousClient::connect(masters, credentials_, deadline, !launch.meetingFile.empty());
  if (!connected.ok()) return std::move(connected).status();
  client = std::move(*connected);
  Result<cluster::Roster> roster = client->exchange({launch.worldSize, launch.servers}, announced(), deadline);
  if (!roster.ok()) return std::move(roster).status();
  for (const cluster::RosterEntry& peer : *roster) addressBook_.add(peer);
  setCosts(client->costs());
  TimePoint begin = Clock::now();
  TimePoint dialEnd = deadline == kNever ? kNever : partOf(begin, deadline - begin, kDialShare);
  for (const cluster::RosterEntry& peer : *roster)
    if (Status dialed = connectTo(peer, dialEnd); !dialed.ok())
      return client->giveUp(launcher.causeOf(dialed), deadline);
  return client->ready(deadline);
}

// At rank 0, while the others dial: the roster waits for this worker anyway.
void Worker::Core::beginMeasuring() {
  if (givenCosts) return rendezvous->setCosts(*givenCosts);
  if (launch.worldSize > 1) rendezvous->measureFrom(cluster::costsOfThisHost(), sharesMemory());
}

// With others of this host, if they may do as it does.
bool Worker::Core::sharesMemory() const {
  const bool listens = std::any_of(acceptors.begin(), acceptors.end(),
                                   [](const auto& acceptor) { return acceptor->address().isUnix(); });
  return listens && channels.sharedMemory && memory::BlockPool::ofProcess() != nullptr;
}

// Before anybody goes, so before the first group is made.
void Worker::Core::setCosts(const cluster::Costs& costs) {
  costs_ = costs;
  groups->setCosts(costs, [this](int rank) { return cluster::hostOf(addressBook_.entry(rank)); });
}

// With the launcher's key, one that rank 0 makes up, or none.
Status Worker::Core::setCredentials(TimePoint deadline) {
  MakeKey handOut = [this]() -> Result<std::string> {
    auto service = cluster::KeyService::start(*reactor, launch.meetingName());
    if (!service.ok()) return std::move(service).status();
    keyService = std::move(*service);
    return keyService->key();
  };
  Result<link::Credentials> credentials =
      credentialsAtMeeting(self, launch, options, deadline, self.rank == 0 ? std::move(handOut) : MakeKey());
  if (!credentials.ok()) return std::move(credentials).status();
  credentials_ = std::move(*credentials);
  return {};
}

Status Worker::Core::connectTo(const cluster::RosterEntry& peer, TimePoint deadline) {
  AddressBook::Failures failures;
  Result<io::Stream> stream = dial(peer, credentials_, deadline, failures);
  addressBook_.noteFailures(peer.worker.rank, std::move(failures));
  if (!stream.ok()) return std::move(stream).status();
  return membership->attach(peer.worker, std::move(*stream), link::Connection::Kind::kCalls);
}

// A further connection to a worker of the job.
Result<io::Stream> Worker::Core::dialFor(link::Purpose purpose, uint64_t number, int rank, TimePoint deadline) const {
  link::Credentials credentials = credentials_;
  credentials.self.purpose = purpose;
  credentials.self.number = number;
  AddressBook::Failures failures;
  return dial(addressBook_.entry(rank), credentials, std::min(deadline, deadlineAfter(link::kHandshakeTimeout)),
              failures);
}

// Tries the peer's addresses in its order. A UNIX socket of a peer in another network namespace is not to be found, a
// TCP address then is.
Result<io::Stream> Worker::Core::dial(const cluster::RosterEntry& peer, const link::Credentials& credentials,
                                      TimePoint deadline, AddressBook::Failures& failures) const {
  Status last = notFound("it gave no address");
  bool tried = false;  // why an address was not tried says less than why one that was tried failed
  // What this worker announces may lead here from elsewhere only.
  for (const std::string& text : peer.worker.rank == self.rank ? listening_ : peer.addresses) {
    Result<io::Address> address = io::Address::parse(text);
    if (!address.ok() || (address->isUnix() ? !channels.unixSockets : !channels.tcp)) {
      Status notTried = failedPrecondition(text + " is on a channel that this worker was told not to use");
      if (!tried) last = address.ok() ? std::move(notTried) : address.status();
      continue;
    }
    tried = true;
    Result<link::Dialed> dialed = link::dial(*address, credentials, deadline);
    if (dialed.ok() && dialed->peer != peer.worker)
      dialed = Result<link::Dialed>(failedPrecondition(text + " is " + link::describe(dialed->peer)));
    if (dialed.ok()) return std::move(dialed->stream);
    last = withAdvice(std::move(dialed).status(), *address);
    (address->isUnix() ? failures.unixSockets : failures.tcp) = last.message();
  }
  return last.withContext(link::describe(peer.worker) + " cannot be connected to").withWorker(peer.worker.name);
}

// From the outside in: no new peers, no more answers, the farewell, then everything that waits here is failed, last the
// threads, which must be there until nobody waits for them.
void Worker::Core::leave(const std::string& reason) {
  if (left_.exchange(true)) return;
  Status why = cancelled("this worker has left its job");
  // A clean farewell has no reason. In an open job losses are normal. While this worker joins they may be consequences:
  // `reason` is rank 0's verdict.
  const bool clean = reason.empty();
  const Status loss = joined && !clean && !launch.open() ? membership->firstLoss() : Status();
  if (joined && !clean) loss.ok() ? cluster::tellLauncherOfFailure() : cluster::tellLauncherOfGivingUp();
  acceptors.clear();
  endHelpers();
  keyService.reset();
  if (rendezvous) rendezvous->stop();
  closeAdmission(why);
  if (engine) engine->stopAnswering();
  if (membership) membership->close(loss.ok() ? reason : loss.message(), Clock::now() + kFarewell);
  if (coordinator) coordinator->close(why);
  if (groups) groups->close(why);
  if (summations) summations->close(why);
  if (engine) engine->close(why);
  if (executor) executor->stop();
  if (options.warmMemory.value_or(false)) memory::WarmCache::ofProcess().trim();  // nobody else looks for idle memory
}

}  // namespace treadle
