#include "treadle/core/cluster/keeper.h"

#include "treadle/core/base/listed.h"

namespace treadle::cluster {

void Keeper::begin(bool following) {
  MutexLock lock(mutex_);
  active_ = true;
  gathering_ = {};
  vote_ = {};
  for (int rank : membership_.present()) {
    if (!membership_.isServer(rank)) gathering_.add(rank);
    vote_.add(rank);
    if (!following) unsent_[rank];
  }
}

void Keeper::end() {
  MutexLock lock(mutex_);
  active_ = false;
}

std::vector<int> Keeper::decline() {
  MutexLock lock(mutex_);
  active_ = false;
  declined_ = true;
  std::vector<int> followers = membership_.present();
  std::erase_if(followers, [&](int rank) TREADLE_REQUIRES(mutex_) { return unsent_.contains(rank); });
  return followers;
}

bool Keeper::active() const {
  MutexLock lock(mutex_);
  return active_;
}

void Keeper::setDoorkeeper(std::shared_ptr<Doorkeeper> doorkeeper) {
  MutexLock lock(mutex_);
  doorkeeper_.swap(doorkeeper);
  lock.unlock();
}

// Under the lock, so that a worker hears of things in the order in which they were decided. That it is lost ends its
// waits by itself; ResourceExhausted for a message that is larger than one may be.
Status Keeper::tell(int rank, Bytes message) {
  if (auto waiting = unsent_.find(rank); waiting != unsent_.end()) {
    waiting->second.emplace_back(message.begin(), message.end());
    return {};
  }
  Status sent = membership_.send(rank, link::Subject::kCluster, message, {}, link::SendMode::kUrgent, kNever);
  return sent.code() == Code::kResourceExhausted ? sent : Status();
}

void Keeper::tellAll(Bytes message) {
  for (int rank : membership_.present()) tell(rank, message).ignore();
}

void Keeper::onFollow(int from) {
  auto waiting = unsent_.extract(from);
  if (waiting.empty()) return;
  for (const auto& message : waiting.mapped()) tell(from, message).ignore();
}

void Keeper::tellComplete(const Gathering::Complete& complete) {
  for (const Gathering::Word& word : complete.words) {
    Status told = complete.failure;
    if (told.ok()) told = tell(word.rank, encodeGathered(word.round, complete.values));
    if (!told.ok()) tell(word.rank, encodeNotAll(word.round, told)).ignore();
  }
}

Status Keeper::onEnter(int from, ClusterMessage& message) {
  auto complete = gathering_.enter(from, message.round, std::move(message.value));
  if (!complete.ok()) return std::move(complete).status();
  if (*complete) tellComplete(**complete);
  return {};
}

void Keeper::act(ShutdownVote::Action action) {
  if (action == ShutdownVote::Action::kProbe) tellAll(encodeRound(ClusterKind::kProbe, vote_.round()));
  if (action == ShutdownVote::Action::kFinish) tellAll(encodePlain(ClusterKind::kFinish));
}

// In an open job a message may be for a keeper that is none any more: its sender will hear of the new one, and say it
// again there.
Status Keeper::onMessage(int from, ClusterMessage message) {
  MutexLock lock(mutex_);
  if (declined_) return failedPrecondition("it takes this worker for the keeper of the job, which it is not");
  if (!active_) return membership_.open() ? Status() : dataLoss("it sent this worker what is for rank 0");
  switch (message.kind) {
    case ClusterKind::kEnter: return onEnter(from, message);
    case ClusterKind::kIdle: return act(vote_.report(from, message.count)), Status();
    case ClusterKind::kProbeAnswer: return act(vote_.answer(from, message.round, message.count)), Status();
    case ClusterKind::kFollow: return onFollow(from), Status();
    case ClusterKind::kWhatIsLeft: return tell(from, encodeLeft(whatIsLeftLocked()));
    case ClusterKind::kSuspect: lock.unlock(); return onSuspect(from, message), Status();
    case ClusterKind::kAdmitted:
    case ClusterKind::kConnected: {
      auto doorkeeper = doorkeeper_;
      lock.unlock();
      if (!doorkeeper) return {};
      bool admitted = message.kind == ClusterKind::kAdmitted;
      admitted ? doorkeeper->onAdmitted(message.rank, from) : doorkeeper->onConnected(message.rank, from);
      return {};
    }
    default: return dataLoss("it sent a message that only the keeper of a job sends");
  }
}

// One verdict for all, where the job goes on: a worker that is lost to one is lost to the job. Of two that have lost
// each other the first to say so stays.
void Keeper::onSuspect(int from, const ClusterMessage& message) {
  bool itself = message.rank == membership_.self().rank || message.rank == from;
  if (itself || message.rank >= membership_.worldSize() || !membership_.canGoOnWithout(message.rank) ||
      membership_.lossOf(from) || membership_.lossOf(message.rank))
    return;
  membership_.lose(message.rank,
                   peerLost("", link::describe(membership_.info(from)) + " has lost it: " + message.why.message()));
}

void Keeper::goOnWithout(int rank, const Membership::Loss& loss) {
  vote_.remove(rank);
  if (loss.left) {
    for (const auto& complete : gathering_.leave(rank)) tellComplete(complete);
  } else {
    for (const Gathering::Word& word : gathering_.lose(rank))
      tell(word.rank, encodeNotAll(word.round, loss.why)).ignore();
  }
}

void Keeper::onLost(int rank) {
  std::shared_ptr<Doorkeeper> doorkeeper;
  {
    MutexLock lock(mutex_);
    unsent_.erase(rank);
    std::optional<Membership::Loss> loss = membership_.lossOf(rank);
    if (!active_ || !loss) return;
    // Else the job does not end well, nor meets again.
    if (!membership_.canGoOnWithout(rank)) return;
    goOnWithout(rank, *loss);
    // Who says itself that it goes says it to all.
    if (!loss->told) tellAll(encodeOut(rank, loss->cause));
    doorkeeper = doorkeeper_;
  }
  if (doorkeeper) doorkeeper->onLost(rank);
}

void Keeper::announce(const RosterEntry& worker) {
  MutexLock lock(mutex_);
  tellAll(encodeAdmit(worker));
}

void Keeper::welcome(int rank) {
  MutexLock lock(mutex_);
  if (membership_.lossOf(rank)) return;  // meanwhile, and all have been told
  gathering_.add(rank);
  vote_.add(rank);
  membership_.welcome(rank);
  tellAll(encodeRank(ClusterKind::kHere, rank));
}

std::string Keeper::namesOf(const std::vector<int>& ranks) const {
  return listed(ranks, 16, [this](int rank) { return membership_.info(rank).name; });
}

std::string Keeper::whatIsLeft() const {
  MutexLock lock(mutex_);
  return whatIsLeftLocked();
}

std::string Keeper::whatIsLeftLocked() const {
  std::string names = namesOf(vote_.waitingFor());
  std::string text =
      names.empty() ? "calls are under way" : "these workers are not in their shutdown, or not done: " + names;
  std::string late = namesOf(gathering_.waitingFor());
  return late.empty() ? text : text + "; not at the barrier: " + late;
}

}  // namespace treadle::cluster
