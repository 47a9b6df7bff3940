#pragma once
// Data-parallel training: each rank of a group has a replica of a module and its own part of the data. Gradients are
// averaged over the group during each backward pass, so that the replicas stay equal. Used by one thread at a time, and
// a local pass is one of one thread: StateError where another thread's comes to a parameter meanwhile, also where a
// node of the first has begun it and waits for it.
//
// Works in a plain `loss.backward()`, where the averages end up in `.grad`, and in AutogradContext::backward, where
// they end up in the context. The result equals one process on the whole batch when every rank's loss is a mean over
// the same number of samples, or with different numbers, when it is a sum and the divisor is kWeights. In float64 and
// without a lossy hook, the loss of each of 50 steps of a small network is the same up to 1e-10 of it, in local and
// distributed passes and with steps within the pass (tests/train/ddp/losses_test.cc). In each pass every rank must
// reach at least one of the parameters, or call skipPass: a rank that does neither takes no part, and the others wait
// for it until the group's timeout.
//
// The parameters that require a gradient when it is constructed are averaged, each tensor once however many modules
// share it. An averaged pass throws StateError, on the ranks concerned, when one has been frozen, unfrozen, replaced or
// added since, and ArgumentError when a gradient has a history (backward with create_graph). A change that is undone
// before the next averaged pass is not noticed: gradients that the parameter got meanwhile stay local. A pass over
// other parameters alone begins no averaged pass. `forward` throws StateError where all averaged parameters are frozen
// now and another one requires a gradient, and `pendingPasses` where any other one does. Convert the module to another
// dtype before: libtorch drops hooks then, so `forward`, `pendingPasses` and averaged passes throw StateError. The
// module's own forward (`ddp->forward`) checks nothing.
//
// Gradients may be sparse (COO), as torch::nn::Embedding makes them with EmbeddingOptions::sparse. Their average is
// sparse, coalesced, and has the rows that some rank has. If the gradient of a parameter is dense on some rank, or
// they have different numbers of sparse dimensions, its average is dense. Where the group forces an algorithm,
// averages of dense gradients go by it, and so does what a hook sums; all else goes by the fastest one. A summation
// service has no algorithm to force. ArgumentError on the rank that has a gradient that cannot be averaged: a sparse
// one with rows that are not there, or one of another shape, dtype or layout. The first pass sends such parameters
// whole too, and so does the one after a dense average.
//
// A pass that fails on a rank before all of its gradients have come there throws CancelledError on the others, which
// names the worker. A later failure may fail the pass on its rank alone: an all-reduce that times out only there, the
// code of a hook or another callback at the end of the pass that throws, or the end of a distributed pass on other
// workers (a lost worker, the time limit, in FAST mode a message without a gradient). A program makes no step where
// `backward` throws, and the others may step. So each rank counts the passes that went well, and where they differ, the
// next averaged pass throws StateError on all ranks, which names a rank that is behind (DdpCondition::kApart): call
// `rebind` with a new group, of all modules in the pass, or load the last checkpoint into a new
// DistributedDataParallel, on all ranks. Not noticed: a callback that throws and was registered at the end of the pass;
// in a replica that another worker's `backward` reaches, a failure on a third worker. A pass that fails before its
// first gradient is unknown to the others: they wait for this rank's next pass, and average with that.
//
// A rank on which the last all-reduce of a pass fails, as by its timeout, cannot know what the others do next; neither
// can one on which an operation of DdpOptions::hook fails, or its code throws. So the group fails on all
// ranks, also for other users of it, with StateError, or with PeerLostError where a worker was lost. The others may
// have their averages and have stepped: make a new group and call `rebind` with it, or load the last checkpoint, on all
// ranks. With a summation service (AverageBy) the group also fails where a sum does, as by its timeout, and where
// passes over two modules that share it overlap. A server that is lost costs a pause.
//
// Several modules may be in one pass, in any order on each rank, if each has a group of its own. Waiting for averages
// is limited by GroupOptions::timeout, not by BackwardOptions::timeout.

#include <torch/nn/module.h>

#include <map>
#include <memory>

#include "treadle/core/group/group.h"
#include "treadle/core/summation/compression.h"
#include "treadle/train/ddp/average_by.h"
#include "treadle/train/ddp/bucket_plan.h"
#include "treadle/train/ddp/buffer_sync.h"
#include "treadle/train/ddp/comm_hook.h"
#include "treadle/train/ddp/ddp_state.h"
#include "treadle/train/ddp/ddp_stats.h"
#include "treadle/train/ddp/divisor.h"
#include "treadle/train/ddp/join.h"
#include "treadle/train/ddp/local_sgd.h"
#include "treadle/train/ddp/parameter_list.h"
#include "treadle/train/ddp/replica_check.h"
#include "treadle/train/ddp/use_marks.h"

namespace treadle {

// Must be the same on all ranks.
struct DdpOptions {
  ddp::BucketLimits buckets = {};
  // Names of all trained parameters, as they fill buckets (DistributedDataParallel::bucketOrder). If it is empty, they
  // do so in reverse order, and from the second averaged pass on in the order in which gradients came on rank 0.
  // ArgumentError: not each once, by its first name.
  std::vector<std::string> bucketOrder = {};
  StartCheck start = StartCheck::kBroadcast;
  Buffers buffers = Buffers::kOnce;
  Divisor divisor = Divisor::kWorldSize;
  UnusedParameters unusedParameters = UnusedParameters::kPerPass;
  // How the gradients of a bucket become their average (comm_hook.h): CastHook, PowerSgdHook, TopKHook, or a program's
  // own. It is shared, and serves one DistributedDataParallel at a time. None: `averageBy`.
  std::shared_ptr<CommHook> hook = nullptr;
  // What averages where no hook is given (average_by.h). ArgumentError: kService and a hook.
  AverageBy averageBy = AverageBy::kAutomatic;
  // How gradients of float32 travel in a summation service, and their averages back: float16 or bfloat16 halves the
  // bytes, between hosts if these have several ranks. What rounding loses of what a host sends is added to what it
  // sends next for the parameter (SummationOptions::compression), whatever becomes of the pass, until rebind(). With a
  // loss scale use bfloat16: numbers of 65,520 and more become infinite as float16. ArgumentError: averageBy is not
  // kService; one bit or top-k, which would hold back most of the gradient of a pass that fails.
  Compression compression = {};
  // What machines can send, and receive at the same time, beside the others, by the names of ranks and of servers of
  // the job; one that is not named has 1. A summation service sums accordingly: a server with {"server", 0.25} moves a
  // quarter of what an equal one would. Of ranks on one host the first counts. ArgumentError: the job has no such
  // machine; a number is not from 1e-100 to 1e100; averageBy is kGroup, or a hook is given.
  std::map<std::string, double> bandwidths = {};
  // Steps within each averaged pass: once all ranks have all gradients, the parameters of each bucket when their
  // averages are there (optimizer_in_backward.h). Then `.grad` of its parameters is undefined, so a program neither
  // steps nor clears it, but after a pass that has failed: `.grad` has this rank's own gradients then, and the next
  // step would be by their sum with the next ones. Its step treats each parameter by itself, as those of libtorch do
  // except LBFGS. It is used by nobody else meanwhile; its options may change between passes, as by a scheduler.
  // Trained parameters that it does not have get their averages in `.grad`. An average whose layout it cannot step
  // fails the pass on all ranks, with ArgumentError and before anything is stepped: a sparse one for Adam, AdamW,
  // RMSprop and weight decay, and one that does not fit the momentum of SGD, which has the layout of the first average.
  // So its state and its options are the same on all ranks, and a schedule changes them alike. The options of
  // libtorch's optimizers are compared at the construction, and in `rebind` where ranks have made as many steps.
  // Averages cannot be clipped or unscaled before they are stepped, so use no GradScaler. ArgumentError: it has
  // parameters that are none of the module's, or one twice. Where another callback at the end of a pass throws, its
  // step has been made all the same. Distributed passes fail on all ranks, with StateError on the ranks that make them.
  // A pass that fails on this rank when others step already, by an all-reduce that fails here alone or by its step,
  // fails the group as above.
  std::shared_ptr<torch::optim::Optimizer> optimizerInBackward = nullptr;
  // The averages travel on while the next forward pass runs, where the network is slower than the backward pass:
  // `backward` returns once all ranks have all gradients, and forward waits for the averages of each module before it
  // uses that, by awaitAverages(module), which steps its parameters. A summation service sums the gradients of the
  // first layers first then. Steps make the same bits as without it. A backward pass before which the average of some
  // parameter was not waited for steps it, and fails on all ranks, with StateError on those that have forgotten it,
  // which names the parameter. That a module was used before the wait, and not after it, is not noticed, unless
  // autograd finds that a tensor which it needs has changed. All functions that end or need averages wait for them:
  // noSync, join, skipPass, synchronize, pendingPasses, rebind, agreeToSkip, verifyReplicas, ReplicaSet::backward and
  // the destructor. Each of them, as awaitAverages() without a module, counts as a wait for all modules. Whatever else
  // reads parameters calls awaitAverages() before, as a checkpoint does. Steps are by the options that the optimizer
  // had at the end of their pass, where these are of a class of libtorch, so a schedule may change them at any time
  // between passes. `.grad` is undefined from the end of the pass on. A failure that backward would report comes from
  // the wait. ArgumentError: optimizerInBackward does not have all trained parameters; buffers are not kOnce.
  bool overlapForward = false;
};

class AutogradContext;

namespace ddp {

class Reducer;

// While it lives, backward passes are not averaged (DistributedDataParallel::noSync).
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<Reducer> reducer);
  ~NoSync();
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;

 private:
  std::shared_ptr<Reducer> reducer_;  // null when moved from
};

void bindHook(CommHook& hook, const ParameterList& list, const ProcessGroup& group);
// Binds the hook, and compares the structures and options of the replicas of all ranks. `isRebind`: hooks and the
// options of optimizers were compared before, and ranks may be one pass apart since.
void compareReplicas(const torch::nn::Module& module, const ProcessGroup& group, const DdpOptions& options,
                     bool isRebind);
// Compares the options of DdpOptions::optimizerInBackward of ranks that have made as many steps.
void compareOptimizers(const ProcessGroup& group, const DdpOptions& options);
// compareReplicas() for the first time, and does with their values what DdpOptions::start says.
void startReplicas(const torch::nn::Module& module, const ProcessGroup& group, const DdpOptions& options);
// Hooks the parameters that require a gradient now; others are never averaged.
std::shared_ptr<Reducer> makeReducer(const torch::nn::Module& module, const ProcessGroup& group,
                                     const DdpOptions& options, HookClaim claim);
// Puts another reducer, for `group`, in its place when all has gone well.
bool rebind(std::shared_ptr<Reducer>& reducer, const torch::nn::Module& module, const DdpOptions& options,
            const ProcessGroup& before, const ProcessGroup& group);
void checkForward(const Reducer& reducer);
void awaitAverages(Reducer& reducer, const torch::nn::Module* used);
void awaitAtEnd(Reducer& reducer) noexcept;
void setWeight(Reducer& reducer, double weight);
size_t pendingPasses(Reducer& reducer);
std::vector<std::string> bucketOrder(Reducer& reducer);
DdpStats statsOf(Reducer& reducer);
DdpState stateOf(Reducer& reducer);
at::Tensor emptyLoss(const Reducer& reducer);
// In `.grad` if there is no context.
void skipPass(Reducer& reducer, AutogradContext* context);
void synchronize(Reducer& reducer, AutogradContext* context);
bool agreeToSkip(Reducer& reducer, const ProcessGroup& group, bool wantsToSkip);
void verifyReplicas(Reducer& reducer, const torch::nn::Module& module, const ProcessGroup& group, bool buffers);

template <class M>
struct ModuleOf {
  using Type = M;
};
template <class M>
  requires requires { typename M::ContainedType; }
struct ModuleOf<M> {
  using Type = typename M::ContainedType;
};

}  // namespace ddp

// M: a module class or a holder (torch::nn::Linear). It shares ownership of the module, and owns hooks on its
// parameters; they are removed with it. Destroy it on the thread that runs backward, after the pass. Averages lie in
// the buckets in which they were summed: a gradient that is kept beyond the next pass keeps its whole bucket, so clone
// it.
template <class M>
class DistributedDataParallel {
 public:
  using Module = typename ddp::ModuleOf<M>::Type;

  // Every member of the group must call it; it returns when all have. Makes all replicas equal to rank 0's, unless
  // DdpOptions::start says something else. ArgumentError on all ranks if the replicas differ in what they are made of
  // or in their options: it names the first difference and the ranks. StateError if another one has the hook.
  // TimeoutError when a rank does not come, PeerLostError.
  DistributedDataParallel(std::shared_ptr<Module> module, ProcessGroup group, DdpOptions options = {})
      : module_(std::move(module)), group_(std::move(group)), options_(std::move(options)) {
    HookClaim claim(options_.hook);
    ddp::startReplicas(*module_, group_, options_);
    reducer_ = ddp::makeReducer(*module_, group_, options_, std::move(claim));
  }
  explicit DistributedDataParallel(const M& holder, ProcessGroup group, DdpOptions options = {})
    requires(!std::is_same_v<M, Module>)
      : DistributedDataParallel(holder.ptr(), std::move(group), std::move(options)) {}

  // Waits for averages that are on their way (DdpOptions::overlapForward), and reports no failure of theirs: call
  // awaitAverages() before.
  ~DistributedDataParallel() { ddp::awaitAtEnd(*reducer_); }

  // It stays where it is: a ReplicaSet refers to it. Keep a unique_ptr where it has to move.
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // Passes that begin while the guard lives are not averaged: their gradients stay local, in `.grad` or in the context.
  // The next averaged pass includes them, so that the gradients of several batches cost one exchange. All ranks must
  // skip the same passes, and begin them themselves: a pass of another worker begins here when its first gradient
  // arrives. Guards may be nested.
  ddp::NoSync noSync() { return ddp::NoSync(reducer_); }

  // How many passes of this rank are not averaged: under noSync, or because they failed. A step would use this rank's
  // own gradients unless it is 0. Passes whose gradients were cleared since by `zero_grad()`, which makes `.grad`
  // undefined, do not count, and neither do those of a context in which one has failed, or of which a program has
  // replaced all gradients. It counts passes over the place of the last one: `.grad`, or that context. Sends nothing.
  // StateError: a parameter that is not averaged requires a gradient now, or one that is has another dtype.
  size_t pendingPasses() const { return ddp::pendingPasses(*reducer_); }

  // Averages the gradients of passes under noSync without another batch, in `.grad` or in `context`. Every rank calls
  // it between passes, or makes an averaged pass meanwhile, which sends the same. Throws what an averaged pass throws,
  // and StateError while a guard of noSync lives, and within a pass.
  void synchronize() { ddp::synchronize(*reducer_, nullptr); }
  void synchronize(AutogradContext& context) { ddp::synchronize(*reducer_, &context); }

  // Takes part in an averaged pass of the other ranks for a rank that has no batch: its gradients are 0, beside those
  // that passes under noSync have left, its weight is 0, and it gets the averages like the others, in `.grad` or in
  // `context`. Throws what an averaged pass throws. Under noSync it sends nothing, as a pass there does.
  void skipPass() { ddp::skipPass(*reducer_, nullptr); }
  void skipPass(AutogradContext& context) { ddp::skipPass(*reducer_, &context); }
  // A tensor that is 0, whose backward does the same: where several modules are in one pass of the others, a rank
  // without a batch calls backward on the sum of theirs. Added to a loss it changes no gradient. It is of float32 and
  // has no dimensions, so a loss of 16 bits without dimensions becomes one of float32.
  at::Tensor emptyLoss() const { return ddp::emptyLoss(*reducer_); }

  // Whether any rank wants to skip, the same on all ranks: for a batch over which one of them cannot go, such as one
  // with an infinite loss. Every rank calls it, between passes; its all-reduce of a byte is the group's next operation.
  // StateError within a pass.
  bool agreeToSkip(bool wantsToSkip) { return ddp::agreeToSkip(*reducer_, group_, wantsToSkip); }

  // For ranks with different numbers of batches: a guard for a loop that trains, which is ended by its finish() on each
  // rank when that has no batch left (join.h has an example). While it lives, each averaged pass is a plain backward,
  // followed by one step of the optimizer, after which gradients are cleared by `zero_grad()` before the next backward.
  // `step` makes the same step, for a rank without a batch: all ranks then have the same parameters and the same state
  // of their optimizers, bit by bit. It may do whatever the loop does after its backward pass, such as clipping or
  // GradScaler::step, but makes no pass. All ranks call it between the same passes, with the same `atEnd`.
  //
  // A rank without a batch counts as DdpOptions::divisor says, as one that calls skipPass: not at all, unless it is
  // kWorldSize. With Buffers::kFromRank0 the buffers are those of the lowest rank that has a batch. With kAverage and
  // kWorldSize, a rank without a batch counts with the buffers of the last average.
  //
  // ArgumentError: `step` is empty; the module has a SyncBatchNorm, which waits for all ranks in forward. StateError: a
  // guard lives, or a pass is under way. Until it is over, distributed passes fail on all ranks, with StateError on the
  // ranks that make them, and agreeToSkip and verifyReplicas throw StateError. An averaged pass fails with StateError
  // on all ranks, which names two of them, if they are not in guards with the same `atEnd`; and on this rank where
  // `.grad` holds an average that was not cleared. Passes under noSync() may come in between. No other
  // DistributedDataParallel may be in these passes, or use the group.
  ddp::Join join(std::function<void()> step, UnevenInputs atEnd = UnevenInputs::kContinue) {
    return ddp::Join(reducer_, *module_, std::move(step), atEnd);
  }

  // For a slow network: after the first steps each rank trains by its own gradients, and the ranks average parameters
  // every few steps (local_sgd.h says what is thrown, and has an example). Every rank calls it, with the same options,
  // and later `step()` after each step and `finish()` at the end. Passes are not averaged meanwhile, as in a guard of
  // noSync, except for the first steps; other functions of this class that need averages throw StateError.
  ddp::LocalSgd localSgd(LocalSgdOptions options = {}) {
    return ddp::LocalSgd(reducer_, *module_, group_, options_, std::move(options));
  }

  // With DdpOptions::overlapForward: wait for averages that are on their way, those of the parameters of `used` and of
  // its modules or all of them, and step these parameters. For forward, before it uses a module. No effect where none
  // is on its way, as without the option. By the thread that calls backward. Throw what an averaged pass throws that
  // fails on this rank alone, which then fails the group; what CommHook::passAveraged throws does not. Where this
  // thread must not wait, they throw and everything stays as it is.
  void awaitAverages(const torch::nn::Module& used) { ddp::awaitAverages(*reducer_, &used); }
  void awaitAverages() { ddp::awaitAverages(*reducer_, nullptr); }

  // The weight of this rank's next pass, as a rule its number of samples or tokens, which may be 0: gradients become
  // their sum over all ranks divided by the sum of the weights. So each loss is a sum over its samples. Call it before
  // each pass; weights of passes under noSync add up until the averaged one. It holds until a pass comes to a
  // parameter, also if a loss fails before that, and skipPass drops it. StateError unless DdpOptions::divisor is
  // kWeights; ArgumentError for a negative or infinite weight. A pass for which it was not called fails.
  void setWeight(double weight) { ddp::setWeight(*reducer_, weight); }

  // The names of the trained parameters, as they fill buckets. It is the same on all ranks, and changes after the first
  // averaged pass in which rank 0 has a batch (DdpOptions::bucketOrder). Sums of floating-point numbers depend on it in
  // their last bits, and on the algorithm of the group's all-reduce: saved with a checkpoint after that pass and given
  // to the run that goes on from there, it keeps these if both groups have SumOrder::kRank or both jobs the same
  // TREADLE_COSTS; saved before that pass, it keeps the reverse order, in which little may overlap. With
  // UnusedParameters::kStatic it does not, where parameters are unused: that run sends them in its first pass again.
  std::vector<std::string> bucketOrder() const { return ddp::bucketOrder(*reducer_); }

  // Where the time of this rank's steps goes, and what was averaged (ddp_stats.h): `std::cout << describe(ddp.stats())`
  // prints it with an advice. Sends nothing. It copies up to 100 steps, so call it now and then.
  DdpStats stats() const { return ddp::statsOf(*reducer_); }

  // Whether passes can be averaged, as far as this rank knows now, and why not (ddp_state.h, which says what holds
  // after a failed pass). Sends nothing.
  DdpState state() const { return ddp::stateOf(*reducer_); }

  // Goes on with another group, such as one of the workers that are left when one was lost. Every member of `group`
  // calls it, between passes. Compares replicas and options as the construction does, copies the parameters and buffers
  // of the group's rank 0 to the others (of the lowest that is not DdpCondition::kTorn), whatever DdpOptions::start
  // says, and plans buckets anew. What a hook holds back stays. Gradients become undefined, as they are each rank's
  // own, also those of passes under noSync(). stats() begin anew. If it throws, this rank keeps its group, its
  // parameters, its buffers and its gradients; make another group then and call it again, as after another loss. No
  // graph is left that a backward pass will go over. With DdpOptions::overlapForward it first steps what averages have
  // come, also if it throws then; a loss while they are on their way may leave all ranks torn.
  //
  // Returns whether all members have had as many averages so far. If so, and if each made a step after each, their
  // optimizers are equal too, and all go on with the next batch or with the one that has failed. Otherwise some have
  // made the last step alone: load the optimizer's part of the last checkpoint on all ranks, or make new optimizers,
  // and agree on the next batch. Also where ranks have trained by LocalSgd. Where several modules are in a pass,
  // optimizers are equal if it is true for all of them. What else has the old group does not follow: make a GradScaler,
  // a DistributedSampler and modules with a SyncBatchNorm anew.
  //
  // Memory: a copy of the parameters and buffers, and a second set of buckets, meanwhile. Throws what the construction
  // throws, and StateError within a pass, while a guard of noSync() or join(), or a LocalSgd, lives, and where all
  // ranks are torn (DdpCondition::kTorn).
  [[nodiscard]] bool rebind(ProcessGroup group) {
    const bool areEqual = ddp::rebind(reducer_, *module_, options_, group_, group);
    group_ = std::move(group);
    return areEqual;
  }

  // Compares the parameters of all ranks, bit by bit, by hashes of 128 bits, and the buffers unless they are each
  // rank's own (Buffers::kOnce). Every rank calls it, between an averaged pass and the next forward: its exchange, of
  // 24 bytes for each rank if all are equal, is the group's next operation. StateError on all ranks names the first
  // tensor that differs, and the ranks; on one rank, that it is called within a pass.
  void verifyReplicas() const { ddp::verifyReplicas(*reducer_, *module_, group_, options_.buffers != Buffers::kOnce); }

  // The module's own forward, called locally; nothing is sent. StateError: a parameter has another dtype now; or all
  // trained ones are frozen now, and another one requires a gradient.
  template <class... A>
  auto forward(A&&... arguments) {
    ddp::checkForward(*reducer_);
    return module_->forward(std::forward<A>(arguments)...);
  }
  Module* operator->() { return module_.get(); }
  Module& operator*() { return *module_; }
  const std::shared_ptr<Module>& module() const { return module_; }
  const ProcessGroup& group() const { return group_; }
  const DdpOptions& options() const { return options_; }

 private:
  std::shared_ptr<Module> module_;
  ProcessGroup group_;
  DdpOptions options_;
  std::shared_ptr<ddp::Reducer> reducer_;
};

}  // namespace treadle
