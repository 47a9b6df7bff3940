#include "treadle/tensor/autograd/contexts.h"

namespace treadle::autograd {
namespace {

// Ids hold the rank of their maker in the upper bits.
constexpr int kRankShift = 40;
constexpr size_t kRememberedReleases = 4096;

Status gone(int64_t id) {
  return notFound("autograd context " + std::to_string(id) + " has ended on the worker that owns it");
}

}  // namespace

std::vector<std::shared_ptr<Pass>> ContextState::takePasses() {
  std::vector<std::shared_ptr<Pass>> taken;
  MutexLock lock(mutex);
  for (auto& [id, live] : passes) taken.push_back(std::move(live.pass));
  passes.clear();
  return taken;
}

int rankOfId(int64_t id) { return static_cast<int>(id >> kRankShift); }

int64_t Contexts::nextId() {
  MutexLock lock(mutex_);
  return (static_cast<int64_t>(rank_) << kRankShift) | ++lastId_;
}

ContextPtr Contexts::create() {
  int64_t id = nextId();
  MutexLock lock(mutex_);
  return contexts_[id] = std::make_shared<ContextState>(id, rank_);
}

Result<ContextPtr> Contexts::arrived(int64_t id) {
  MutexLock lock(mutex_);
  auto found = contexts_.find(id);
  if (found != contexts_.end()) return found->second;
  int owner = rankOfId(id);
  // A context of our own that is not in the table has ended. One of another worker is new here, unless we
  // know that it has ended or cannot go on.
  if (id < 0 || owner == rank_ || releasedSet_.contains(id) || lost_.contains(owner)) return gone(id);
  return contexts_[id] = std::make_shared<ContextState>(id, owner);
}

Result<ContextPtr> Contexts::find(int64_t id) const {
  MutexLock lock(mutex_);
  auto found = contexts_.find(id);
  if (found == contexts_.end()) return gone(id);
  return found->second;
}

ContextPtr Contexts::release(int64_t id) {
  ContextPtr context;
  MutexLock lock(mutex_);
  if (auto found = contexts_.find(id); found != contexts_.end()) {
    context = std::move(found->second);
    contexts_.erase(found);
  }
  // Bounded: by the time that so many contexts have ended, nothing of the oldest is on its way any more.
  if (releasedSet_.insert(id).second) released_.push_back(id);
  if (released_.size() > kRememberedReleases) {
    releasedSet_.erase(released_.front());
    released_.pop_front();
  }
  return context;
}

bool Contexts::wasReleased(int64_t id) const {
  MutexLock lock(mutex_);
  return releasedSet_.contains(id);
}

void Contexts::onLost(int rank) {
  std::vector<ContextPtr> dropped;  // destroyed after the lock is let go
  {
    MutexLock lock(mutex_);
    lost_.insert(rank);
    for (auto& [id, context] : contexts_)
      if (context->ownerRank == rank) dropped.push_back(context);
    for (const ContextPtr& context : dropped) contexts_.erase(context->id);
  }
  for (const ContextPtr& context : dropped) context->takePasses();
}

size_t Contexts::open() const {
  MutexLock lock(mutex_);
  return contexts_.size();
}

}  // namespace treadle::autograd
