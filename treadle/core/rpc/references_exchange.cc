// References in messages: which forks are given and taken, what the notices say, and what is left when a worker is
// lost.

#include "treadle/core/rpc/references.h"

namespace treadle::rpc {

// At the owner the fork is known from here on. Elsewhere the parent is kept alive by the child's entry:
// guarantee 2.
ForkEntry References::fork(const HandlePtr& handle, int toRank) {
  MutexLock lock(mutex_);
  ForkEntry entry{handle->entry().ref, handle->entry().owner, nextId()};
  if (handle->local()) {
    addFork(owned_[entry.ref], entry.fork, toRank);
  } else if (!cleared_ && !lost_.contains(entry.owner)) {
    children_[entry.fork] = Child{entry, toRank, handle};
    ++forksOf_[toRank];
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
        removeFork(found->second, entry.fork);
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
  --forksOf_[child->second.toRank];
  children_.erase(child);
}

void References::forgetGiven(int giver) {
  auto given = given_.find(giver);
  if (given != given_.end() && --given->second == 0) given_.erase(given);
}

// What an honest worker gives is far below the limit: of its own values it counts what others have itself. Without one,
// a liar could have this worker hold what fills its memory, or ask owners for more than they let it have.
Status References::checkGiven(int fromRank, const std::vector<ForkEntry>& entries, const ForkEntry* result) const {
  if (result != nullptr && (result->ref.rank != fromRank || result->fork.rank != fromRank || result->owner != self_))
    return dataLoss("it asked for a value under a name that is not its own");
  if (entries.empty()) return {};
  MutexLock lock(mutex_);
  size_t ofOthers = 0;
  for (const ForkEntry& entry : entries) {
    if (entry.fork.rank != fromRank) return dataLoss("it gave a reference under a number that is not its own");
    if (entry.owner == self_ && neverMade(entry.ref))
      return dataLoss("it gave a reference to a value that nobody has asked for");
    ofOthers += entry.owner != self_ ? 1 : 0;
  }
  auto given = given_.find(fromRank);
  const size_t has = given == given_.end() ? 0 : given->second;
  if (fromRank == self_ || has + ofOthers <= limit_ + limit_ / 2) return {};
  return resourceExhausted("it gave this worker " + std::to_string(has + ofOthers) +
                           " references that are held here, far over the limit of " + std::to_string(limit_) +
                           " (JoinOptions::referenceLimit)");
}

std::vector<HandlePtr> References::adopt(int fromRank, const std::vector<ForkEntry>& entries) {
  if (entries.empty()) return {};
  std::vector<HandlePtr> handles;
  Deferred later;
  {
    MutexLock lock(mutex_);
    for (const ForkEntry& entry : entries) {
      if (entry.owner == self_) {
        Owned& owned = namedByPeer(entry.ref);
        if (fromRank == self_) removeFork(owned, entry.fork);
        handles.push_back(localHandle(entry));
        if (fromRank != self_) later.notices.emplace_back(fromRank, RefNotice::kChildAccepted, entry);
        continue;
      }
      if (cleared_ ||
          lost_.contains(entry.owner)) {  // nobody would ever confirm it: the sender shall not wait for that
        handles.push_back(std::make_shared<RefHandle>(shared_from_this(), entry, false));
        later.notices.emplace_back(fromRank, RefNotice::kChildAccepted, entry);
        continue;
      }
      bool fromOwner = entry.owner == fromRank;
      Held held{.entry = entry, .confirmed = fromOwner, .giver = fromRank};
      if (!held_.try_emplace(entry.fork, std::move(held)).second) {  // no worker gives one fork twice
        handles.push_back(
            std::make_shared<RefHandle>(shared_from_this(), ForkEntry{entry.ref, entry.owner, {}}, false));
        continue;
      }
      ++given_[fromRank];
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
  if (cleared_ || lost_.contains(fromRank) || forksOf_[fromRank] >= 2 * limit_) return;
  Owned& owned = namedByPeer(entry.ref);
  owned.requested = true;
  addFork(owned, entry.fork, fromRank);
}

// One that another rank holds stays that rank's: nobody can end the reference of another by giving its number.
void References::addFork(Owned& owned, const ForkId& fork, int holder) {
  if (owned.forks.try_emplace(fork, holder).second) ++forksOf_[holder];
}

void References::removeFork(Owned& owned, const ForkId& fork) {
  auto found = owned.forks.find(fork);
  if (found == owned.forks.end()) return;
  --forksOf_[found->second];
  owned.forks.erase(found);
}

Status References::overLimit(int rank, size_t held) const {
  return resourceExhausted("rank " + std::to_string(rank) + " has " + std::to_string(held) +
                           " references of this worker, which lets each have " + std::to_string(limit_) +
                           " (JoinOptions::referenceLimit)");
}

Status References::roomFor(int rank, size_t more) const {
  if (rank == self_) return {};
  MutexLock lock(mutex_);
  auto held = forksOf_.find(rank);
  const size_t has = held == forksOf_.end() ? 0 : held->second;
  return has + more <= limit_ ? Status() : overLimit(rank, has);
}

Status References::checkFlood(int rank) const {
  auto held = forksOf_.find(rank);
  return held == forksOf_.end() || held->second <= 2 * limit_ ? Status() : overLimit(rank, held->second);
}

Status References::onNotice(int fromRank, RefNotice notice, const ForkEntry& entry) {
  Deferred later;
  Status flood;
  {
    MutexLock lock(mutex_);
    if (cleared_ || lost_.contains(fromRank)) return {};
    switch (notice) {
      case RefNotice::kForkAdded:
        if (neverMade(entry.ref)) return dataLoss("it holds a reference to a value that nobody has asked for");
        addFork(namedByPeer(entry.ref), entry.fork, fromRank);
        flood = checkFlood(fromRank);
        later.notices.emplace_back(fromRank, RefNotice::kForkKnown, entry);
        break;
      case RefNotice::kForkKnown:
        if (auto held = held_.find(entry.fork); held != held_.end() && held->second.entry.owner == fromRank) {
          if (held->second.giverWaits())
            later.notices.emplace_back(held->second.giver, RefNotice::kChildAccepted, entry);
          held->second.confirmed = true;
          deleteIfDone(entry.fork, later);
        }
        break;
      case RefNotice::kChildAccepted:
        if (auto child = children_.find(entry.fork); child != children_.end() && child->second.toRank == fromRank)
          dropChild(entry.fork, later);
        break;
      case RefNotice::kForkDeleted:
        if (auto found = owned_.find(entry.ref); found != owned_.end()) {
          // Of another's fork it is no business of the sender.
          auto fork = found->second.forks.find(entry.fork);
          if (fork != found->second.forks.end() && fork->second == fromRank) removeFork(found->second, entry.fork);
          dropIfUnused(entry.ref, later);
        }
        later.notices.emplace_back(fromRank, RefNotice::kDeletionKnown, entry);
        break;
      case RefNotice::kDeletionKnown:
        if (auto found = deletions_.find(entry.fork);
            found != deletions_.end() && found->second.entry.owner == fromRank) {
          forgetGiven(found->second.giver);
          deletions_.erase(found);
        }
        break;
    }
  }
  performElsewhere(std::move(later));
  return flood;
}

void References::onLost(int rank, const Status& why) {
  Deferred later;
  {
    MutexLock lock(mutex_);
    lost_.emplace(rank, why);
    lastLost_ = rank;
    std::vector<ForkId> children;
    for (const auto& [fork, child] : children_)
      if (child.toRank == rank || child.entry.owner == rank) children.push_back(fork);
    for (const ForkId& fork : children) dropChild(fork, later);
    std::vector<RefId> values;
    for (auto& [ref, owned] : owned_) {
      if (std::erase_if(owned.forks, [&](const auto& fork) { return fork.second == rank; }) > 0)
        owned.lostHolder = rank;
      // The request that would make the value will not come any more. One that has come is run for the others.
      if (!owned.value && !owned.requested && ref.rank == rank) settle(owned, why, later);
      values.push_back(ref);
    }
    forksOf_.erase(rank);  // and the children that it was sent are dropped above
    for (const RefId& ref : values) dropIfUnused(ref, later);
    std::erase_if(held_, [&](const auto& held) TREADLE_REQUIRES(mutex_) {
      const auto& [fork, one] = held;
      // A value that it was not asked for stays refused. It may not be known yet: of one that it has not answered the
      // caller says so (notAsked), and confirms it.
      const bool isOpen = one.giver < 0 && (!one.confirmed || one.unasked);
      if (one.entry.owner != rank || isOpen) return false;
      // It may have lost the owner too, or not: this worker's reference is of no use any more.
      if (one.giverWaits()) later.notices.emplace_back(one.giver, RefNotice::kChildAccepted, one.entry);
      forgetGiven(one.giver);
      return true;
    });
    std::erase_if(deletions_, [&](const auto& one) TREADLE_REQUIRES(mutex_) {
      const Deletion& deletion = one.second;
      if (deletion.entry.owner == rank) forgetGiven(deletion.giver);
      return deletion.entry.owner == rank;
    });
  }
  performElsewhere(std::move(later));
}

}  // namespace treadle::rpc
