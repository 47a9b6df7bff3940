#pragma once
// The autograd contexts that a worker takes part in, its own and those that came with calls. A context is
// released on all workers when its owner ends it, and here when its owner is lost. One table per worker,
// owned by its interceptor; any thread.

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <unordered_set>

#include "treadle/core/base/mutex.h"
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
  std::shared_ptr<Pass> pass;
  std::optional<Promise<EndedRanks>> engagedBy;
};

// One context as this worker knows it.
struct ContextState {
  ContextState(int64_t contextId, int owner)
      : id(contextId), ownerRank(owner), graph(std::make_shared<ContextGraph>(contextId)) {}

  // Of the worker that made the context: the one whose end ends it.
  const int64_t id;
  const int ownerRank;
  const std::shared_ptr<ContextGraph> graph;

  // What a context that has ended must let go of: a pass holds its sink, which holds the context. Not with
  // locks held, as the last owner of a pass ends it.
  std::vector<std::shared_ptr<Pass>> takePasses();

  Mutex mutex;
  std::set<int> known TREADLE_GUARDED_BY(mutex);  // whom we sent messages of this context
  std::map<int64_t, LivePass> passes TREADLE_GUARDED_BY(mutex);
  // Ids are 8 bytes, and a context has few passes: they are kept as long as the context is.
  std::set<int64_t> finishedPasses TREADLE_GUARDED_BY(mutex);
  std::set<int64_t> failedPasses TREADLE_GUARDED_BY(mutex);  // of those, the ones whose failure was passed on
  Status broken TREADLE_GUARDED_BY(mutex);                   // why no further pass can run
  // Set with the last look at `known`: a handler that is still at work must not take the context to a worker
  // that nobody would tell of its end.
  bool released TREADLE_GUARDED_BY(mutex) = false;
};
using ContextPtr = std::shared_ptr<ContextState>;

// Of the worker that made up an id of a context or pass.
int rankOfId(int64_t id);

class Contexts {
 public:
  explicit Contexts(int rank) : rank_(rank) {}

  // A new context of this worker, with an id that no other worker can make.
  ContextPtr create();
  // The context that a message of another worker names, made when it is new here. NotFound when it was
  // released or its owner is lost.
  Result<ContextPtr> arrived(int64_t id);
  // NotFound when there is none.
  Result<ContextPtr> find(int64_t id) const;
  // Forgets it; null when it is unknown. Messages that name it are refused from now on, also by a worker that
  // never knew it: the word may have overtaken them.
  ContextPtr release(int64_t id);
  // Whether it was released here, as far as is remembered.
  bool wasReleased(int64_t id) const;
  // Forgets what `rank` owned, and refuses what may still come of it. Contexts of others that it took part in
  // stay: their owners see a failed call.
  void onLost(int rank);

  // Unique in the job, and positive: for contexts, messages and passes alike.
  int64_t nextId();
  // Contexts that this worker keeps now. For tests and metrics.
  size_t open() const;
  LeafSlots& slots() { return slots_; }

 private:
  const int rank_;
  LeafSlots slots_;
  mutable Mutex mutex_;
  int64_t lastId_ TREADLE_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, ContextPtr> contexts_ TREADLE_GUARDED_BY(mutex_);
  std::set<int> lost_ TREADLE_GUARDED_BY(mutex_);
  // A message may come after the release that overtook it: the newest released ids are remembered.
  std::deque<int64_t> released_ TREADLE_GUARDED_BY(mutex_);
  std::unordered_set<int64_t> releasedSet_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::autograd
