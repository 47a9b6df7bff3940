#include "treadle/core/rpc/references.h"

#include <algorithm>

#include "treadle/core/io/serving.h"
#include "treadle/core/rpc/engine.h"

namespace treadle::rpc {

EngineUse::EngineUse(std::shared_ptr<References> references)
    : references_(std::move(references)), use_(references_->gate_), engine_(use_ ? references_->engine_ : nullptr) {}

RefHandle::~RefHandle() { references_->release(*this); }

// Destroying a value or a handle may end in here again, and sending takes other locks: so both happen after
// the lock is let go.
// For the threads that read: the destructor of a user's value may take long, call or wait.
void References::performElsewhere(Deferred later) {
  EngineUse alive = engine();
  if (alive && !later.dropped.empty()) alive->executor().post([dropped = std::move(later.dropped)] {});
  perform(std::move(later));
}

void References::perform(Deferred later) {
  if (base::Gate::Use use(gate_); use)
    for (const auto& [rank, notice, entry] : later.notices) send_(rank, notice, entry);
  for (auto& call : later.calls) call();
}

// ---- values of this worker

HandlePtr References::localHandle(const ForkEntry& entry) {
  ++owned_[entry.ref].handles;
  return std::make_shared<RefHandle>(shared_from_this(), entry, true);
}

HandlePtr References::own(OwnedValue value) {
  MutexLock lock(mutex_);
  RefId ref = nextId();
  owned_[ref].value.emplace(std::move(value));
  return localHandle({ref, self_, {}});
}

// Those who wait are called first and the value dropped after, if nobody refers to it any more: they were
// promised it.
void References::fulfil(const RefId& ref, Result<OwnedValue> value) {
  Deferred later;
  {
    MutexLock lock(mutex_);
    auto found = owned_.find(ref);
    // Whoever asked for it is lost already, or it is there.
    if (found == owned_.end() || found->second.value) return;
    // The loss of who asked for it cancels the request: who holds a reference learns the cause.
    auto maker = lost_.find(ref.rank);
    if (value.status().code() == Code::kCancelled && maker != lost_.end()) value = maker->second;
    settle(found->second, value, later);
    dropIfUnused(ref, later);
  }
  perform(std::move(later));
}

void References::settle(Owned& owned, const Result<OwnedValue>& value, Deferred& later) {
  owned.value = value;
  for (auto& [number, callback] : owned.waiting)
    later.calls.emplace_back([callback = std::move(callback), value]() mutable { callback(std::move(value)); });
  owned.waiting.clear();
}

References::Owned& References::namedByPeer(const RefId& ref) {
  auto [found, isNew] = owned_.try_emplace(ref);
  if (!isNew) return found->second;
  if (auto maker = lost_.find(ref.rank); maker != lost_.end()) {
    found->second.value.emplace(maker->second);
  } else if (auto gone = gone_.find(ref); gone != gone_.end()) {
    found->second.value.emplace(lost_.at(gone->second).withContext("the value of this reference is gone"));
  } else if (ref.rank == self_) {
    found->second.value.emplace(notFound("the value of this reference does not live here (any more)"));
  }
  return found->second;
}

// A value that was never heard of is waited for when its id is another rank's: the request that makes it may
// still be on its way. One of our own counter is not: that request would have been this worker's.
uint64_t References::whenReady(const RefId& ref, WhenReady callback) {
  Deferred later;
  std::optional<Result<OwnedValue>> value;
  {
    MutexLock lock(mutex_);
    if (cleared_) {
      value.emplace(cancelled("this worker has left the job"));
    } else if (Owned& owned = namedByPeer(ref); owned.value) {
      value = owned.value;
      dropIfUnused(ref, later);
    } else {
      owned.waiting.emplace(++lastWaiting_, std::move(callback));
      return lastWaiting_;
    }
  }
  perform(std::move(later));
  callback(std::move(*value));
  return 0;
}

bool References::wantedByOthers(const RefId& ref, int rank) const {
  MutexLock lock(mutex_);
  auto found = owned_.find(ref);
  if (found == owned_.end()) return false;
  const Owned& owned = found->second;
  return owned.handles > 0 || !owned.waiting.empty() ||
         std::any_of(owned.forks.begin(), owned.forks.end(), [&](const auto& fork) { return fork.second != rank; });
}

void References::stopWaiting(const RefId& ref, uint64_t number) {
  WhenReady dropped;  // goes without the lock
  Deferred later;
  {
    MutexLock lock(mutex_);
    dropped = takeWaiting(ref, number, later);
  }
  perform(std::move(later));
}

void References::endWait(const RefId& ref, uint64_t number, const Status& why) {
  WhenReady waiting;
  Deferred later;
  {
    MutexLock lock(mutex_);
    waiting = takeWaiting(ref, number, later);
  }
  perform(std::move(later));
  if (waiting) waiting(why);
}

References::WhenReady References::takeWaiting(const RefId& ref, uint64_t number, Deferred& later) {
  auto found = owned_.find(ref);
  if (found == owned_.end()) return {};
  auto waiting = found->second.waiting.extract(number);
  if (waiting.empty()) return {};
  dropIfUnused(ref, later);
  return std::move(waiting.mapped());
}

std::optional<OwnedValue> References::valueOf(const HandlePtr& handle) const {
  MutexLock lock(mutex_);
  auto found = owned_.find(handle->entry().ref);
  if (!handle->local() || found == owned_.end()) return std::nullopt;
  const std::optional<Result<OwnedValue>>& value = found->second.value;
  return value && value->ok() ? std::optional(**value) : std::nullopt;
}

// One that nobody speaks of any more and whose request has not come is as unknown as before: should the request come,
// it brings its fork.
void References::dropIfUnused(const RefId& ref, Deferred& later) {
  auto found = owned_.find(ref);
  if (found == owned_.end()) return;
  Owned& owned = found->second;
  if (!owned.forks.empty() || owned.handles > 0 || !owned.waiting.empty()) return;
  if (!owned.value && owned.requested) return;
  if (owned.value) {
    later.dropped.emplace_back(std::move(*owned.value));
    const std::optional<int> lost = owned.lostHolder ? owned.lostHolder : lastLost_;
    if (lost) forget(ref, *lost);
  }
  owned_.erase(found);
}

void References::forget(const RefId& ref, int lost) {
  if (!gone_.emplace(ref, lost).second) return;
  goneInTurn_.push_back(ref);
  if (goneInTurn_.size() <= kGone) return;
  gone_.erase(goneInTurn_.front());
  goneInTurn_.pop_front();
}

// ---- references of this worker to values of others

// The requester names the value and its own first fork, so that it need not wait for the owner to do so.
HandlePtr References::expect(int owner) {
  MutexLock lock(mutex_);
  ForkEntry entry{nextId(), owner, nextId()};
  if (owner == self_) return localHandle(entry);
  if (cleared_)
    return std::make_shared<RefHandle>(shared_from_this(), entry, false);  // nobody would be told of its end
  held_[entry.fork] = Held{.entry = entry};
  return std::make_shared<RefHandle>(shared_from_this(), entry, false);
}

void References::confirm(const ForkEntry& entry, const Status& outcome) {
  if (entry.owner == self_) {
    if (!outcome.ok()) fulfil(entry.ref, outcome);
    return;
  }
  Deferred later;
  {
    MutexLock lock(mutex_);
    auto found = held_.find(entry.fork);
    if (found == held_.end()) return;
    found->second.confirmed = true;
    found->second.failure = outcome;
    deleteIfDone(entry.fork, later);
  }
  performElsewhere(std::move(later));
}

void References::notAsked(const ForkEntry& entry) {
  MutexLock lock(mutex_);
  if (auto found = held_.find(entry.fork); found != held_.end()) found->second.unasked = true;
}

bool References::confirmed(const HandlePtr& handle) const {
  MutexLock lock(mutex_);
  if (handle->local()) {
    auto owned = owned_.find(handle->entry().ref);
    return owned != owned_.end() && owned->second.value && owned->second.value->ok();
  }
  auto held = held_.find(handle->entry().fork);
  return held != held_.end() && held->second.confirmed && held->second.failure.ok();
}

Status References::failureOf(const HandlePtr& handle) const {
  MutexLock lock(mutex_);
  if (cleared_) return failedPrecondition("this reference belongs to a worker that has left its job");
  if (auto lost = lost_.find(handle->entry().owner); lost != lost_.end()) return lost->second;
  if (handle->local()) {
    auto owned = owned_.find(handle->entry().ref);
    return owned != owned_.end() && owned->second.value ? owned->second.value->status() : Status();
  }
  auto held = held_.find(handle->entry().fork);
  return held == held_.end() ? Status() : held->second.failure;
}

Status References::failureUnknownToOwner(const RefHandle& handle) const {
  MutexLock lock(mutex_);
  auto held = held_.find(handle.entry().fork);
  return held != held_.end() && held->second.unasked ? held->second.failure : Status();
}

void References::release(const RefHandle& handle) {
  Deferred later;
  {
    MutexLock lock(mutex_);
    if (handle.local()) {
      auto found = owned_.find(handle.entry().ref);
      if (found != owned_.end()) {
        --found->second.handles;
        dropIfUnused(handle.entry().ref, later);
      }
    } else if (auto found = held_.find(handle.entry().fork); found != held_.end()) {
      found->second.released = true;
      deleteIfDone(handle.entry().fork, later);
    }
  }
  io::Serving::here() ? performElsewhere(std::move(later)) : perform(std::move(later));
}

// Guarantee 2: not before the owner knows the fork; it is not released while a child keeps its handle.
void References::deleteIfDone(const ForkId& fork, Deferred& later) {
  auto found = held_.find(fork);
  if (found == held_.end()) return;
  const Held& held = found->second;
  if (!held.released || !held.confirmed) return;
  if (!lost_.contains(held.entry.owner)) {
    later.notices.emplace_back(held.entry.owner, RefNotice::kForkDeleted, held.entry);
    deletions_.emplace(fork, Deletion{held.entry, held.giver});
  } else {
    forgetGiven(held.giver);
  }
  held_.erase(found);
}

bool References::resendDeletions() {
  Deferred later;
  bool left = false;
  {
    MutexLock lock(mutex_);
    auto next = deletions_.upper_bound(toldAgain_);
    for (size_t rest = deletions_.size(); rest > 0 && later.notices.size() < kToldAgainAtOnce; --rest) {
      if (next == deletions_.end()) next = deletions_.begin();
      auto& [fork, deletion] = *next++;
      toldAgain_ = fork;
      if (std::exchange(deletion.overdue, true))
        later.notices.emplace_back(deletion.entry.owner, RefNotice::kForkDeleted, deletion.entry);
    }
    left = !deletions_.empty();
  }
  perform(std::move(later));
  return left;
}

// No notices: the farewell on the connections says it all, and the others drop this worker's forks.
void References::clear(const Status& why) {
  Deferred later;
  {
    MutexLock lock(mutex_);
    cleared_ = true;
    for (auto& [fork, child] : children_) later.dropped.emplace_back(std::move(child.parent));
    for (auto& [ref, owned] : owned_) {
      for (auto& [number, callback] : owned.waiting)
        later.calls.emplace_back([callback = std::move(callback), why]() mutable { callback(why); });
      later.dropped.emplace_back(std::move(owned.value));
    }
    children_.clear();
    owned_.clear();
    held_.clear();
    deletions_.clear();
    given_.clear();
    forksOf_.clear();
  }
  perform(std::move(later));
}

References::Counts References::counts() const {
  MutexLock lock(mutex_);
  Counts counts{owned_.size(), 0, held_.size(), children_.size() + deletions_.size()};
  for (const auto& [ref, owned] : owned_) counts.forks += owned.forks.size();
  for (const auto& [fork, held] : held_) counts.pending += held.confirmed ? 0 : 1;
  return counts;
}

std::map<int, size_t> References::holders() const {
  MutexLock lock(mutex_);
  std::map<int, size_t> holders;
  for (const auto& [ref, owned] : owned_)
    for (const auto& [fork, rank] : owned.forks) ++holders[rank];
  return holders;
}

}  // namespace treadle::rpc
