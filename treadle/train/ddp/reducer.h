#pragma once
// Averages the gradients of a module's parameters over a group while the backward pass still runs: a hook begins to
// average each bucket as soon as its last gradient is there, in the same order on every rank, and when the pass ends
// the averages take the place of the gradients. The operations of a pass are the first rounds of its buckets in order,
// then the exact channel, also where it fails, then unless a rank has failed what the channel calls for: the next
// rounds, or buckets again, then sparse gradients, then buffers, then rounds until none is left. A failure on a rank
// before its channel fails the pass on all. It averages the sum of this pass and of those before it, which are in
// `.grad` or in the context: the next averaged pass includes earlier passes that were not averaged. A parameter that
// has no gradient on this rank counts as zero; one that has none on any rank is left alone. Works in a plain
// `loss.backward()`, which then returns when the averages are there (or, with DdpOptions::overlapForward, when they are
// sure to come), and in a distributed pass, which then is not over before they are.
//
// Owned by a DistributedDataParallel; one backward pass over its parameters at a time. Hooks run on the thread that
// runs the backward pass. The end of a distributed pass, and with it the wait for averages, may run on another thread.
// The mutex is held for no wait.
//
// Memory: one copy of the gradients, in the buckets, and of the buffers if these are exchanged, for as long as the
// reducer lives. Per pass one copy in and one out.

#include <optional>

#include "treadle/core/base/mutex.h"
#include "treadle/core/group/group.h"
#include "treadle/core/io/executor.h"
#include "treadle/train/ddp/buffer_sync.h"
#include "treadle/train/ddp/ddp_state.h"
#include "treadle/train/ddp/divisor.h"
#include "treadle/train/ddp/empty_loss.h"
#include "treadle/train/ddp/gradient_exchange.h"
#include "treadle/train/ddp/gradient_hooks.h"
#include "treadle/train/ddp/join_state.h"
#include "treadle/train/ddp/operations.h"
#include "treadle/train/ddp/optimizer_in_backward.h"
#include "treadle/train/ddp/parameter_list.h"
#include "treadle/train/ddp/pass_recorder.h"
#include "treadle/train/ddp/pass_tracker.h"
#include "treadle/train/ddp/pending_passes.h"
#include "treadle/train/ddp/rebind.h"
#include "treadle/train/ddp/steps_left.h"

namespace treadle {
struct DdpOptions;
}

namespace treadle::ddp {

class Reducer final : public PassEvents, public std::enable_shared_from_this<Reducer> {
 public:
  // Averages gradients of those of the parameters that require one now. They are dense and the same on all ranks; their
  // gradients may be sparse. The operations of a pass are the group's next ones, so the group must be used for nothing
  // else while it runs. `hook` averages; `claim` is that of options.hook.
  Reducer(const torch::nn::Module& module, ProcessGroup group, const DdpOptions& options,
          const std::shared_ptr<CommHook>& hook, HookClaim claim);
  // Gives up a pass that is under way, so that the other ranks need not wait for it.
  ~Reducer() override;

  // Passes whose first gradient comes between a suspend() and its resume() are left alone. They nest.
  void suspend();
  void resume();

  // empty_loss.h
  at::Tensor emptyLoss() const { return emptyLoss_->make(); }
  // StateError: a parameter has another dtype now; or all that are averaged are frozen now, and another one requires a
  // gradient.
  void checkForward() const;
  // StateError: a pass is under way, or one that begins now is left alone, and `function` needs one that is averaged.
  void checkAverages(const char* function);
  // StateError: a pass is under way, or a guard of join() lives, so the group is not free for `function`.
  void checkBetweenPasses(const char* function);
  // StateError: a pass is under way, or a guard of noSync() or join(), or a LocalSgd, lives, which has this reducer.
  void checkRebind();

  // join.h

  // StateError: a guard lives, or a pass is under way.
  void openJoin(UnevenInputs mode);
  // Abandons the group unless the guard is over: the other ranks would wait for this one.
  void closeJoin();
  // This rank has no batch left: its passes report it from now on.
  void endInputs();
  bool isJoinOver();
  // Averages that are in `.grad`, if no pending pass has added to them.
  void clearAverages();

  // local_sgd.h

  // Held by the LocalSgd. StateError: there is one.
  std::shared_ptr<void> claimForLocalSgd();
  // This rank makes a step whose gradients the others do not have.
  void trainsAlone();
  // Of the last averaged pass on this rank.
  Status lastFailure();

  // DdpOptions::overlapForward

  // Wait for the averages that are still on their way, all or those of a module, and step their parameters.
  void awaitAverages();
  void awaitAverages(const torch::nn::Module& used);

  // pending_passes.h
  void setWeight(double weight);
  void dropWeight();
  size_t pendingPasses();

  // First names of the parameters, as they fill buckets.
  std::vector<std::string> bucketOrder();
  DdpStats stats();
  DdpState state();

  // rebind.h

  const ParameterList& list() const { return list_; }
  const HookClaim& claim() const { return claim_; }
  Progress progress();
  // Goes on where replicas with another group have come to. Gradients go, as they are this rank's own.
  void goOn(const Progress& progress);

 private:
  // The steps of a pass. Each waits for what earlier ones began: other modules in the pass begin theirs in between.
  enum class Phase {
    kNone,       // no averaged pass is under way
    kGradients,  // they come, and full buckets are launched in order
    kLast,       // the remaining buckets and the exact channel have been begun
    kAgain,      // and the buckets that the channel calls for, sparse sums, buffers, and rounds of the hook
  };

  void beforeGradient(size_t index, const at::Tensor& gradient);
  void onGradient(std::optional<size_t> index);
  PassTracker::Role join(std::optional<size_t> index) TREADLE_REQUIRES(mutex_);
  Operations beginPass() TREADLE_REQUIRES(mutex_);
  void takeMemory(const Operations& earlier);
  Status take(std::optional<size_t> index, bool begins) TREADLE_REQUIRES(mutex_);
  void refuseUnless(const Status& ok) TREADLE_REQUIRES(mutex_);

  Step passEnds() override;
  void passFailed() noexcept override;
  void passWentWell() override;
  Step makeStep();
  Phase phase();
  void over(bool hasFailed);
  std::string whyBehind() TREADLE_REQUIRES(mutex_);
  void beginLast(const Status& failure);
  void beginAgain();
  bool beginNextRound();
  Status conclude() TREADLE_REQUIRES(mutex_);
  Step putOrDrop();
  void putAverages();
  void endAverages();
  bool openSteps();
  std::vector<size_t> stepsToMake();
  void stepParts(const std::vector<size_t>& parts);
  Operations operationsOfPart(size_t part);
  std::vector<size_t> putPart(size_t part, Status ended);
  bool stepPart(const std::vector<size_t>& averaged);
  void stepLeft();
  void stepLeft(const std::vector<size_t>& parts);
  bool isLeft(size_t parameter) TREADLE_REQUIRES(mutex_);
  bool areStepsLeft();
  void stepForgotten();
  Status checkAwaited(size_t parameter) TREADLE_REQUIRES(mutex_);
  Status wasForgotten(size_t parameter) const;
  Status waitForChannel(Operations& operations);
  bool mayLeaveBuckets(const Operations& channel);
  void clearGradients() TREADLE_REQUIRES(mutex_);
  void checkNoPass(const char* function) TREADLE_REQUIRES(mutex_);
  Operations operationsOfPass();

  const ParameterList list_;
  const ProcessGroup group_;
  const Divisor divisor_;
  const HookClaim claim_;
  const std::string averagedBy_;
  OptimizerInBackward optimizer_;
  const bool overlapsForward_;

  Mutex mutex_;
  PassRecorder recorder_ TREADLE_GUARDED_BY(mutex_);
  GradientExchange exchange_ TREADLE_GUARDED_BY(mutex_);
  BufferSync buffers_ TREADLE_GUARDED_BY(mutex_);
  PassTracker tracker_ TREADLE_GUARDED_BY(mutex_);
  PendingPasses pending_ TREADLE_GUARDED_BY(mutex_);
  int suspended_ TREADLE_GUARDED_BY(mutex_) = 0;
  JoinState join_ TREADLE_GUARDED_BY(mutex_);
  bool hasLocalSgd_ TREADLE_GUARDED_BY(mutex_) = false;
  Progress progress_ TREADLE_GUARDED_BY(mutex_);
  Status apart_ TREADLE_GUARDED_BY(mutex_);  // why passes fail on all ranks until rebind()
  // These belong to the pass that is averaged, or to the last one.
  Phase phase_ TREADLE_GUARDED_BY(mutex_) = Phase::kNone;
  Operations operations_ TREADLE_GUARDED_BY(mutex_);  // as begun
  Status failure_ TREADLE_GUARDED_BY(mutex_);         // the first one on this rank
  Shares shares_ TREADLE_GUARDED_BY(mutex_);
  StepsLeft steps_ TREADLE_GUARDED_BY(mutex_);  // of the optimizer within the pass, or after it
  // Whether the program has waited for the parameter since the last pass that left steps to forward.
  std::vector<bool> isAwaited_ TREADLE_GUARDED_BY(mutex_);
  Status forgotten_ TREADLE_GUARDED_BY(mutex_);                            // why the pass that begins fails
  std::optional<io::Executor::Permit> permit_ TREADLE_GUARDED_BY(mutex_);  // for all waits after the exact channel
  // The other ranks may begin operations of which this one does not know, or that it has not begun: the result of the
  // exact channel is not here, or the hook cannot go on here. Or an optimizer within the pass steps on the others, and
  // has not stepped all parameters here. If it is so at the end of a pass, the group is abandoned.
  bool isBehind_ TREADLE_GUARDED_BY(mutex_) = false;
  // Last: no hook comes once they are gone.
  std::unique_ptr<GradientHooks> hooks_;
  std::unique_ptr<EmptyLoss> emptyLoss_;
};

}  // namespace treadle::ddp
