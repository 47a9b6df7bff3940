#include "treadle/tensor/autograd/backward.h"

#include "treadle/tensor/autograd/interceptor.h"

namespace treadle::autograd {

// The order of the fields is the protocol's.
inline auto fields(GradientMessage& message) {
  return std::tie(message.context, message.pass, message.retainGraph, message.message, message.gradients);
}
inline auto fields(FinishMessage& message) { return std::tie(message.context, message.pass, message.failure); }

namespace {

Future<EndedRanks> onGradients(Call& call, GradientMessage message);
void onFinish(Call& call, const FinishMessage& message);
void onRelease(Call& call, int64_t contextId);
bool finishHere(Worker& worker, const ContextPtr& context, const FinishMessage& message, Status& outcome);

// The pass that this thread runs for its caller, rather than reading what completes a part of one.
thread_local const Pass* runningHere = nullptr;

void runUntilIdle(Pass& pass) {
  const Pass* before = std::exchange(runningHere, &pass);
  pass.runUntilIdle().ignore();  // a failure is what is answered
  pass.sink().onIdle(pass);
  runningHere = before;
}

// Whom this worker has sent messages of the context, but itself and `knowing`: a tree of those reaches every worker
// that has heard of it. With `releasing` no more are added, so nobody is missed.
std::vector<int> toTell(const Worker& worker, ContextState& context, const EndedRanks& knowing,
                        bool releasing = false) {
  MutexLock lock(context.mutex);
  context.released = context.released || releasing;
  std::vector<int> ranks(context.known.begin(), context.known.end());
  std::erase(ranks, worker.self().rank);
  for (int32_t rank : knowing) std::erase(ranks, rank);
  return ranks;
}

// The network's side of one pass: sends its gradients and answers for it. The pass owns it, and it owns the
// context, which lists the pass while that lives: ContextState::takePasses cuts this circle when a context
// ends early.
class Network final : public GradientSink {
 public:
  Network(Worker& worker, ContextPtr context) : worker_(worker), context_(std::move(context)) {}

  Status sendGradients(Pass& pass, const MessageInfo& message, std::vector<at::Tensor> gradients) override {
    // Taken before the message leaves: the answer may be there before `async` returns, and a pass without
    // pending work could count as idle in between.
    auto pending = std::make_shared<Pass::Pending>(pass.addPending());
    GradientMessage out{context_->id, pass.passId(), pass.retainGraph(), message.messageId, std::move(gradients)};
    // The gradients are values: sending them must not become part of the graph that is being run.
    CurrentContext none(interceptorOf(worker_), nullptr);
    auto state = worker_.with({.timeout = kWhilePeerLives}).async<&onGradients>(message.peerRank, out).share();
    {
      MutexLock lock(mutex_);
      answers_.emplace_back(state);
    }
    // On the thread that read the answer. It only counts; nodes never run here (Pass::runUntilIdle does
    // that).
    state->onReady([this, state, pending] {
      if (!state->result().ok()) return pending->fail(state->result().status());
      ended(*state->result());
      pending->complete();
    });
    return {};
  }

  // Answers the message that made this worker active, if the pass has nothing left to do.
  void onIdle(Pass& pass) override {
    std::optional<Promise<EndedRanks>> engagedBy;
    std::shared_ptr<Pass> alive;
    {
      // Asked under the lock that onGradients holds while it adds: otherwise gradients that arrive between
      // the question and the answer would be acknowledged before they have been worked on. See Note [Idle] in
      // pass.h.
      MutexLock lock(context_->mutex);
      auto found = context_->passes.find(pass.passId());
      if (found == context_->passes.end() || !pass.idle()) return;
      std::optional<Promise<EndedRanks>>& engaged = found->second.engagedBy;
      if (!engaged) return;
      engagedBy.emplace(std::move(*engaged));
      engaged.reset();
      alive = found->second.pass;
    }
    // Outside of the lock: whoever waits for the promise may run on. The end of a pass runs callbacks that may wait and
    // frees a graph, which is nothing for a thread that reads: there a task does it.
    auto answer = [this, alive, promise = std::move(*engagedBy)]() mutable {
      endAndAnswer(*alive, std::move(promise));
    };
    if (runningHere == &pass || pass.passId() == ownPass_) return answer();
    worker_.engine().executor().post(std::move(answer));
  }

  // The pass that this worker itself began: it ends when all others have.
  void setOwnPass(int64_t passId) { ownPass_ = passId; }

  // Where the pass has ended, as far as the answers to this worker's gradients told.
  EndedRanks endedRanks() {
    MutexLock lock(mutex_);
    return ended_;
  }

  // Waits for the answers to what was sent so far. The waiting thread reads them from their sockets itself,
  // so that no other thread has to wake it; a failure reaches the pass.
  void readAnswers() {
    std::vector<Future<EndedRanks>> answers;
    {
      MutexLock lock(mutex_);
      answers.swap(answers_);
    }
    for (const Future<EndedRanks>& answer : answers) (void)answer.share()->waitUntil(kNever);
  }

 private:
  // Whether the pass has ended on all whom this worker would have to tell: only then may it end here without being
  // told. The one that called backward needs not be told.
  bool nobodyIsBehind(int64_t passId) {
    EndedRanks knowing = endedRanks();
    knowing.push_back(rankOfId(passId));
    return toTell(worker_, *context_, knowing).empty();
  }

  void endAndAnswer(Pass& pass, Promise<EndedRanks> engagedBy) {
    Status status = pass.status();
    if (status.ok() && pass.passId() != ownPass_ && pass.complete() && nobodyIsBehind(pass.passId())) {
      FinishMessage end{context_->id, pass.passId(), ""};
      if (finishHere(worker_, context_, end, status)) ended({worker_.self().rank});
    }
    status.ok() ? engagedBy.set(endedRanks()) : engagedBy.fail(std::move(status));
  }

  void ended(const EndedRanks& ranks) {
    MutexLock lock(mutex_);
    ended_.insert(ended_.end(), ranks.begin(), ranks.end());
  }

  Worker& worker_;
  const ContextPtr context_;
  int64_t ownPass_ = 0;
  Mutex mutex_;
  std::vector<Future<EndedRanks>> answers_ TREADLE_GUARDED_BY(mutex_);
  EndedRanks ended_ TREADLE_GUARDED_BY(mutex_);
};

Result<std::shared_ptr<Pass>> makePass(Worker& worker, const ContextPtr& context, const PassOptions& options,
                                       std::vector<Root> roots) {
  auto network = std::make_shared<Network>(worker, context);
  LeafSlots& slots = interceptorOf(worker).contexts().slots();
  return Pass::create(context->graph, std::move(network), slots, options, std::move(roots));
}

// The answer to a message that found this worker engaged already: at once, by the rule.
Future<EndedRanks> readyFuture() {
  Promise<EndedRanks> promise;
  promise.set();
  return promise.future();
}

// The pass of a message, made when this is its first here. The caller holds the context's lock.
LivePass& livePass(Worker& worker, const ContextPtr& context, const GradientMessage& message)
    TREADLE_REQUIRES(context->mutex) {
  auto found = context->passes.find(message.pass);
  if (found != context->passes.end()) return found->second;
  if (context->finishedPasses.contains(message.pass))
    raise(failedPrecondition("gradients came for a backward pass that is over"));
  auto pass = valueOrThrow(makePass(worker, context, {message.pass, message.retainGraph}, {}));
  return context->passes.emplace(message.pass, LivePass{std::move(pass), std::nullopt}).first->second;
}

Future<EndedRanks> onGradients(Call& call, GradientMessage message) {
  Worker& worker = call.worker();
  ContextPtr context = valueOrThrow(interceptorOf(worker).contexts().find(message.context));
  std::shared_ptr<Pass> pass;
  Future<EndedRanks> answer = readyFuture();
  {
    MutexLock lock(context->mutex);
    LivePass& live = livePass(worker, context, message);
    throwIfError(live.pass->addReady(message.message, std::move(message.gradients)));
    pass = live.pass;
    // This message engages the worker: its answer is kept back until the worker is idle again, which is how
    // the sender (and at the end the worker that called backward) knows.
    if (!live.engagedBy) answer = live.engagedBy.emplace().future();
  }
  runUntilIdle(*pass);
  return answer;
}

// Ends the pass on this worker; false when it had ended here before.
bool finishHere(Worker& worker, const ContextPtr& context, const FinishMessage& message, Status& outcome) {
  std::shared_ptr<Pass> pass;
  {
    MutexLock lock(context->mutex);
    // Remembered: a worker may be told by several others, and gradients that come after the end must not
    // begin the pass anew.
    if (!context->finishedPasses.insert(message.pass).second) {
      // It ended well here and failed elsewhere: the gradients are of no use then, and those behind must hear of it
      // too.
      if (message.failure.empty() || !context->failedPasses.insert(message.pass).second) return false;
      if (context->broken.ok()) context->broken = cancelled(message.failure);
      return true;
    }
    auto found = context->passes.find(message.pass);
    if (found != context->passes.end()) pass = found->second.pass;
  }
  // Sends of this worker that no gradient reached: a pass over them alone finds and names them.
  if (!pass && message.failure.empty() && !context->graph->sends().empty())
    pass = valueOrThrow(makePass(worker, context, {message.pass, false}, {}));
  if (pass) {
    if (!message.failure.empty()) pass->fail(cancelled(message.failure));
    outcome = pass->finish();
  }
  MutexLock lock(context->mutex);
  context->passes.erase(message.pass);
  if (!outcome.ok()) context->broken = outcome;
  return true;
}

// Here, then on all workers that this one reached and of whom it is not known that it has ended there; the first
// failure.
Status finishEverywhere(Worker& worker, const ContextPtr& context, const FinishMessage& message,
                        const EndedRanks& ended) {
  Status outcome;
  if (!finishHere(worker, context, message, outcome)) return {};
  // All are told before any is waited for, and all are waited for even when one fails: when backward returns,
  // no worker is still at work on the pass, but lost ones.
  CurrentContext none(interceptorOf(worker), nullptr);
  std::vector<Future<void>> others;
  Caller caller = worker.with({.timeout = kWhilePeerLives});
  for (int rank : toTell(worker, *context, ended)) others.push_back(caller.async<&onFinish>(rank, message));
  for (Future<void>& other : others) {
    try {
      other.wait();
    } catch (const Error& error) {
      if (outcome.ok()) outcome = error.status();
    }
  }
  return outcome;
}

void onFinish(Call& call, const FinishMessage& message) {
  Worker& worker = call.worker();
  Result<ContextPtr> context = interceptorOf(worker).contexts().find(message.context);
  // A context that was released meanwhile has no pass to end: that is what the caller wants.
  if (context.ok()) throwIfError(finishEverywhere(worker, *context, message, {call.caller().rank}));
}

void onRelease(Call& call, int64_t contextId) { releaseEverywhere(call.worker(), contextId, call.caller().rank); }

}  // namespace

void runBackward(Worker& worker, const ContextPtr& context, std::vector<Root> roots, const BackwardOptions& options) {
  FinishMessage end{context->id, interceptorOf(worker).contexts().nextId(), ""};
  std::shared_ptr<Pass> pass =
      valueOrThrow(makePass(worker, context, {end.pass, options.retainGraph}, std::move(roots)));
  auto& network = static_cast<Network&>(pass->sink());
  network.setOwnPass(end.pass);
  Future<EndedRanks> done;
  {
    MutexLock lock(context->mutex);
    throwIfError(context->broken);
    // The root is engaged by itself: what would be an acknowledgement elsewhere ends the wait here.
    LivePass& live = context->passes.emplace(end.pass, LivePass{pass, std::nullopt}).first->second;
    done = live.engagedBy.emplace().future();
  }
  runUntilIdle(*pass);
  // While this thread waits it serves the sockets of its own calls; for a chain of two workers that saves two
  // wake-ups per step.
  network.readAnswers();
  Status outcome;
  try {
    done.wait();
  } catch (const Error& error) {
    outcome = error.status();
    end.failure = "the backward pass failed: " + outcome.message();
  }
  // A failure is told to all, also to those on which the pass had ended well.
  Status finished = finishEverywhere(worker, context, end, outcome.ok() ? network.endedRanks() : EndedRanks());
  throwIfError(outcome.ok() ? finished : outcome);
}

void releaseEverywhere(Worker& worker, int64_t contextId, std::optional<int> toldBy) {
  AutogradInterceptor& interceptor = interceptorOf(worker);
  ContextPtr context = interceptor.contexts().release(contextId);
  if (!context) return;
  context->takePasses();
  CurrentContext none(interceptor, nullptr);
  // Nobody waits for these: they go with what is sent next, as a rule the next context's first message.
  EndedRanks knowing;
  if (toldBy) knowing.push_back(*toldBy);
  for (int rank : toTell(worker, *context, knowing, true))
    worker.with({.lazy = true}).async<&onRelease>(rank, contextId);
}

Functions backwardFunctions() {
  return Functions()
      .add<&onGradients>("treadle.autograd.gradients")
      .add<&onFinish>("treadle.autograd.finish")
      .add<&onRelease>("treadle.autograd.release");
}

void checkMode(AutogradMode mode) {
  if (mode == AutogradMode::kSmart)
    raise(failedPrecondition("AutogradMode::kSmart is not there yet; use kFast, the default"));
}

}  // namespace treadle::autograd
