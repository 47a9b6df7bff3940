#include "treadle/core/rpc/references.h"

#include <algorithm>

#include "treadle/core/rpc/engine.h"

namespace treadle::rpc {

RefHandle::~RefHandle() { references_->release(*this); }

// Destroying a value or a handle may end in here again, and sending takes other locks: so both happen after
// the lock is let go.
// For the threads that read: the destructor of a user's value may take long, call or wait.
void References::performElsewhere(Deferred later) {
  std::shared_ptr<Engine> alive = engine();
  if (alive && !later.dropped.empty()) alive->executor().post([dropped = std::move(later.dropped)] {});
  perform(std::move(later));
}

void References::perform(Deferred later) {
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
  } else if (ref.rank == self_ || gone_.contains(ref)) {
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
  Deferred later;
  {
    MutexLock lock(mutex_);
    auto found = owned_.find(ref);
    if (found == owned_.end()) return;
    auto waiting = found->second.waiting.find(number);
    if (waiting == found->second.waiting.end()) return;
    later.dropped.emplace_back(std::make_shared<WhenReady>(std::move(waiting->second)));
    found->second.waiting.erase(waiting);
    dropIfUnused(ref, later);
  }
  perform(std::move(later));
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
    if (!lost_.empty()) gone_.insert(ref);
  }
  owned_.erase(found);
}

// ---- references of this worker to values of others

// The requester names the value and its own first fork, so that it need not wait for the owner to do so.
HandlePtr References::expect(int owner) {
  MutexLock lock(mutex_);
  ForkEntry entry{nextId(), owner, nextId()};
  if (owner == self_) return localHandle(entry);
  if (cleared_)
    return std::make_shared<RefHandle>(shared_from_this(), entry, false);  // nobody would be told of its end
  held_[entry.fork] = Held{entry, false, false, {}, {}};
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
  perform(std::move(later));
}

// Guarantee 2: not before the owner knows the fork; it is not released while a child keeps its handle.
void References::deleteIfDone(const ForkId& fork, Deferred& later) {
  auto found = held_.find(fork);
  if (found == held_.end()) return;
  const Held& held = found->second;
  if (!held.released || !held.confirmed) return;
  if (!lost_.contains(held.entry.owner)) {
    later.notices.emplace_back(held.entry.owner, RefNotice::kForkDeleted, held.entry);
    deletions_.emplace(fork, Deletion{held.entry});
  }
  held_.erase(found);
}

bool References::resendDeletions() {
  Deferred later;
  bool left = false;
  {
    MutexLock lock(mutex_);
    for (auto& [fork, deletion] : deletions_)
      if (std::exchange(deletion.overdue, true))
        later.notices.emplace_back(deletion.entry.owner, RefNotice::kForkDeleted, deletion.entry);
    left = !deletions_.empty();
  }
  perform(std::move(later));
  return left;
}

// ---- references in messages

// At the owner the fork is known from here on. Elsewhere the parent is kept alive by the child's entry:
// guarantee 2.
ForkEntry References::fork(const HandlePtr& handle, int toRank) {
  MutexLock lock(mutex_);
  ForkEntry entry{handle->entry().ref, handle->entry().owner, nextId()};
  if (handle->local()) {
    owned_[entry.ref].forks[entry.fork] = toRank;
  } else if (!cleared_ && !lost_.contains(entry.owner)) {
    children_[entry.fork] = Child{entry, toRank, handle};
  }
  return entry;
}

HandlePtr References::borrow(const RefId& ref, int owner) {
  return std::make_shared<RefHandle>(shared_from_this(), ForkEntry{ref, owner, {}}, false);
}

void References::unfork(const std::vector<ForkEntry>& entries) {
  Deferred later;
  {
    MutexLock lock(mutex_);
    for (const ForkEntry& entry : entries) {
      dropChild(entry.fork, later);
      if (auto found = owned_.find(entry.ref); entry.owner == self_ && found != owned_.end()) {
        found->second.forks.erase(entry.fork);
        dropIfUnused(entry.ref, later);
      }
    }
  }
  perform(std::move(later));
}

void References::dropChild(const ForkId& fork, Deferred& later) {
  auto child = children_.find(fork);
  if (child == children_.end()) return;
  later.dropped.emplace_back(std::move(child->second.parent));
  children_.erase(child);
}

std::vector<HandlePtr> References::adopt(int fromRank, const std::vector<ForkEntry>& entries) {
  std::vector<HandlePtr> handles;
  Deferred later;
  {
    MutexLock lock(mutex_);
    for (const ForkEntry& entry : entries) {
      if (entry.owner == self_) {
        Owned& owned = namedByPeer(entry.ref);
        if (fromRank == self_) owned.forks.erase(entry.fork);
        handles.push_back(localHandle(entry));
        if (fromRank != self_) later.notices.emplace_back(fromRank, RefNotice::kChildAccepted, entry);
        continue;
      }
      if (cleared_ || lost_.contains(entry.owner)) {  // the sender did not know; nobody would ever confirm it
        handles.push_back(std::make_shared<RefHandle>(shared_from_this(), entry, false));
        continue;
      }
      bool fromOwner = entry.owner == fromRank;
      held_[entry.fork] = Held{entry, fromOwner, false, {}, fromOwner ? std::nullopt : std::optional(fromRank)};
      handles.push_back(std::make_shared<RefHandle>(shared_from_this(), entry, false));
      if (!fromOwner) later.notices.emplace_back(entry.owner, RefNotice::kForkAdded, entry);
    }
  }
  perform(std::move(later));
  return handles;
}

void References::adoptRequested(int fromRank, const ForkEntry& entry) {
  if (fromRank == self_) return;  // it holds a handle, see expect()
  MutexLock lock(mutex_);
  if (cleared_ || lost_.contains(fromRank)) return;
  Owned& owned = namedByPeer(entry.ref);
  owned.requested = true;
  owned.forks[entry.fork] = fromRank;
}

void References::onNotice(int fromRank, RefNotice notice, const ForkEntry& entry) {
  Deferred later;
  {
    MutexLock lock(mutex_);
    if (cleared_ || lost_.contains(fromRank)) return;
    switch (notice) {
      case RefNotice::kForkAdded:
        namedByPeer(entry.ref).forks[entry.fork] = fromRank;
        later.notices.emplace_back(fromRank, RefNotice::kForkKnown, entry);
        break;
      case RefNotice::kForkKnown:
        if (auto held = held_.find(entry.fork); held != held_.end()) {
          held->second.confirmed = true;
          if (held->second.parent) later.notices.emplace_back(*held->second.parent, RefNotice::kChildAccepted, entry);
          held->second.parent.reset();
          deleteIfDone(entry.fork, later);
        }
        break;
      case RefNotice::kChildAccepted: dropChild(entry.fork, later); break;
      case RefNotice::kForkDeleted:
        if (auto found = owned_.find(entry.ref); found != owned_.end()) {
          // Of another's fork it is no business of the sender.
          auto fork = found->second.forks.find(entry.fork);
          if (fork != found->second.forks.end() && fork->second == fromRank) found->second.forks.erase(fork);
          dropIfUnused(entry.ref, later);
        }
        later.notices.emplace_back(fromRank, RefNotice::kDeletionKnown, entry);
        break;
      case RefNotice::kDeletionKnown:
        if (auto found = deletions_.find(entry.fork);
            found != deletions_.end() && found->second.entry.owner == fromRank)
          deletions_.erase(found);
        break;
    }
  }
  performElsewhere(std::move(later));
}

void References::onLost(int rank, const Status& why) {
  Deferred later;
  {
    MutexLock lock(mutex_);
    lost_.emplace(rank, why);
    std::vector<ForkId> children;
    for (const auto& [fork, child] : children_)
      if (child.toRank == rank || child.entry.owner == rank) children.push_back(fork);
    for (const ForkId& fork : children) dropChild(fork, later);
    std::vector<RefId> values;
    for (auto& [ref, owned] : owned_) {
      std::erase_if(owned.forks, [&](const auto& fork) { return fork.second == rank; });
      // The request that would make the value will not come any more. One that has come is run for the others.
      if (!owned.value && !owned.requested && ref.rank == rank) settle(owned, why, later);
      values.push_back(ref);
    }
    for (const RefId& ref : values) dropIfUnused(ref, later);
    std::erase_if(held_, [&](const auto& held) { return held.second.entry.owner == rank; });
    std::erase_if(deletions_, [&](const auto& deletion) { return deletion.second.entry.owner == rank; });
  }
  performElsewhere(std::move(later));
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

}  // namespace treadle::rpc
