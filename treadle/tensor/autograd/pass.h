#pragma once
// The part of one distributed backward pass that runs on this worker. It knows which of the messages that this worker
// sent take part (in FAST mode all, in SMART mode those that the roots depend on), counts how many gradients each local
// node waits for, takes the gradients that come over the network, and runs what is ready. The network half makes one
// per context, pass and worker, keeps it until finish(), and decides by idle() when the whole job is done.
//
// Threads: everything here may be called from any thread. Nodes, hooks and GradientSink::sendGradients run on
// whichever thread is in runUntilIdle(), one at a time; completion callbacks run on the thread that calls
// finish().

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/core/base/unique_function.h"
#include "treadle/tensor/autograd/context_graph.h"
#include "treadle/tensor/autograd/dependencies.h"
#include "treadle/tensor/autograd/gradient_sink.h"
#include "treadle/tensor/autograd/leaf_slots.h"
#include "treadle/tensor/autograd/root.h"

namespace treadle::autograd {

class EngineLoop;
class GraphExecutor;

// Note [Idle]
// idle() means: nothing ready, nobody draining, no pending work, i.e. this worker will not send another
// gradient message of the pass until one arrives. It can go stale at once when another thread calls
// addReady(). So a termination protocol takes its own lock around both "note the message, addReady()" and
// "idle()? then acknowledge"; addReady() and idle() are short and never call out, which makes that safe.
// onIdle() says when to ask.

// Note [Used up]
// That a message takes part is known of it as a whole. Of two tensors in one message a pass may have gone through one,
// and used up the messages that it came from, and then another pass through the other: for it those messages take part
// as well. What comes for them says that there is no gradient; nothing may come, as what is behind others of them is
// gone too. Only if there is a gradient the pass goes over a graph that is no more, and fails.

struct PassOptions {
  int64_t passId = 0;
  bool retainGraph = false;  // keep what nodes saved, so that another pass may go over the same graph
  // SMART mode: the numbers of those messages of this worker that take part. Not given: all.
  std::optional<std::vector<int64_t>> sends = {};
};

class Pass : public std::enable_shared_from_this<Pass> {
 public:
  // Counts the graph behind `roots` (given on the worker that called backward) and behind the context's
  // sends, and makes the gradients of the roots ready; runs nothing. The pass keeps `sink`, because pending
  // work may outlive whoever made the pass; `slots` must outlive the pass. Fails when a root cannot be
  // differentiated, or a parameter with hooks is in another pass (see leaf_slots.h).
  static Result<std::shared_ptr<Pass>> create(std::shared_ptr<ContextGraph> graph, std::shared_ptr<GradientSink> sink,
                                              LeafSlots& slots, PassOptions options, std::vector<Root> roots = {});

  // The same with a sink that the caller keeps alive as long as the pass and its pending work.
  static Result<std::shared_ptr<Pass>> create(std::shared_ptr<ContextGraph> graph, GradientSink& sink, LeafSlots& slots,
                                              PassOptions options, std::vector<Root> roots = {});

  // A pass that was not finished ends as cancelled: callbacks are told, each `.grad` is put back.
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  int64_t contextId() const { return graph_->contextId(); }
  int64_t passId() const { return options_.passId; }
  bool retainGraph() const { return options_.retainGraph; }
  // What the context's passes left here.
  const Gradients& gradients() const { return graph_->gradients(); }

  // Gradients of a message sent within the context came back, one for each of its SendNode's tensorIndexes(). Only
  // enqueues: call runUntilIdle() next, without your own locks.
  // Refused: a message unknown to this pass, a second time, a wrong number; and with the pass's own failure
  // once it failed.
  Status addReady(int64_t messageId, std::vector<MaybeGradient> gradients);

  // Runs nodes until nothing is ready. Returns at once when another thread is at it; that thread takes over
  // what was added before. Returns the failure of the pass, if it has one by now.
  Status runUntilIdle();

  // See Note [Idle]. A failed pass is idle as soon as no node is running.
  bool idle() const;

  // Idle, and something has come for every message that takes part: nothing can come any more.
  bool complete() const;

  // OK, or the first failure.
  Status status() const;

  // Ends the pass early, as when a peer was lost: nothing more is started. The first failure stays. The sink
  // is not told, so that it may call this with its locks held.
  void fail(Status failure);

  // The pass is over on every worker. Waits for a node that is still running (after a failure there may be
  // one), runs the onFinish callbacks, moves what hooked parameters accumulated into the context and puts
  // their old `.grad` back. Returns the pass's failure; FailedPrecondition naming them when sends never got a
  // gradient, or when called too early. Again afterwards: the same result. Not from within a node or hook of
  // this pass, and without your own locks.
  Status finish();

  // The pass whose node or hook is running on this thread. Null outside, and inside a plain local backward
  // that such a node starts itself.
  static Pass* current();
  // Whether a node or hook of any pass runs on this thread, however deep in backward passes of its own; and the context
  // of that pass.
  static bool isInNode();
  static std::optional<int64_t> contextInNode();

  GradientSink& sink() const { return *sink_; }

  // Work that was started within the pass and must be done before the worker counts as idle. It must not wait for the
  // end of the pass elsewhere, as an all-reduce may. Move-only; completes when destroyed. Any thread; keeps the pass
  // alive.
  class Pending {
   public:
    Pending() = default;
    Pending(Pending&& other) noexcept = default;
    Pending& operator=(Pending&& other) noexcept;
    ~Pending() { complete(); }
    void complete();            // tells the sink when the worker went idle by it
    void fail(Status failure);  // fails the pass, and completes

   private:
    friend class Pass;
    explicit Pending(std::shared_ptr<Pass> pass) : pass_(std::move(pass)) {}
    std::shared_ptr<Pass> pass_;
  };

  // To be called while the pass cannot be idle: from a node or hook, or while other pending work is held.
  [[nodiscard]] Pending addPending();

  // `callback` runs once in finish(), in order of registration, with the outcome of the pass so far; then
  // hooked parameters still hold this pass's `.grad`, so it may write an averaged gradient there. Throwing
  // fails the pass. The callback must not own the pass, or neither would ever be freed. After a success it may wait for
  // callbacks of the same pass on other workers, and of passes at their end there. A callback may register another one,
  // which runs after all that were registered before: so several can each begin something first, and wait for it then.
  void onFinish(UniqueFunction<void(const Status&)> callback);
  bool hasCallbacks() const;
  // `callback` runs once after all that, if the pass has ended well: here, and on the workers whose end this one waits
  // for (pass_end.h). It must neither wait nor throw. Call this from a callback of onFinish.
  void onSuccess(UniqueFunction<void()> callback);
  // Those, after finish(): the caller runs them, and needs the pass for it no longer.
  std::vector<UniqueFunction<void()>> takeSuccessCallbacks();

  // From such a callback: if the pass ends well, this is all that the context has for `leaf`, whatever it had before
  // and whatever `.grad` holds.
  void replaceGradient(const at::Tensor& leaf, at::Tensor gradient);

 private:
  struct Key {};  // only create() has one
  struct Running;

 public:
  Pass(Key, std::shared_ptr<ContextGraph> graph, std::shared_ptr<GradientSink> sink, LeafSlots& slots,
       PassOptions options);

 private:
  Status prepare(const std::vector<Root>& roots);
  std::vector<NodeRef<SendNode>> takingPart() const;
  Status checkArrival(int64_t messageId, const std::vector<MaybeGradient>& gradients) const;
  void drain();
  void runReady();
  Status sendOut();
  std::string madeFor(const Node& node) const;
  bool takeIncoming();
  bool stopDraining();
  bool idleLocked() const;
  void tellIdle();
  void pendingDone();
  void noteMissingGradients();
  std::vector<UniqueFunction<void(const Status&)>> takeCallbacks();
  void runCallbacks();
  void moveGradients();
  void end();

  const std::shared_ptr<ContextGraph> graph_;
  const std::shared_ptr<GradientSink> sink_;
  const PassOptions options_;
  const std::unique_ptr<GraphExecutor>
      executor_;                              // the draining thread's; nobody's otherwise, then it has nothing ready
  const std::unique_ptr<EngineLoop> engine_;  // likewise
  std::vector<std::pair<at::Tensor, at::Tensor>> replaced_;  // (leaf, gradient); of the thread that ends the pass

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // All below guarded by mutex_.
  enum class State { kOpen, kFinishing, kFinished } state_ = State::kOpen;
  Status status_;
  bool draining_ = false;
  size_t pending_ = 0;
  std::vector<ReadyNode> incoming_;               // ready, not yet seen by the draining thread
  std::map<int64_t, NodeRef<SendNode>> awaited_;  // sends that got no gradient yet; null: used up
  size_t sends_ = 0;                              // that take part
  std::vector<int64_t> spent_;                    // of those, the ones that no later pass can go through
  std::vector<UniqueFunction<void(const Status&)>> callbacks_;
  std::vector<UniqueFunction<void()>> successCallbacks_;
};

}  // namespace treadle::autograd
