#pragma once
// The autograd contexts that a worker takes part in, its own and those that came with calls. A context is
// released on all workers when its owner ends it, and here when its owner is lost. One table per worker,
// owned by its interceptor; any thread.

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <unordered_set>

#include "treadle/core/base/mutex.h"
#include "treadle/core/base/unique_function.h"
#include "treadle/core/io/future.h"
#include "treadle/tensor/autograd/context_graph.h"
#include "treadle/tensor/autograd/leaf_slots.h"
#include "treadle/tensor/autograd/pass.h"

namespace treadle::autograd {

// What answers gradients: the workers on which the pass has ended, the answering one and those behind it. They need not
// be told of the end.
using EndedRanks = std::vector<int32_t>;

// A backward pass while it runs here. It is engaged while the worker that made it active waits for our
// acknowledgement (Dijkstra and Scholten, "Termination detection for diffusing computations", 1980).
struct LivePass {
  int64_t id = 0;
  bool begun = false;                    // in SMART mode when it is known which of this worker's sends take part
  std::shared_ptr<Pass> pass = nullptr;  // once it has counted its graph, which is done without a lock
  std::map<int64_t, std::vector<MaybeGradient>> early = {};  // what has come before that, by message
  std::optional<Promise<EndedRanks>> engagedBy = {};
  Status refused = {};  // why it cannot run here, and only its end is waited for
};

// One context as this worker knows it.
struct ContextState {
  ContextState(int64_t contextId, int owner, int self, AutogradMode mode, std::shared_ptr<ReceivedMessages> received)
      : id(contextId),
        ownerRank(owner),
        graph(std::make_shared<ContextGraph>(contextId, self, mode, std::move(received))) {}

  // Of the worker that made the context: the one whose end ends it.
  const int64_t id;
  const int ownerRank;
  const std::shared_ptr<ContextGraph> graph;

  // It takes no pass and no message any more, and reports to nobody what is dropped. Its pass fails, unless that is
  // ending. The context drops the pass, because that holds its sink, which holds the context. Call it without locks:
  // the last owner of a pass ends it.
  void end();
  bool cameFrom(int rank);
  bool isOver() const;
  // The pass, if it is under way here.
  LivePass* find(int64_t passId) TREADLE_REQUIRES(mutex) { return live && live->id == passId ? &*live : nullptr; }
  // The same for good; freed without the lock.
  std::optional<LivePass> take(int64_t passId) TREADLE_REQUIRES(mutex);
  // The failure of a pass, once one has failed: the context can be used no more, as gradients of that pass may be among
  // its gradients.
  Status usable() const;

  mutable Mutex mutex;
  std::set<int> known TREADLE_GUARDED_BY(mutex);  // whom we sent messages of this context
  std::set<int> from TREADLE_GUARDED_BY(mutex);   // who sent us any: each of them would tell us of its end
  // A context takes one pass at a time, and the ids of its passes ascend.
  std::optional<LivePass> live TREADLE_GUARDED_BY(mutex);
  int64_t lastEnded TREADLE_GUARDED_BY(mutex) = 0;      // the last pass that has ended here
  int64_t lastFailed TREADLE_GUARDED_BY(mutex) = 0;     // the last one whose failure was passed on
  Status broken TREADLE_GUARDED_BY(mutex);              // why no further pass can run
  bool isInBackward TREADLE_GUARDED_BY(mutex) = false;  // on the worker that owns it
  // Set before the last look at `known`: a handler that is still at work must not take the context to a worker
  // that nobody would tell of its end.
  bool ended TREADLE_GUARDED_BY(mutex) = false;
};
using ContextPtr = std::shared_ptr<ContextState>;

// Of the worker that made up an id of a context or pass.
int rankOfId(int64_t id);
// NotFound: the context with this id has ended.
Status contextGone(int64_t id);

// What a worker's contexts need of the network.
struct ContextsNetwork {
  // Whether there is, or may come to be, a worker of this rank.
  std::function<bool(int rank)> mayExist = [](int rank) { return rank >= 0; };
  // Runs a task that may wait, on another thread than the one that tells of a loss.
  std::function<void(UniqueFunction<void()>)> later = [](UniqueFunction<void()> task) { task(); };
  // Makes the list of what a new context receives. Without it nobody is told of what is dropped.
  std::function<std::shared_ptr<ReceivedMessages>(int64_t contextId)> makeReceived = {};
  // Somebody through whom a context of `owner` came here is lost, and may have been the only one who would tell us of
  // its end: so the owner must hear that we have it. Called on any thread; must not wait.
  std::function<void(int64_t contextId, int owner)> adopt = {};
};

class Contexts {
 public:
  // `usual`: the mode of contexts that ask for none.
  explicit Contexts(int rank, AutogradMode usual = AutogradMode::kSmart, ContextsNetwork network = {})
      : rank_(rank), usual_(usual), network_(std::move(network)) {}

  // Ends those that are left.
  ~Contexts();
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;

  // A new context of this worker, with an id that no other worker can make.
  ContextPtr create(std::optional<AutogradMode> mode = {});
  // The context that a message of worker `from` names, made when it is new here. NotFound when it was
  // released or its owner is lost; DataLoss when it is known to be of the other mode, or can have no owner.
  Result<ContextPtr> arrived(int64_t id, AutogradMode mode, int from);
  // NotFound when there is none.
  Result<ContextPtr> find(int64_t id) const;
  // Forgets it; null when it is unknown. Messages that name it are refused from now on, also by a worker that
  // never knew it: the word may have overtaken them.
  ContextPtr release(int64_t id);
  // The same, but null for a context of another worker that never came here: this one has no part in it.
  Result<ContextPtr> partIn(int64_t id) const;
  // Forgets what `rank` owned, and refuses what may still come of it. Contexts of others that it took part in
  // stay: their owners see a failed call.
  void onLost(int rank);

  // Unique in the job, and positive: for contexts, messages and passes alike.
  int64_t nextId();
  // Contexts that this worker keeps now. For tests and metrics.
  size_t open() const;
  // What SMART mode has added to the messages that this worker sent. For benchmarks.
  struct LineageCount {
    uint64_t messages = 0, bytes = 0;
  };
  LineageCount lineage() const { return {lineageMessages_, lineageBytes_}; }
  void countLineage(size_t bytes) {
    ++lineageMessages_;
    lineageBytes_ += bytes;
  }
  LeafSlots& slots() { return slots_; }
  // DataLoss when the lineage of a message names a worker that cannot be.
  Status checkRanks(const Lineage& lineage) const;

 private:
  ContextPtr make(int64_t id, int owner, AutogradMode mode) const;
  Result<ContextPtr> findOrMake(int64_t id, AutogradMode mode);
  // Of a context that is not in the table.
  bool hasEnded(int64_t id) const TREADLE_REQUIRES(mutex_);

  const int rank_;
  const AutogradMode usual_;
  const ContextsNetwork network_;
  LeafSlots slots_;
  std::atomic<uint64_t> lineageMessages_ = 0, lineageBytes_ = 0;
  mutable Mutex mutex_;
  int64_t lastId_ TREADLE_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, ContextPtr> contexts_ TREADLE_GUARDED_BY(mutex_);
  std::set<int> lost_ TREADLE_GUARDED_BY(mutex_);
  // A message may come after the release that overtook it: the newest released ids are remembered.
  std::deque<int64_t> released_ TREADLE_GUARDED_BY(mutex_);
  std::unordered_set<int64_t> releasedSet_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::autograd
