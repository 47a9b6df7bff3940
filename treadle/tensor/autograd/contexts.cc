#include "treadle/tensor/autograd/contexts.h"

namespace treadle::autograd {
namespace {

// Ids hold the rank of their maker in the upper bits.
constexpr int kRankShift = 40;
constexpr size_t kRememberedReleases = 4096;

// Ends contexts where it goes: in the pool, for passes end by callbacks that may wait, and whole graphs go; or with the
// pool, when that takes no tasks any more.
struct Ending {
  explicit Ending(std::vector<ContextPtr> dropped) : contexts(std::move(dropped)) {}
  ~Ending() {
    for (const ContextPtr& context : contexts) context->end();
  }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

  const std::vector<ContextPtr> contexts;
};

}  // namespace

Status contextGone(int64_t id) {
  return notFound("autograd context " + std::to_string(id) + " has ended on the worker that owns it");
}

void ContextState::end() {
  graph->received().close();
  std::optional<LivePass> left;  // freed without the lock
  bool goesOn = false;
  {
    MutexLock lock(mutex);
    ended = true;
    goesOn = live && live->id > lastEnded;  // else a thread is ending it, well or badly
    if (live) left.emplace(*std::exchange(live, std::nullopt));
  }
  if (!goesOn) return;
  // A thread that runs its nodes goes no further, and one that waits for answers is woken.
  const Status gone = cancelled(contextGone(id).message());
  if (left->pass) left->pass->fail(gone);
  if (left->engagedBy) left->engagedBy->fail(gone);
  if (left->pass) left->pass->sink().onIdle(*left->pass);
}

std::optional<LivePass> ContextState::take(int64_t passId) {
  return find(passId) == nullptr ? std::nullopt : std::exchange(live, std::nullopt);
}

int rankOfId(int64_t id) { return static_cast<int>(id >> kRankShift); }

// Not with the lock held: passes end by callbacks.
Contexts::~Contexts() {
  std::map<int64_t, ContextPtr> left;
  {
    MutexLock lock(mutex_);
    left.swap(contexts_);
  }
  for (auto& [id, context] : left) context->end();
}

int64_t Contexts::nextId() {
  MutexLock lock(mutex_);
  return (static_cast<int64_t>(rank_) << kRankShift) | ++lastId_;
}

ContextPtr Contexts::create(std::optional<AutogradMode> mode) {
  int64_t id = nextId();
  MutexLock lock(mutex_);
  return contexts_[id] = make(id, rank_, mode.value_or(usual_));
}

// In FAST mode a pass waits for all that was sent, also for what nobody can use any more.
ContextPtr Contexts::make(int64_t id, int owner, AutogradMode mode) const {
  const bool told = network_.makeReceived && mode == AutogradMode::kSmart;
  return std::make_shared<ContextState>(id, owner, rank_, mode,
                                        told ? network_.makeReceived(id) : std::make_shared<ReceivedMessages>());
}

Result<ContextPtr> Contexts::arrived(int64_t id, AutogradMode mode, int from) {
  Result<ContextPtr> context = findOrMake(id, mode);
  if (!context.ok() || (*context)->ownerRank == rank_) return context;
  bool isNew = false, lost = false;
  {
    MutexLock lock((*context)->mutex);
    isNew = (*context)->from.insert(from).second;
  }
  if (isNew) {
    MutexLock lock(mutex_);
    lost = lost_.contains(from);
  }
  if (lost && network_.adopt) network_.adopt(id, (*context)->ownerRank);
  return context;
}

Result<ContextPtr> Contexts::findOrMake(int64_t id, AutogradMode mode) {
  MutexLock lock(mutex_);
  auto found = contexts_.find(id);
  if (found != contexts_.end()) {
    if (found->second->graph->mode() == mode) return found->second;
    return dataLoss("a message says that autograd context " + std::to_string(id) + " is of another mode than it is");
  }
  if (hasEnded(id)) return contextGone(id);
  const int owner = rankOfId(id);
  if (!network_.mayExist(owner))
    return dataLoss("a message came within an autograd context of rank " + std::to_string(owner) +
                    ", which no worker of this job has");
  return contexts_[id] = make(id, owner, mode);
}

Status Contexts::checkRanks(const Lineage& lineage) const {
  for (int rank : lineage.ranks())
    if (!network_.mayExist(rank))
      return dataLoss("the lineage of a message names rank " + std::to_string(rank) +
                      ", which no worker of this job has");
  return {};
}

Result<ContextPtr> Contexts::find(int64_t id) const {
  MutexLock lock(mutex_);
  auto found = contexts_.find(id);
  if (found == contexts_.end()) return contextGone(id);
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

Result<ContextPtr> Contexts::partIn(int64_t id) const {
  MutexLock lock(mutex_);
  if (const auto found = contexts_.find(id); found != contexts_.end()) return found->second;
  if (hasEnded(id) || !network_.mayExist(rankOfId(id))) return contextGone(id);
  return ContextPtr();
}

// A context of our own that is not in the table has ended. One of another worker never came here, unless we know that
// it has ended or cannot go on.
bool Contexts::hasEnded(int64_t id) const {
  return id < 0 || rankOfId(id) == rank_ || releasedSet_.contains(id) || lost_.contains(rankOfId(id));
}

void Contexts::onLost(int rank) {
  std::vector<ContextPtr> dropped, others;  // destroyed after the lock is let go
  {
    MutexLock lock(mutex_);
    lost_.insert(rank);
    for (auto& [id, context] : contexts_) (context->ownerRank == rank ? dropped : others).push_back(context);
    for (const ContextPtr& context : dropped) contexts_.erase(context->id);
  }
  if (!dropped.empty()) network_.later([ending = std::make_unique<Ending>(std::move(dropped))] {});
  for (const ContextPtr& context : others)
    if (context->cameFrom(rank) && network_.adopt) network_.adopt(context->id, context->ownerRank);
}

bool ContextState::cameFrom(int rank) {
  MutexLock lock(mutex);
  return from.contains(rank);
}

bool ContextState::isOver() const {
  MutexLock lock(mutex);
  return ended;
}

Status ContextState::usable() const {
  MutexLock lock(mutex);
  if (broken.ok()) return {};
  return broken.withContext("autograd context " + std::to_string(id) + " cannot be used after a failure");
}

size_t Contexts::open() const {
  MutexLock lock(mutex_);
  return contexts_.size();
}

}  // namespace treadle::autograd
