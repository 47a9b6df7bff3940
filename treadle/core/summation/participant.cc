#include "treadle/core/summation/participant.h"

#include <algorithm>
#include <new>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/core/base/listed.h"
#include "treadle/core/io/executor.h"

namespace treadle::summation {

Participant::Participant(std::vector<WorkerInfo> machines, size_t workers, Machine self, PumpOptions options,
                         Report report)
    : machines_(std::move(machines)),
      workers_(workers),
      self_(self),
      options_(std::move(options)),
      report_(std::move(report)) {}

std::vector<std::string> Participant::names() const {
  std::vector<std::string> names;
  for (const WorkerInfo& machine : machines_) names.push_back(machine.name);
  return names;
}

std::optional<Machine> Participant::machineOf(int rank) const {
  for (Machine machine = 0; machine < machines_.size(); ++machine)
    if (machines_[machine].rank == rank) return machine;
  return {};
}

Status Participant::check(int rank) const {
  MutexLock lock(mutex_);
  return checkLocked(rank);
}

Status Participant::checkLocked(int rank) const {
  const std::optional<Machine> machine = machineOf(rank);
  const bool isAwaited =
      failure_.ok() && !isConnected_ && machine && dialsThis(*machine) && !streams_.contains(*machine);
  return isAwaited ? Status() : failedPrecondition("its connection for a summation service is not awaited");
}

Status Participant::take(int rank, io::Stream stream) {
  MutexLock lock(mutex_);
  TREADLE_RETURN_IF_ERROR(checkLocked(rank));
  streams_.emplace(machineOf(rank).value(), std::move(stream));
  changed_.notifyAll();
  return {};
}

void Participant::dialed(Machine machine, io::Stream stream) {
  MutexLock lock(mutex_);
  streams_.emplace(machine, std::move(stream));
}

void Participant::dialOthers(const Dial& dial, TimePoint deadline) {
  io::Executor::Blocking blocking;
  throwIfError(blocking.status());
  for (Machine machine = 0; machine < self_ && isWorker(machine); ++machine) {
    Result<io::Stream> stream = dial(machines_[machine].rank);
    if (!stream.ok()) raise(causeOf(std::move(stream).status(), deadline));
    dialed(machine, std::move(*stream));
  }
}

// A machine that has failed takes no connections, and its report may come a little later.
Status Participant::causeOf(Status why, TimePoint deadline) {
  deadline = std::min(deadline, deadlineAfter(options_.patience));
  MutexLock lock(mutex_);
  while (failure_.ok() && changed_.waitUntil(lock, deadline)) continue;
  return failure_.ok() ? std::move(why) : failure_;
}

std::vector<Machine> Participant::missing() const {
  std::vector<Machine> machines;
  for (Machine machine = 0; machine < machines_.size(); ++machine)
    if (dialsThis(machine) && !streams_.contains(machine)) machines.push_back(machine);
  return machines;
}

void Participant::awaitDialers(TimePoint deadline) {
  constexpr size_t kNamed = 8;
  io::Executor::Blocking blocking;
  throwIfError(blocking.status());
  MutexLock lock(mutex_);
  while (failure_.ok() && !missing().empty())
    if (!changed_.waitUntil(lock, deadline) && failure_.ok() && !missing().empty())
      raise(deadlineExceeded("no connection for a summation service has come in time from " +
                             listed(missing(), kNamed, [&](Machine one) { return machines_[one].name; }))
                .withWorker(machines_[missing().front()].name));
  throwIfError(failure_);
  isConnected_ = true;
}

void Participant::start(Declaration declaration) {
  std::vector<PumpPeer> peers;
  {
    MutexLock lock(mutex_);
    throwIfError(failure_);  // which lets go of the streams
    for (auto& [machine, stream] : streams_) peers.push_back({machine, std::move(stream)});
    streams_.clear();
  }
  // Without the lock, which reading threads take.
  auto pump = std::make_unique<Pump>(std::move(declaration), self_, names(), std::move(peers), options_);
  MutexLock lock(mutex_);
  throwIfError(failure_);
  pump_ = std::move(pump);
  for (const auto& tell : std::exchange(forPump_, {})) tell(*pump_);
  const auto ended = sharedStateOf(pump_->ended());
  lock.unlock();
  ended->onReady([this, weak = std::weak_ptr(ended)] {
    const auto state = weak.lock();
    if (state && !state->result().ok()) report(state->result().status());
  });
}

// Without memory for it the others notice that the connections end. So they do where a server has lost a worker: either
// that is lost to all, or the server is to them.
void Participant::report(const Status& why) try {
  if (!isWorker(self_) && why.code() == Code::kPeerLost) return;
  {
    MutexLock lock(mutex_);
    if (isKnownElsewhere_) return;
  }
  report_(why);
} catch (const std::bad_alloc&) {}

Status Participant::giveUp(const Status& why) {
  report(why);
  fail(why, /*isKnownElsewhere=*/true);
  MutexLock lock(mutex_);
  return failure_;
}

Pump& Participant::pump() const { return *pump_; }

bool Participant::isUnderWay() const {
  MutexLock lock(mutex_);
  return pump_ && !pump_->ended().ready();
}

void Participant::lost(int rank, const Status& why) {
  const std::optional<Machine> machine = machineOf(rank);
  if (!machine) return;
  {
    MutexLock lock(mutex_);
    if (isConnected_) return tellPump([machine = *machine, why](Pump& pump) { pump.lost(machine, why); });
  }
  fail(why, /*isKnownElsewhere=*/true);  // the group of the machines reports it
}

Status Participant::lostElsewhere(int rank, Machine server, const Status& why) {
  const std::optional<Machine> machine = machineOf(rank);
  if (self_ != 0 || !machine || !isWorker(*machine) || !isServer(server))
    return dataLoss("it sent the loss of a server to a worker that does not decide about it");
  const Status reported = why.withContext(machines_[*machine].name + " reports");
  MutexLock lock(mutex_);
  tellPump([server, reported](Pump& pump) { pump.lostElsewhere(server, reported); });
  return {};
}

Status Participant::moved(int rank, Machine server, std::vector<Machine> machines) {
  const std::optional<Machine> machine = machineOf(rank);
  if (self_ == 0 || machine != Machine{0} || !isServer(server))
    return dataLoss("it sent where parts of a summation service move, which it does not decide");
  if (server == self_) {
    const Status why = peerLost(machines_[self_].name, machines_[0].name + " and the others go on without this server");
    return fail(why, /*isKnownElsewhere=*/true), Status();
  }
  MutexLock lock(mutex_);
  tellPump([server, machines = std::move(machines)](Pump& pump) { pump.move(server, machines); });
  return {};
}

// Now, or when it starts.
void Participant::tellPump(std::function<void(Pump&)> tell) {
  if (pump_) {
    tell(*pump_);
  } else if (isConnected_) {
    forPump_.push_back(std::move(tell));
  }
}

void Participant::failedOn(int rank, const Status& why) {
  const std::optional<Machine> machine = machineOf(rank);
  if (machine) fail(why.withContext(machines_[*machine].name + " reports"), /*isKnownElsewhere=*/true);
}

bool Participant::isWithout(int rank) const {
  const std::optional<Machine> machine = machineOf(rank);
  MutexLock lock(mutex_);
  return machine && pump_ && pump_->isWithout(*machine);
}

void Participant::fail(const Status& why, bool isKnownElsewhere) {
  MutexLock lock(mutex_);
  if (!failure_.ok()) return;
  failure_ = why;
  isKnownElsewhere_ = isKnownElsewhere;
  streams_.clear();
  changed_.notifyAll();
  if (pump_) pump_->fail(why);
}

void Participant::close(const Status& why) {
  fail(why, /*isKnownElsewhere=*/false);
  io::Executor::Blocking blocking;
  MutexLock closes(closing_);
  Pump* pump = nullptr;
  {
    MutexLock lock(mutex_);
    pump = pump_.get();
  }
  if (pump != nullptr) pump->close(why);
}

}  // namespace treadle::summation
