#include "treadle/core/cluster/coordinator.h"

#include "treadle/core/base/log.h"
#include "treadle/core/io/executor.h"

namespace treadle::cluster {
namespace {

// How long nothing must have been done before a worker in its shutdown says so: a call that comes every now and then
// should not cost a message to the keeper each.
constexpr Duration kQuiet = std::chrono::milliseconds(10);
// For the keeper to tell whom a wait that has failed waited for.
constexpr Duration kAskTime = std::chrono::milliseconds(500);
constexpr std::byte kGivesValue{1};

}  // namespace

Coordinator::Coordinator(Membership& membership, io::Reactor& reactor, std::function<WorkCount()> work)
    : membership_(membership), reactor_(reactor), work_(std::move(work)), keeper_(membership) {
  if (!membership.open() && membership.self().rank == 0) keeper_.begin(true);
}

// A failure means that the peer is lost, which ends every wait here by itself, or that a value is too large.
Status Coordinator::tell(int rank, Bytes message) {
  return membership_.send(rank, link::Subject::kCluster, message, {}, link::SendMode::kUrgent, kNever);
}

// The keeper, which knows whom the job waits for, is asked shortly before the deadline, to have its answer then.
Status Coordinator::waitFor(MutexLock& lock, const std::function<bool()>& done, TimePoint deadline,
                            std::string_view what) {
  const TimePoint begin = Clock::now();
  TimePoint ask = deadline;
  if (deadline != kNever && deadline > begin) ask = deadline - std::min(kAskTime, (deadline - begin) / 4);
  while (!done()) {
    if (!lost_.ok()) return lost_.withContext(what);
    if (changed_.waitUntil(lock, ask) || done() || Clock::now() < ask) continue;
    if (ask == deadline) return deadlineExceeded(std::string(what) + " did not end in time: " + whatIsLeft());
    ask = deadline;
    left_.reset();
    tellKeeper(encodePlain(ClusterKind::kWhatIsLeft)).ignore();
  }
  return {};
}

std::string Coordinator::whatIsLeft() const {
  if (keeper_.active()) return keeper_.whatIsLeft();
  return left_.value_or("other workers are not done, or calls are under way");
}

Result<std::vector<GatheredValue>> Coordinator::gatherAs(std::vector<std::byte> value, TimePoint deadline,
                                                         std::string_view what) {
  io::Executor::Blocking blocking;
  TREADLE_RETURN_IF_ERROR(blocking.status());
  MutexLock lock(mutex_);
  if (over_) return failedPrecondition(std::string(what) + " comes too late: the job is over");
  const uint64_t mine = ++lastGathered_;
  Gathered& entry = gathered_.emplace(mine, Gathered{std::move(value)}).first->second;
  // Under the lock: a new keeper is told of what the old one was told, and of nothing twice.
  Status told = tellKeeper(encodeEnter(mine, entry.value));
  if (told.code() == Code::kResourceExhausted) return gathered_.erase(mine), told;
  Status waited = waitFor(lock, [&] { return entry.outcome.has_value(); }, deadline, what);
  auto mineAgain = gathered_.extract(mine);
  if (!waited.ok()) return waited;
  auto& outcome = *mineAgain.mapped().outcome;
  return outcome.ok() ? std::move(outcome) : outcome.status().withContext(what);
}

Status Coordinator::barrier(TimePoint deadline) { return gatherAs({}, deadline, "the barrier").status(); }

Result<std::vector<GatheredValue>> Coordinator::gather(Bytes value, TimePoint deadline) {
  if (value.size() >= kMostGatheredBytes)
    return resourceExhausted("a value of " + std::to_string(value.size()) + " bytes is too large to be given to all: " +
                             std::to_string(kMostGatheredBytes - 1) + " is the most");
  std::vector<std::byte> tagged = {kGivesValue};
  tagged.insert(tagged.end(), value.begin(), value.end());
  auto values = gatherAs(std::move(tagged), deadline, "allGather");
  if (values.ok())
    for (GatheredValue& one : *values) one.bytes.erase(one.bytes.begin());
  return values;
}

Status Coordinator::shutdown(TimePoint deadline) {
  io::Executor::Blocking blocking;
  TREADLE_RETURN_IF_ERROR(blocking.status());
  inShutdown_.store(true);
  tellWork(ClusterKind::kIdle, 0);
  MutexLock lock(mutex_);
  Status over = waitFor(lock, [&]() TREADLE_REQUIRES(mutex_) { return over_; }, deadline, "the shutdown");
  if (over.ok()) return over;
  // Given up: what this worker does next is not to be cut off by the others' shutdown, which waits for it again.
  lock.unlock();
  inShutdown_.store(false);
  tellWork(ClusterKind::kIdle, 0, true);
  return over;
}

Status Coordinator::awaitQuiet(const std::function<bool()>& done, TimePoint deadline) {
  io::Executor::Blocking blocking;
  TREADLE_RETURN_IF_ERROR(blocking.status());
  asksWhenIdle_.store(true);
  MutexLock lock(mutex_);
  for (;;) {
    const uint64_t seen = quiet_;
    lock.unlock();
    if (done()) return {};
    lock.lock();
    while (seen == quiet_)
      if (!changed_.waitUntil(lock, deadline) && Clock::now() >= deadline) return deadlineExceeded("it is not done");
  }
}

void Coordinator::workDone() {
  if (asksWhenIdle_.load()) {
    MutexLock lock(mutex_);
    ++quiet_;
    changed_.notifyAll();
  }
  if (inShutdown_.load() && !waitsForQuiet_.exchange(true)) tellWhenQuiet(work_());
}

// Who ends the last call meanwhile relies on this look, so the mark is taken down before it.
void Coordinator::tellWhenQuiet(const WorkCount& seen) {
  reactor_.at(Clock::now() + kQuiet, [this, seen] {
    waitsForQuiet_.store(false);
    WorkCount now = work_();
    if (!now.idle) return;  // the end of that work comes here again
    if (now == seen) return tellWork(ClusterKind::kIdle, 0);
    workDone();
  });
}

// Counting and sending are one step: the keeper takes what comes later for newer.
void Coordinator::tellWork(ClusterKind kind, uint64_t round, bool evenIfBusy) {
  MutexLock lock(tellWorkMutex_);
  WorkCount now = work_();
  now.gone = membership_.gone();
  now.idle = now.idle && inShutdown_.load();
  if (now.idle || evenIfBusy || kind == ClusterKind::kProbeAnswer) tellKeeper(encodeCount(kind, round, now)).ignore();
}

void Coordinator::onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) {
  Result<ClusterMessage> parsed = parseClusterMessage(message.payload);
  if (!parsed.ok()) return from->close(parsed.status());
  Status taken = onAnyonesMessage(rank, *parsed);
  if (!taken.ok()) from->close(taken);
}

// What anybody may send; the rest comes from the keeper.
Status Coordinator::onAnyonesMessage(int from, ClusterMessage& message) {
  switch (message.kind) {
    case ClusterKind::kEnter:
    case ClusterKind::kIdle:
    case ClusterKind::kProbeAnswer:
    case ClusterKind::kSuspect:
    case ClusterKind::kAdmitted:
    case ClusterKind::kConnected:
    case ClusterKind::kFollow:
    case ClusterKind::kWhatIsLeft: return keeper_.onMessage(from, std::move(message));
    case ClusterKind::kOut: return onOut(from, message), Status();
    case ClusterKind::kTaken: {
      MutexLock lock(mutex_);
      if (from != successor_) return dataLoss("it took over what nobody has given it");
      taken_ = true;
      changed_.notifyAll();
      return {};
    }
    default: return onKeepersMessage(from, std::move(message));
  }
}

Status Coordinator::onKeepersMessage(int from, ClusterMessage message) {
  if (from != keeperRank_.load()) return dataLoss("it sent what only the keeper of a job says");
  switch (message.kind) {
    case ClusterKind::kGathered: return onDecided(message.round, std::move(message.values)), Status();
    case ClusterKind::kNotAll: return onDecided(message.round, message.why), Status();
    case ClusterKind::kProbe: return tellWork(ClusterKind::kProbeAnswer, message.round), Status();
    default: break;
  }
  if (message.kind == ClusterKind::kFinish || message.kind == ClusterKind::kLeft) {
    MutexLock lock(mutex_);
    if (message.kind == ClusterKind::kLeft) {
      left_ = std::move(message.text);
    } else {
      membership_.finish();
      over_ = true;
    }
    return changed_.notifyAll(), Status();
  }
  if (!membership_.open()) return dataLoss("it sent what is for open jobs, and this one has a fixed size");
  switch (message.kind) {
    case ClusterKind::kAdmit: onAdmit(message.worker); break;
    case ClusterKind::kHere:
      if (message.rank < membership_.worldSize()) membership_.welcome(message.rank);
      break;
    case ClusterKind::kTakeOver: hooks_.takeOver(message.rank); break;
    default: onKeeper(message.rank); break;
  }
  return {};
}

void Coordinator::onDecided(uint64_t round, Result<std::vector<GatheredValue>> outcome) {
  MutexLock lock(mutex_);
  auto found = gathered_.find(round);
  if (found == gathered_.end()) return;  // it was given up
  found->second.outcome = std::move(outcome);
  changed_.notifyAll();
}

// Where the job goes on without a worker, the keeper's word counts for all. That the keeper is given up by somebody is
// that one's end; of two others that have lost each other the keeper decides which stays.
void Coordinator::onOut(int from, const ClusterMessage& message) {
  const bool itself = message.rank == membership_.self().rank;
  const int keeper = keeperRank_.load();
  if (itself && membership_.canGoOnWithout(message.rank) && from == keeper && keeper != membership_.self().rank) {
    std::string who = link::describe(membership_.info(from));
    return membership_.loseAll(peerLost(membership_.self().name, "this worker is out of its job, as " + who +
                                                                     " has given it up: " + message.why.message()));
  }
  const int rank = itself ? from : message.rank;
  if (rank >= membership_.worldSize() || (!itself && (from != keeper || !membership_.canGoOnWithout(rank)))) return;
  // Who gives up a worker that the job can go on without has reported it to the keeper, which decides between the two.
  if (!itself || membership_.canGoOnWithout(membership_.self().rank)) {
    MutexLock lock(mutex_);
    verdicts_.insert(rank);
  }
  membership_.lose(rank, itself ? peerLost("", "it has given this worker up: " + message.why.message()) : message.why);
}

void Coordinator::onAdmit(const RosterEntry& worker) {
  hooks_.expect(worker);
  membership_.expect(worker.worker);
  tellKeeper(encodeRank(ClusterKind::kAdmitted, worker.worker.rank)).ignore();
  // Ranks that were skipped count as gone from now on.
  if (inShutdown_.load()) tellWork(ClusterKind::kIdle, 0);
}

void Coordinator::connectedTo(int rank) { tellKeeper(encodeRank(ClusterKind::kConnected, rank)).ignore(); }

void Coordinator::suspect(int rank, const Status& why) { tellKeeper(encodeSuspect(rank, why)).ignore(); }

// What waits at the old keeper waits at the new one.
void Coordinator::onKeeper(int rank) {
  {
    MutexLock lock(mutex_);
    if (declined_ && rank == membership_.self().rank) return;  // it came too late: the job has no keeper
    keeperRank_.store(rank);
    changed_.notifyAll();
    tellKeeper(encodePlain(ClusterKind::kFollow)).ignore();
    for (const auto& [round, entry] : gathered_)
      if (!entry.outcome) tellKeeper(encodeEnter(round, entry.value)).ignore();
    for (int lost = 0; lost < membership_.worldSize(); ++lost)
      if (auto loss = membership_.lossOf(lost); loss && !loss->told && !verdicts_.contains(lost))
        suspect(lost, loss->cause);
  }
  if (auto loss = membership_.lossOf(rank)) return close(loss->why);
  tellWork(ClusterKind::kIdle, 0);
}

void Coordinator::handOver(int nextRank) {
  for (int rank : membership_.present()) {
    if (rank == membership_.self().rank) continue;
    MutexLock lock(mutex_);
    successor_ = rank;
    taken_ = false;
    tell(rank, encodeRank(ClusterKind::kTakeOver, nextRank)).ignore();
    // No longer than it lives: once it is asked there is no way back.
    while (!taken_ && !membership_.lossOf(rank)) changed_.wait(lock);
    lock.unlock();
    if (membership_.lossOf(rank)) continue;  // the next one
    keeper_.end();
    // The successor last: should this worker die half way, it has not been told, and declines for all.
    for (int each : membership_.present())
      if (each != rank) tell(each, encodeRank(ClusterKind::kKeeper, rank)).ignore();
    tell(rank, encodeRank(ClusterKind::kKeeper, rank)).ignore();
    return;
  }
}

void Coordinator::beginTakingOver() { keeper_.begin(false); }

// The keeper may die before it has told anybody: then there is none, and what this worker let in would be in no job.
bool Coordinator::tookOver() {
  const int self = membership_.self().rank, before = keeperRank_.load();
  tellKeeper(encodePlain(ClusterKind::kTaken)).ignore();
  MutexLock lock(mutex_);
  while (keeperRank_.load() != self && !membership_.lossOf(before)) changed_.wait(lock);
  if (keeperRank_.load() == self) return true;
  declined_ = true;
  lock.unlock();
  for (int rank : keeper_.decline())
    if (rank != self)
      membership_.lose(rank, failedPrecondition("it takes this worker for the keeper, which it is not"));
  return false;
}

// Where the job goes on, the keeper makes it everybody's loss. The counts of all have changed with it.
void Coordinator::onLost(int rank, const Status& why) {
  const bool keeper = rank == keeperRank_.load(), goesOn = membership_.canGoOnWithout(rank);
  if (!goesOn || keeper) close(why);
  keeper_.onLost(rank);
  std::optional<Membership::Loss> loss = membership_.lossOf(rank);
  bool known = false;
  {
    MutexLock lock(mutex_);
    known = verdicts_.contains(rank);
    changed_.notifyAll();
  }
  if (goesOn && loss && !loss->told && !known && !keeper && keeperRank_.load() != membership_.self().rank)
    suspect(rank, loss->cause);
  if (goesOn && inShutdown_.load()) tellWork(ClusterKind::kIdle, 0);
}

void Coordinator::close(const Status& why) {
  MutexLock lock(mutex_);
  if (lost_.ok()) lost_ = why;
  ++quiet_;
  changed_.notifyAll();
}

}  // namespace treadle::cluster
