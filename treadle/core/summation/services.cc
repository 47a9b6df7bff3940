#include "treadle/core/summation/services.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "treadle/core/base/environment.h"
#include "treadle/core/base/error.h"
#include "treadle/core/base/listed.h"
#include "treadle/core/base/log.h"
#include "treadle/core/summation/record.h"

namespace treadle::summation {
namespace {

// A report takes longer than this on a job's connections only where they are very busy: then a loss has another reason.
constexpr Duration kPatience = std::chrono::seconds(2);

// Absolute, as the program may change its folder.
std::string recordFolderHere() {
  const std::optional<std::string> folder = base::environment("TREADLE_RECORD");
  std::error_code error;
  const std::filesystem::path path = folder ? std::filesystem::absolute(*folder, error) : std::filesystem::path();
  return error ? *folder : path.string();
}

// None yet.
SummationTimes timesOf(std::string name, uint64_t number, const std::vector<WorkerInfo>& machines, size_t workers,
                       Machine self) {
  SummationTimes times{.service = std::move(name), .number = number, .worker = machines[self].name};
  for (Machine machine = 0; machine < machines.size(); ++machine)
    (machine < workers ? times.workers : times.servers).push_back(machines[machine].name);
  return times;
}

}  // namespace

Services::Services(cluster::Membership& membership, io::ContinueOn continueOn, Dial dial)
    : continueOn_(std::move(continueOn)),
      dial_(std::move(dial)),
      recordFolder_(recordFolderHere()),
      outbox_(std::make_shared<Outbox>(membership)),
      keeper_(std::make_shared<Keeper>(continueOn_)) {}

Services::~Services() { close(cancelled("this worker has left the job")); }

std::shared_ptr<Participant> Services::begin(uint64_t number, std::vector<WorkerInfo> machines, size_t workers,
                                             Machine self, Duration timeout, Bandwidths bandwidths, std::string name) {
  auto report = [outbox = outbox_, number, machines](const Status& why) { outbox->report(number, machines, why); };
  const PumpOptions options{.timeout = timeout,
                            .patience = kPatience,
                            .bandwidths = std::move(bandwidths),
                            .outbox = outbox_->forPump(number, machines, workers),
                            .continueOn = continueOn_,
                            .traffic = traffic_,
                            .times = timesOf(std::move(name), number, machines, workers, self),
                            .recordFolder = recordFolder_};
  if (!recordFolder_.empty()) removeRecord(options.times, recordFolder_);
  auto participant = std::make_shared<Participant>(std::move(machines), workers, self, options, std::move(report));
  MutexLock lock(mutex_);
  throwIfError(closed_);
  std::erase_if(participants_, [](const auto& one) { return one.second.expired(); });
  participants_[number] = participant;
  return participant;
}

void Services::Keeper::keep(std::shared_ptr<Participant> participant) {
  {
    MutexLock lock(mutex_);
    kept_.push_back(std::move(participant));
  }
  // The task has no participant of its own: an executor that has stopped drops it on this thread.
  runOn_.post([keeper = shared_from_this()] { keeper->letGo(); });
}

void Services::Keeper::letGo() {
  std::vector<std::shared_ptr<Participant>> kept;
  {
    MutexLock lock(mutex_);
    kept.swap(kept_);
  }
  for (const auto& participant : kept) participant->close(cancelled("it was dropped"));
}

void Services::Outbox::report(uint64_t number, const std::vector<WorkerInfo>& machines, const Status& why) {
  send(machines, encode(FailureMessage{number, why})).ignore();
}

Status Services::Outbox::send(const std::vector<WorkerInfo>& machines, const std::vector<std::byte>& message) {
  const base::Gate::Use inside(gate);
  if (!inside) return {};
  Status tooLarge;
  for (const WorkerInfo& machine : machines) {
    if (machine.rank == membership.self().rank) continue;
    const Status sent =
        membership.send(machine.rank, link::Subject::kSummation, message, {}, link::SendMode::kUrgent, kNever);
    if (sent.code() == Code::kResourceExhausted) tooLarge = sent;
  }
  return tooLarge;
}

PumpOutbox Services::Outbox::forPump(uint64_t number, std::vector<WorkerInfo> machines, size_t workers) {
  auto sendLoss = [outbox = shared_from_this(), number, first = std::vector(1, machines.front())](Machine server,
                                                                                                  const Status& why) {
    return outbox->send(first, encode(LossMessage{number, server, why}));
  };
  auto sendMove = [outbox = shared_from_this(), number, machines = std::move(machines), workers](
                      Machine server, const std::vector<Machine>& to, const Status& why) {
    constexpr size_t kNamed = 8;
    const std::span all(machines);
    const std::string names = listed(all.first(workers), kNamed, [](const WorkerInfo& one) { return one.name; });
    logWarn(machines.front().name,
            "the summation service of " + names + " goes on without " + machines[server].name + ": " + why.message());
    return outbox->send(machines, encode(MoveMessage{number, server, to}));
  };
  return {std::move(sendLoss), std::move(sendMove)};
}

std::shared_ptr<Participant> Services::find(uint64_t number) const {
  MutexLock lock(mutex_);
  const auto found = participants_.find(number);
  return found == participants_.end() ? nullptr : found->second.lock();
}

std::vector<std::shared_ptr<Participant>> Services::all() const {
  std::vector<std::shared_ptr<Participant>> living;
  MutexLock lock(mutex_);
  for (const auto& [number, weak] : participants_)
    if (auto participant = weak.lock()) living.push_back(std::move(participant));
  return living;
}

Status Services::check(int rank, uint64_t number) const {
  const auto participant = find(number);
  return participant ? participant->check(rank)
                     : failedPrecondition("this worker has no part in that summation service");
}

Status Services::attach(int rank, uint64_t number, io::Stream stream) {
  const auto participant = find(number);
  return participant ? participant->take(rank, std::move(stream)) : cancelled("the summation service has ended");
}

const WorkerInfo& Services::self() const { return outbox_->membership.self(); }

std::vector<std::string> Services::workers() const { return namesOf(/*servers=*/false); }
std::vector<std::string> Services::servers() const { return namesOf(/*servers=*/true); }

bool Services::isConnected(const std::string& name) const {
  const Result<int> rank = outbox_->membership.rankOf(name);
  return rank.ok() && outbox_->membership.outgoing(*rank).ok();
}

std::vector<std::string> Services::namesOf(bool servers) const {
  const cluster::Membership& membership = outbox_->membership;
  std::vector<std::string> names;
  for (const int rank : membership.ranks())
    if (membership.isServer(rank) == servers) names.push_back(membership.info(rank).name);
  return names;
}

// A server that is lost is missed by those who wait for it.
void Services::invite(const Invitation& invitation) const {
  cluster::Membership& membership = outbox_->membership;
  const std::vector<std::byte> message = encode(invitation);
  for (const std::string& name : invitation.servers) {
    const Result<int> rank = membership.rankOf(name);
    if (rank.ok() && membership.isServer(*rank))
      membership.send(*rank, link::Subject::kSummation, message, {}, link::SendMode::kUrgent, kNever).ignore();
  }
}

bool Services::anyIsServer(const std::vector<std::string>& names) const {
  const cluster::Membership& membership = outbox_->membership;
  return std::ranges::any_of(names, [&](const std::string& name) {
    const Result<int> rank = membership.rankOf(name);
    return rank.ok() && membership.isServer(*rank);
  });
}

Status Services::checkRoom(const std::vector<std::string>& servers) const {
  if (!anyIsServer(servers)) return {};
  const auto participants = all();
  const auto count = std::ranges::count_if(participants, [&](const auto& one) {
    return one->self() == 0 && one->isUnderWay() && anyIsServer(one->names());
  });
  if (static_cast<size_t>(count) < kMostServices) return {};
  return resourceExhausted(self().name + " has " + std::to_string(count) +
                           " summation services with servers of the job, and no more are possible; end one of them");
}

SummationCounters Services::counters() const {
  SummationCounters counters{.bytesReceived = traffic_->bytesReceived.load(),
                             .bytesSent = traffic_->bytesSent.load(),
                             .sums = traffic_->sums.load()};
  std::set<int> clients;
  for (const auto& participant : all()) {
    if (!participant->isUnderWay()) continue;
    ++counters.services;
    for (size_t worker = 0; worker < participant->workers(); ++worker)
      clients.insert(participant->machines()[worker].rank);
  }
  clients.erase(self().rank);
  counters.clients = clients.size();
  return counters;
}

void Services::onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) {
  if (!message.buffers.empty()) return from->close(dataLoss("it sent buffers with a message of a summation service"));
  Result<ServiceMessage> parsed = parseServiceMessage(message.payload);
  if (!parsed.ok()) return from->close(parsed.status());
  const Status taken = std::visit([&](auto& one) { return onServiceMessage(rank, std::move(one)); }, *parsed);
  if (!taken.ok()) from->close(taken);
}

// Of a service that is over here it is no news; so it is with those below.
Status Services::onServiceMessage(int rank, const FailureMessage& failure) {
  const auto participant = find(failure.number);
  if (participant && participant->isWithout(rank)) return {};
  outbox_->membership.noteReported(rank, failure.why);  // before anybody can end over it
  if (participant) participant->failedOn(rank, failure.why);
  return {};
}

Status Services::onServiceMessage(int rank, const LossMessage& loss) {
  const auto participant = find(loss.number);
  return participant ? participant->lostElsewhere(rank, loss.server, loss.why) : Status();
}

Status Services::onServiceMessage(int rank, MoveMessage move) {
  const auto participant = find(move.number);
  return participant ? participant->moved(rank, move.lost, std::move(move.machines)) : Status();
}

Status Services::onServiceMessage(int rank, Invitation invitation) {
  if (!serve_) return dataLoss("it invited a worker that is no server to a summation service");
  const cluster::Membership& membership = outbox_->membership;
  const std::vector<std::string>& servers = invitation.servers;
  const bool servesThere = std::find(servers.begin(), servers.end(), self().name) != servers.end();
  if (!servesThere || invitation.workers.front() != membership.info(rank).name)
    return dataLoss("it sent an invitation to a summation service of others");
  for (const auto* names : {&std::as_const(invitation).workers, &servers})
    for (const std::string& name : *names) TREADLE_RETURN_IF_ERROR(membership.rankOf(name).status());
  MutexLock lock(mutex_);
  if (invitations_[rank] == kMostInvitations)
    return resourceExhausted("it invited this server to more than " + std::to_string(kMostInvitations) +
                             " summation services at a time");
  ++invitations_[rank];
  lock.unlock();
  serve_(std::move(invitation), [this, rank] {
    MutexLock again(mutex_);
    --invitations_[rank];
  });
  return {};
}

void Services::onLost(int rank, const Status& why) {
  for (const auto& participant : all()) participant->lost(rank, why);
}

void Services::close(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (closed_.ok()) closed_ = why;
  }
  for (const auto& participant : all()) participant->close(why);
  keeper_->letGo();
  outbox_->gate.close();
}

}  // namespace treadle::summation
