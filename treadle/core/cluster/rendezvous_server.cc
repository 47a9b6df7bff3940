// Rank 0's side of the rendezvous.

#include <sys/eventfd.h>

#include <algorithm>
#include <map>
#include <optional>

#include "treadle/core/base/listed.h"
#include "treadle/core/base/log.h"
#include "treadle/core/cluster/cost_survey.h"
#include "treadle/core/cluster/launch.h"
#include "treadle/core/cluster/rendezvous_messages.h"
#include "treadle/core/link/connection.h"

namespace treadle::cluster {
namespace {

std::string inWords(World world) {
  const std::string ranks = std::to_string(world.ranks) + " workers";
  return world.servers == 0 ? ranks
                            : ranks + " with servers from rank " + std::to_string(world.ranks - world.servers) + " on";
}

}  // namespace

// One lock guards it all: few messages, each handled at once. Stages: gathering registrations; measuring what links
// cost; connecting, from the roster on; over, whether all went or all failed.
class RendezvousServer::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(io::Reactor& reactor, std::string name, World world, Duration joinTimeout, io::Fd allCame)
      : reactor_(reactor),
        name_(std::move(name)),
        world_(world),
        joinTimeout_(joinTimeout),
        allCame_(std::move(allCame)) {}

  void begin(TimePoint deadline) {
    MutexLock lock(mutex_);
    endAt(deadline);
  }
  void setCause(CauseOf causeOf) {
    MutexLock lock(mutex_);
    causeOf_ = std::move(causeOf);
  }
  void setCosts(const Costs& costs) {
    MutexLock lock(mutex_);
    known_ = costs;
  }
  void measureFrom(const Costs& known, bool sharesMemory, Duration time) {
    MutexLock lock(mutex_);
    known_ = known;
    sharesMemory_ = sharesMemory;
    surveyTime_ = time;
  }
  Status fail(const Status& why);
  Status check(const link::Hello& hello) const;
  void accept(io::Stream stream, const link::Hello& hello);
  void onMessage(int rank, Bytes payload);
  void onClosed(int rank, const Status& why);
  void waitForAll(TimePoint deadline) const { (void)io::waitFor(allCame_.get(), POLLIN, deadline); }
  void end();

 private:
  struct Guest;
  enum class Stage { kGathering, kMeasuring, kConnecting, kOver };

  void endAt(TimePoint deadline) TREADLE_REQUIRES(mutex_);
  void onDeadline();
  Status onRegister(int rank, Registration registration) TREADLE_REQUIRES(mutex_);
  Status onReady(int rank) TREADLE_REQUIRES(mutex_);
  void measure() TREADLE_REQUIRES(mutex_);
  void onEcho(int rank, uint32_t number, TimePoint now) TREADLE_REQUIRES(mutex_);
  void sendProbes(const std::vector<CostSurvey::Probe>& probes) TREADLE_REQUIRES(mutex_);
  void endSurvey();
  Roster roster() const TREADLE_REQUIRES(mutex_);
  void sendRoster(const Costs& costs) TREADLE_REQUIRES(mutex_);
  void failAll(const Status& why) TREADLE_REQUIRES(mutex_);
  static void say(Guest& guest, Bytes message);
  void sayToAll(Bytes message) TREADLE_REQUIRES(mutex_);
  Status late() const TREADLE_REQUIRES(mutex_);
  std::string missing() const TREADLE_REQUIRES(mutex_);
  std::vector<std::shared_ptr<Guest>> allConnected() const TREADLE_REQUIRES(mutex_);

  io::Reactor& reactor_;
  const std::string name_;
  const World world_;
  const Duration joinTimeout_;
  const io::Fd allCame_;  // an eventfd, so that an Interruption ends the wait for it
  mutable Mutex mutex_;
  TimePoint deadline_ TREADLE_GUARDED_BY(mutex_) = kNever;
  io::Reactor::TimerId timer_ TREADLE_GUARDED_BY(mutex_) = 0;
  Costs known_ TREADLE_GUARDED_BY(mutex_);
  bool sharesMemory_ TREADLE_GUARDED_BY(mutex_) = false;
  Duration surveyTime_ TREADLE_GUARDED_BY(mutex_){};             // zero: nothing is measured
  std::optional<CostSurvey> survey_ TREADLE_GUARDED_BY(mutex_);  // while it measures
  io::Reactor::TimerId surveyTimer_ TREADLE_GUARDED_BY(mutex_) = 0;
  Stage stage_ TREADLE_GUARDED_BY(mutex_) = Stage::kGathering;
  Status failure_ TREADLE_GUARDED_BY(mutex_);  // why the job does not start
  CauseOf causeOf_ TREADLE_GUARDED_BY(mutex_) = [](const Status& why) { return why; };
  std::map<int, std::shared_ptr<Guest>> guests_ TREADLE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Guest>> twice_ TREADLE_GUARDED_BY(mutex_);  // have the rank of another, and hear so
};

// One rank that has come. Kept by its connection's callbacks and the server.
struct RendezvousServer::Core::Guest final : link::ConnectionSink {
  Guest(std::weak_ptr<Core> core, WorkerInfo info) : server(std::move(core)), worker(std::move(info)) {}

  void onMessage(link::Connection&, link::Message message) override {
    if (auto core = server.lock()) core->onMessage(worker.rank, message.payload);
  }
  void onLeave(link::Connection&, std::string) override {}
  void onClosed(link::Connection&, const Status& why) override {
    if (auto core = server.lock()) core->onClosed(worker.rank, why);
  }

  const std::weak_ptr<Core> server;
  const WorkerInfo worker;
  std::shared_ptr<link::Connection> connection;
  bool registered = false, ready = false;
  std::vector<std::string> addresses;
};

// The time limits of all count from their own starts. The earliest of them ends the wait for all, a little before that
// worker would leave: else it could not be told who is missing, and would itself be taken for the one that was lost.
void RendezvousServer::Core::endAt(TimePoint deadline) {
  if (deadline >= deadline_) return;
  if (timer_ != 0) reactor_.cancel(timer_);
  deadline_ = deadline;
  timer_ = reactor_.at(deadline, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->onDeadline();
  });
}

Status RendezvousServer::Core::check(const link::Hello& hello) const {
  if (hello.purpose != link::Purpose::kRendezvous) return failedPrecondition("workers only meet at this address");
  if (hello.worker.rank == kAnyRank)
    return failedPrecondition("this job has a fixed size of " + std::to_string(world_.ranks) +
                              " workers, and nobody joins it at run time");
  if (hello.worker.rank < 0 || hello.worker.rank >= world_.ranks)
    return invalidArgument("rank " + std::to_string(hello.worker.rank) + " is not in this job of " +
                           std::to_string(world_.ranks) + " workers");
  MutexLock lock(mutex_);
  bool begun = stage_ != Stage::kGathering && failure_.ok();
  return begun ? failedPrecondition("this job has begun without you") : Status();
}

void RendezvousServer::Core::accept(io::Stream stream, const link::Hello& hello) {
  MutexLock lock(mutex_);
  int rank = hello.worker.rank;
  if (stage_ != Stage::kGathering && failure_.ok()) return;
  auto guest = std::make_shared<Guest>(weak_from_this(), hello.worker);
  bool first = guests_.emplace(rank, guest).second;
  if (!first) twice_.push_back(guest);
  link::ConnectionOptions options{.limits = rendezvousLimits()};
  auto connection =
      link::Connection::start(reactor_, std::move(stream), link::Connection::Kind::kServing, options, *guest);
  if (!connection.ok()) return failAll(connection.status());
  guest->connection = std::move(*connection);
  if (guests_.size() == static_cast<size_t>(world_.ranks)) (void)::eventfd_write(allCame_.get(), 1);
  if (!failure_.ok()) return say(*guest, encodeFailure(failure_));
  if (!first)
    failAll(failedPrecondition("rank " + std::to_string(rank) + " was started twice, as '" +
                               guests_[rank]->worker.name + "' and as '" + hello.worker.name + "'"));
}

void RendezvousServer::Core::onMessage(int rank, Bytes payload) {
  const TimePoint now = Clock::now();
  Result<RendezvousMessage> message = parseRendezvous(payload);
  MutexLock lock(mutex_);
  if (stage_ == Stage::kOver) return;
  Status status = message.ok() ? Status() : message.status();
  if (message.ok() && message->step == Step::kRegister) {
    status = onRegister(rank, std::move(message->registration));
  } else if (message.ok() && message->step == Step::kReady) {
    status = onReady(rank);
  } else if (message.ok() && message->step == Step::kEcho) {
    onEcho(rank, message->number, now);
  } else if (message.ok() && message->step == Step::kFail) {
    status = message->failure.withContext(link::describe(guests_.at(rank)->worker) + " cannot join");
  } else if (status.ok()) {
    status = dataLoss("rank " + std::to_string(rank) + " sent a message out of turn at the rendezvous");
  }
  if (!status.ok()) failAll(status);
}

Status RendezvousServer::Core::onRegister(int rank, Registration registration) {
  Guest& guest = *guests_.at(rank);
  if (guest.registered) return dataLoss(link::describe(guest.worker) + " registered twice");
  if (registration.world != world_)
    return failedPrecondition(link::describe(guest.worker) + " was started for a job of " +
                              inWords(registration.world) + " and rank 0 for one of " + inWords(world_));
  for (const auto& [other, known] : guests_)
    if (known->registered && known->worker.name == guest.worker.name && other != rank)
      return invalidArgument("the name '" + guest.worker.name + "' is used twice, by rank " +
                             std::to_string(std::min(other, rank)) + " and rank " +
                             std::to_string(std::max(other, rank)) + "; give each worker a name of its own");
  if (registration.timeLeft != kNoTimeout) endAt(deadlineAfter(registration.timeLeft - registration.timeLeft / 20));
  guest.registered = true;
  guest.addresses = std::move(registration.addresses);
  logDebug(name_, link::describe(guest.worker) + " has registered");
  if (missing().empty()) measure();
  return {};
}

// Never fails the start: what is not measured in time keeps its default.
void RendezvousServer::Core::measure() {
  if (surveyTime_ == Duration::zero()) return sendRoster(known_);
  stage_ = Stage::kMeasuring;
  survey_.emplace(known_, roster(), sharesMemory_);
  const Duration most = std::min<Duration>(surveyTime_ + kSurveyPatience, (deadline_ - Clock::now()) / 4);
  surveyTimer_ = reactor_.at(deadlineAfter(most), [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->endSurvey();
  });
  sendProbes(survey_->begin(Clock::now(), surveyTime_));
}

// One that comes after the survey has no effect.
void RendezvousServer::Core::onEcho(int rank, uint32_t number, TimePoint now) {
  if (survey_) sendProbes(survey_->onEcho(rank, number, now));
}

void RendezvousServer::Core::sendProbes(const std::vector<CostSurvey::Probe>& probes) {
  for (const CostSurvey::Probe& probe : probes)
    say(*guests_.at(probe.rank), encodeProbe(probe.number, probe.sizeBytes));
  if (!survey_->done()) return;
  reactor_.cancel(surveyTimer_);
  sendRoster(survey_->costs());
}

void RendezvousServer::Core::endSurvey() {
  MutexLock lock(mutex_);
  if (survey_ && stage_ == Stage::kMeasuring) sendRoster(survey_->costs());
}

Roster RendezvousServer::Core::roster() const {
  Roster roster;
  for (const auto& [rank, guest] : guests_) roster.push_back({guest->worker, guest->addresses});
  return roster;
}

void RendezvousServer::Core::sendRoster(const Costs& costs) {
  survey_.reset();
  stage_ = Stage::kConnecting;
  logDebug(name_, "all workers have registered, and connect to each other");
  logInfo(name_, "collective operations are chosen by these costs (treadle plan): " + describe(costs));
  sayToAll(encodeRoster(roster(), costs));
}

Status RendezvousServer::Core::onReady(int rank) {
  if (stage_ != Stage::kConnecting) return dataLoss("rank " + std::to_string(rank) + " was ready before its turn");
  guests_.at(rank)->ready = true;
  for (const auto& [each, known] : guests_)
    if (!known->ready) return {};
  stage_ = Stage::kOver;
  sayToAll(cluster::encodeStep(Step::kGo));
  return {};
}

void RendezvousServer::Core::onClosed(int rank, const Status& why) {
  MutexLock lock(mutex_);
  auto guest = guests_.find(rank);
  if (stage_ == Stage::kOver || guest == guests_.end()) return;
  WorkerInfo worker = guest->second->worker;
  failAll(peerLost(worker.name, link::describe(worker) + " was lost before all had joined: " + why.message()));
}

void RendezvousServer::Core::onDeadline() {
  MutexLock lock(mutex_);
  if (stage_ != Stage::kOver) failAll(late());
}

// Why not all have joined by the deadline.
Status RendezvousServer::Core::late() const {
  if (const std::string absent = missing(); !absent.empty())
    return deadlineExceeded("rank " + absent + " of " + std::to_string(world_.ranks) +
                            " did not arrive within the join timeout of " + toText(joinTimeout_) +
                            "; look at its output, or raise joinTimeout");
  std::string unconnected;
  for (const auto& [rank, guest] : guests_)
    if (!guest->ready) unconnected += (unconnected.empty() ? "" : ", ") + std::to_string(rank);
  return deadlineExceeded("rank " + unconnected + " could not connect to all others within the join timeout of " +
                          toText(joinTimeout_));
}

std::string RendezvousServer::Core::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_.ranks; ++rank) {
    auto guest = guests_.find(rank);
    if (guest == guests_.end() || !guest->second->registered) ranks.push_back(rank);
  }
  return listed(ranks, 16, [](int rank) { return std::to_string(rank); });
}

// The reason is kept for those who come later, who would wait for a job that will not start.
void RendezvousServer::Core::failAll(const Status& why) {
  stage_ = Stage::kOver;
  failure_ = causeOf_(why);
  logWarn(name_, "the job does not start: " + failure_.message());
  sayToAll(encodeFailure(failure_));
}

// The waiting thread may notice the deadline before a busy reactor does. Then the late ranks are the reason.
Status RendezvousServer::Core::fail(const Status& why) {
  MutexLock lock(mutex_);
  const bool isLate = why.code() == Code::kDeadlineExceeded && Clock::now() >= deadline_;
  if (stage_ != Stage::kOver) failAll(isLate ? late() : why);
  return failure_.ok() ? why : failure_;
}

std::vector<std::shared_ptr<RendezvousServer::Core::Guest>> RendezvousServer::Core::allConnected() const {
  std::vector<std::shared_ptr<Guest>> all;
  for (const auto& [rank, guest] : guests_)
    if (guest->connection) all.push_back(guest);
  for (const auto& guest : twice_)
    if (guest->connection) all.push_back(guest);
  return all;
}

// One that is gone meanwhile is noticed by its connection.
void RendezvousServer::Core::say(Guest& guest, Bytes message) {
  guest.connection->send(link::Subject::kCluster, message, {}, link::SendMode::kUrgent, kNever).ignore();
}

void RendezvousServer::Core::sayToAll(Bytes message) {
  for (const auto& guest : allConnected()) say(*guest, message);
}

void RendezvousServer::Core::end() {
  io::Reactor::TimerId timer = 0, surveyTimer = 0;
  std::vector<std::shared_ptr<Guest>> guests;
  {
    MutexLock lock(mutex_);
    timer = timer_;
    surveyTimer = surveyTimer_;
    stage_ = Stage::kOver;
    survey_.reset();
    guests = allConnected();  // a callback may still run for one of them: they go with the server
  }
  reactor_.cancel(timer);
  reactor_.cancel(surveyTimer);
  for (const auto& guest : guests) {
    guest->connection->leave("", Clock::now() + std::chrono::seconds(1));
    guest->connection->close(cancelled("the rendezvous is over"));
  }
}

RendezvousServer::RendezvousServer(std::shared_ptr<Core> core, Acceptors acceptors)
    : core_(std::move(core)), acceptors_(std::move(acceptors)) {}

RendezvousServer::~RendezvousServer() { stop(); }

void RendezvousServer::setCause(CauseOf causeOf) { core_->setCause(std::move(causeOf)); }

void RendezvousServer::setCosts(const Costs& costs) { core_->setCosts(costs); }

void RendezvousServer::measureFrom(const Costs& known, bool sharesMemory, Duration time) {
  core_->measureFrom(known, sharesMemory, time);
}

Status RendezvousServer::fail(const Status& why) { return core_->fail(why); }

void RendezvousServer::tellLateComers(TimePoint deadline) { core_->waitForAll(deadline); }

void RendezvousServer::stop() {
  acceptors_.clear();
  core_->end();
}

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::start(io::Reactor& reactor,
                                                                  const std::vector<io::Address>& addresses,
                                                                  const link::Credentials& credentials, World world,
                                                                  Duration joinTimeout, TimePoint deadline) {
  io::Fd allCame(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!allCame.valid()) return io::errnoStatus(Code::kResourceExhausted, "no eventfd can be made", errno);
  auto core = std::make_shared<Core>(reactor, credentials.self.worker.name, world, joinTimeout, std::move(allCame));
  Result<Acceptors> acceptors = acceptAtMeeting(reactor, addresses, credentials, [&core] {
    link::Acceptor::Host host;
    host.check = [core](const link::Hello& hello) { return core->check(hello); };
    host.accept = [core](io::Stream stream, link::Hello hello) { core->accept(std::move(stream), hello); };
    return host;
  });
  if (!acceptors.ok()) return acceptors.status().withContext("rank 0 cannot serve the rendezvous");
  core->begin(deadline);
  return std::unique_ptr<RendezvousServer>(
      new RendezvousServer(std::move(core), std::move(*acceptors)));  // NOLINT: private constructor
}

}  // namespace treadle::cluster
