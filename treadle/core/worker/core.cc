#include "treadle/core/worker/core.h"

#include <unistd.h>

#include "treadle/core/base/log.h"

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
// Below that a socket is faster than a thread that reads the caller's memory (docs/rooms/link.md).
constexpr size_t kOfferBytes = size_t{1} << 20;

TimePoint partOf(TimePoint start, Duration limit, double share) {
  if (limit == kWhilePeerLives) return kNever;
  return start + std::chrono::duration_cast<Duration>(limit * share);
}

// Links are neither encrypted nor authenticated after the handshake.
Status mayUse(const io::Address& address, const JoinOptions& options, const std::string& what) {
  if (options.insecure || address.isUnix() || address.isLoopback()) return {};
  return failedPrecondition(what +
                            " is not on this host's loopback: jobs across hosts need encrypted links, which this "
                            "version does not have yet; start all workers on one host with MASTER_ADDR=127.0.0.1, or, "
                            "in a network where you trust everybody, set JoinOptions::insecure");
}

// Where rank 0 listens: at the first of these that is free.
Result<std::vector<io::Address>> masterAddresses(const Launch& launch, const JoinOptions& options) {
  std::vector<io::Address> addresses;
  for (uint16_t port : launch.meetingPorts()) {
    Result<io::Address> address = io::Address::tcp(launch.masterAddress, port);
    if (!address.ok()) return address.status().withContext("MASTER_ADDR");
    addresses.push_back(std::move(*address));
  }
  const io::Address& host = addresses.front();
  TREADLE_RETURN_IF_ERROR(mayUse(host, options, "the master's address " + launch.masterAddress));
  if (host.isLoopback()) return addresses;
  if (launch.jobKey.empty())
    return failedPrecondition("a job across hosts needs a key: give all workers the same TREADLE_JOB_KEY");
  if (!options.listenAddress)
    return failedPrecondition(
        "a job across hosts needs JoinOptions::listenAddress: an address of this host that the "
        "others reach, such as tcp://10.0.0.7:0");
  return addresses;
}

std::string randomName() {
  static std::atomic<uint64_t> count = 0;
  return "treadle-" + std::to_string(::getpid()) + "-" + std::to_string(++count) + "-" +
         std::to_string(Clock::now().time_since_epoch().count());
}

}  // namespace

Worker::Core::Core(JoinOptions joinOptions, Launch launchInfo)
    : options(std::move(joinOptions)),
      channels(valueOrThrow(options.channelsToUse())),
      launch(std::move(launchInfo)),
      self{options.name, launch.rank},
      process(::getpid()) {}

std::unique_ptr<Worker::Core> Worker::Core::make(JoinOptions options, Launch launch) {
  std::unique_ptr<Core> core(new Core(std::move(options), std::move(launch)));  // NOLINT: private constructor
  core->reactor = valueOrThrow(io::Reactor::make(core->options.busyPoll));
  io::ExecutorOptions threads{.maxRunning = core->options.maxRunning, .maxBlocked = core->options.maxBlocked};
  core->executor = std::make_unique<io::Executor>(*core->reactor, threads);
  cluster::MembershipOptions membership;
  membership.lostAfter = core->options.lostAfter;
  memory::BlockPool* pool = memory::BlockPool::ofProcess();
  membership.connection = {core->options.sendLimitBytes,
                           core->options.messageLimits,
                           core->options.spin,
                           pool,
                           &core->laneThreads,
                           core->channels.crossMemory ? kOfferBytes : 0,
                           core->options.unansweredLimitBytes};
  if (pool != nullptr && core->options.memoryLimitBytes) pool->limitTo(*core->options.memoryLimitBytes);
  if (core->channels.sharedMemory && pool != nullptr) membership.lendLimitBytes = pool->limitBytes() / 2;
  if (pool != nullptr) pool->prefault(core->options.prefaultBytes.value_or(0));
  membership.lanes = core->channels.lanes;
  core->membership =
      std::make_unique<cluster::Membership>(*core->reactor, core->self, core->launch.worldSize, membership);
  return core;
}

Worker::Core::~Core() { leave("it ended without shutdown()"); }

void Worker::Core::start(Worker& worker, WorkerExtensions extensions) {
  Functions functions = options.functions;
  functions.merge(extensions.functions);
  extensionState = std::move(extensions.state);
  auto interceptor = extensions.interceptor ? extensions.interceptor(worker) : nullptr;
  engine = rpc::Engine::make(*membership, *reactor, *executor, std::move(functions), std::move(interceptor),
                             {options.rpcTimeout, options.unansweredLimitBytes, options.sendLimitBytes}, &worker);
  coordinator = std::make_unique<cluster::Coordinator>(*membership, *reactor, [this] {
    rpc::CallCounts counts = engine->counts();
    return cluster::WorkCount{counts.sent, counts.handled, counts.pending == 0 && counts.running == 0};
  });
  engine->setIdleHook([this] { coordinator->workDone(); });
  groups = std::make_unique<group::GroupService>(*membership, *reactor, *executor);
  membership->setHandler(link::Subject::kCluster, *coordinator);
  membership->setHandler(link::Subject::kRpc, *engine);
  membership->setHandler(link::Subject::kGroup, *groups);
}

// Listening begins before the addresses are told, and nobody goes before all are connected to all: so from
// `join` on every call finds its connection.
Status Worker::Core::meet() {
  TimePoint begin = Clock::now();
  TimePoint deadline = partOf(begin, options.joinTimeout, kClientShare);
  TimePoint serverDeadline = partOf(begin, options.joinTimeout, kServerShare);
  Result<std::vector<io::Address>> masters = masterAddresses(launch, options);
  if (!masters.ok()) return std::move(masters).status();
  Result<link::Credentials> known = credentials(deadline);
  if (!known.ok()) return std::move(known).status();
  TREADLE_RETURN_IF_ERROR(listen(*known));
  if (self.rank == 0) {
    auto server = cluster::RendezvousServer::start(*reactor, *masters, *known, launch.worldSize, options.joinTimeout,
                                                   serverDeadline);
    if (!server.ok()) return std::move(server).status();
    rendezvous = std::move(*server);
  }
  Status met = meetAt(*masters, *known, deadline);
  // Who comes later would find nobody at the master's address, and could not say why.
  if (!met.ok() && rendezvous && serverDeadline != kNever) rendezvous->tellLateComers(serverDeadline);
  if (!met.ok()) return met;
  if (rendezvous) rendezvous->stop();
  keyService.reset();  // all have it; the port is free for the next job
  membership->startWatch();
  joined = true;
  return {};
}

// One that cannot be connected to may itself have left because of another: rank 0 knows whom the job lost first.
Status Worker::Core::meetAt(const std::vector<io::Address>& masters, const link::Credentials& credentials,
                            TimePoint deadline) {
  auto client = cluster::RendezvousClient::connect(masters, credentials, deadline);
  if (!client.ok()) return std::move(client).status();
  Result<cluster::Roster> roster = (*client)->exchange(launch.worldSize, addresses(), deadline);
  if (!roster.ok()) return std::move(roster).status();
  roster_ = std::move(*roster);
  dialFailures_.resize(roster_.size());
  membership->setLaneDialer([this, credentials](int rank, link::Purpose purpose, TimePoint before) mutable {
    link::Credentials lane = credentials;
    lane.self.purpose = purpose;
    return dial(roster_[static_cast<size_t>(rank)], lane, std::min(before, deadlineAfter(link::kHandshakeTimeout)));
  });
  TimePoint begin = Clock::now();
  TimePoint dialEnd = deadline == kNever ? kNever : partOf(begin, deadline - begin, kDialShare);
  for (const cluster::RosterEntry& peer : roster_)
    if (Status connected = connectTo(peer, credentials, dialEnd); !connected.ok())
      return (*client)->giveUp(connected, deadline);
  return (*client)->ready(deadline);
}

// The launcher's key, or one that rank 0 makes up and gives to its own user's processes on this host.
Result<link::Credentials> Worker::Core::credentials(TimePoint deadline) {
  link::Credentials credentials{launch.secret(), {link::Purpose::kPeer, self}};
  if (!credentials.jobKey.empty()) return credentials;
  if (self.rank == 0) {
    auto service = cluster::KeyService::start(*reactor, launch.meetingName());
    if (!service.ok()) return std::move(service).status();
    keyService = std::move(*service);
    credentials.jobKey = keyService->key();
    return credentials;
  }
  Result<std::string> key = cluster::fetchKey(launch.meetingName(), deadline);
  if (!key.ok()) return std::move(key).status();
  credentials.jobKey = std::move(*key);
  return credentials;
}

Status Worker::Core::listen(const link::Credentials& credentials) {
  std::vector<std::string> wanted;
  if (channels.unixSockets) wanted.push_back("unix:" + randomName());
  if (channels.tcp) wanted.emplace_back("tcp://127.0.0.1:0");
  if (options.listenAddress) wanted = {*options.listenAddress};
  for (const std::string& text : wanted) {
    Result<io::Address> address = io::Address::parse(text);
    if (!address.ok()) return address.status().withContext("listenAddress");
    TREADLE_RETURN_IF_ERROR(mayUse(*address, options, "the listen address " + text));
    if (address->isAny())
      return invalidArgument("listenAddress is " + text +
                             "; it must be one address of this host that the others reach");
    TREADLE_RETURN_IF_ERROR(listenOn(*address, credentials));
  }
  return {};
}

Status Worker::Core::listenOn(const io::Address& address, const link::Credentials& credentials) {
  Result<io::Fd> listener = io::listenOn(address);
  if (!listener.ok()) return std::move(listener).status();
  link::Acceptor::Host host;
  host.check = [this](const link::Hello& hello) {
    if (hello.purpose == link::Purpose::kRendezvous)
      return failedPrecondition("the workers do not meet at this address");
    // Before the welcome: a lane that closes after it would take its connection along.
    if (hello.purpose != link::Purpose::kPeer && !channels.lanes)
      return failedPrecondition("it was told to use no lanes (TREADLE_CHANNELS or JoinOptions::channels)");
    bool inWorld = hello.worker.rank >= 0 && hello.worker.rank < launch.worldSize;
    return inWorld ? Status() : invalidArgument("its rank is not in this job");
  };
  host.accept = [this](io::Fd fd, link::Hello hello) {
    Status attached = hello.purpose == link::Purpose::kPeer
                          ? membership->attach(hello.worker, std::move(fd), link::Connection::Kind::kServing)
                          : membership->attachLane(hello.worker.rank, std::move(fd), hello.purpose);
    if (!attached.ok()) logWarn(self.name, "a connection was refused: " + attached.message());
  };
  auto acceptor = link::Acceptor::start(*reactor, std::move(*listener), credentials, std::move(host));
  if (!acceptor.ok()) return std::move(acceptor).status();
  acceptors.push_back(std::move(*acceptor));
  return {};
}

std::vector<std::string> Worker::Core::addresses() const {
  std::vector<std::string> texts;
  for (const auto& acceptor : acceptors) texts.push_back(acceptor->address().toString());
  return texts;
}

Status Worker::Core::connectTo(const cluster::RosterEntry& peer, const link::Credentials& credentials,
                               TimePoint deadline) {
  DialFailures& failures = dialFailures_[static_cast<size_t>(peer.worker.rank)];
  Result<io::Fd> fd = dial(peer, credentials, deadline, &failures);
  if (!fd.ok()) return std::move(fd).status();
  return membership->attach(peer.worker, std::move(*fd), link::Connection::Kind::kCalls);
}

// Tries the peer's addresses in its order. A UNIX socket of a peer in another network namespace is not to be found, a
// TCP address then is.
Result<io::Fd> Worker::Core::dial(const cluster::RosterEntry& peer, const link::Credentials& credentials,
                                  TimePoint deadline, DialFailures* failures) const {
  Status last = notFound("it gave no address");
  for (const std::string& text : peer.addresses) {
    Result<io::Address> address = io::Address::parse(text);
    if (!address.ok()) {
      last = address.status();
      continue;
    }
    if (address->isUnix() ? !channels.unixSockets : !channels.tcp) {
      last = failedPrecondition(text + " is on a channel that this worker was told not to use");
      continue;
    }
    Result<link::Dialed> dialed = link::dial(*address, credentials, deadline);
    if (dialed.ok() && dialed->peer != peer.worker)
      dialed = Result<link::Dialed>(failedPrecondition(text + " is " + link::describe(dialed->peer)));
    if (dialed.ok()) return std::move(dialed->fd);
    last = std::move(dialed).status();
    if (failures != nullptr) (address->isUnix() ? failures->unixSockets : failures->tcp) = last.message();
  }
  return last.withContext(link::describe(peer.worker) + " cannot be connected to").withWorker(peer.worker.name);
}

// From the outside in: no new peers, the farewell, then everything that waits here is failed, last the
// threads, which must be there until nobody waits for them.
void Worker::Core::leave(const std::string& reason) {
  if (left_.exchange(true)) return;
  Status why = cancelled("this worker has left its job");
  if (joined && !reason.empty() && membership->firstLoss().ok()) cluster::tellLauncherOfFailure();
  acceptors.clear();
  keyService.reset();
  if (rendezvous) rendezvous->stop();
  if (membership) {
    Status loss = membership->firstLoss();
    membership->close(loss.ok() ? reason : loss.message(), Clock::now() + kFarewell);
  }
  if (coordinator) coordinator->close(why);
  if (groups) groups->close(why);
  if (engine) engine->close(why);
  if (executor) executor->stop();
}

}  // namespace treadle
