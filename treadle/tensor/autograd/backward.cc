#include "treadle/tensor/autograd/backward.h"

#include "treadle/tensor/autograd/interceptor.h"

namespace treadle::autograd {

inline auto fields(GradientMessage& message) {
  return std::tie(message.context, message.pass, message.retainGraph, message.message, message.gradients);
}
inline auto fields(FinishMessage& message) {
  return std::tie(message.context, message.pass, message.failure);
}

namespace {

Future<void> onGradients(Call& call, GradientMessage message);
void onFinish(Call& call, const FinishMessage& message);
void onRelease(Call& call, int64_t contextId);

// The network's side of the passes of one context, for as long as one of them lives.
class Network final : public GradientSink {
 public:
  Network(Worker& worker, ContextPtr context) : worker_(worker), context_(std::move(context)) {}

  Status sendGradients(Pass& pass, const MessageInfo& message, std::vector<at::Tensor> gradients) override {
    auto pending = std::make_shared<Pass::Pending>(pass.addPending());
    GradientMessage out{context_->id, pass.passId(), pass.retainGraph(), message.messageId,
                        std::move(gradients)};
    CurrentContext none(interceptorOf(worker_), nullptr);
    auto state =
        worker_.with({.timeout = kWhilePeerLives}).async<&onGradients>(message.peerRank, out).share();
    {
      MutexLock lock(mutex_);
      answers_.emplace_back(state);
    }
    state->onReady([state, pending] {
      if (state->result().ok()) return pending->complete();
      pending->fail(state->result().status());
    });
    return {};
  }

  // Answers the message that made this worker active, if the pass has nothing left to do.
  void onIdle(Pass& pass) override {
    std::optional<Promise<void>> engagedBy;
    {
      MutexLock lock(context_->mutex);
      auto found = context_->passes.find(pass.passId());
      if (found == context_->passes.end() || !pass.idle()) return;
      std::optional<Promise<void>>& engaged = found->second.engagedBy;
      if (!engaged) return;
      engagedBy.emplace(std::move(*engaged));
      engaged.reset();
    }
    Status status = pass.status();
    status.ok() ? engagedBy->set() : engagedBy->fail(std::move(status));
  }

  // Waits for the answers to what was sent so far. The waiting thread reads them from their sockets itself, so that no
  // other thread has to wake it; a failure reaches the pass.
  void readAnswers() {
    std::vector<Future<void>> answers;
    {
      MutexLock lock(mutex_);
      answers.swap(answers_);
    }
    for (const Future<void>& answer : answers) (void)answer.share()->waitUntil(kNever);
  }

 private:
  Worker& worker_;
  const ContextPtr context_;
  Mutex mutex_;
  std::vector<Future<void>> answers_ TREADLE_GUARDED_BY(mutex_);
};

Result<std::shared_ptr<Pass>> makePass(Worker& worker, const ContextPtr& context, const PassOptions& options,
                                       std::vector<Root> roots) {
  auto network = std::make_shared<Network>(worker, context);
  LeafSlots& slots = interceptorOf(worker).contexts().slots();
  return Pass::create(context->graph, std::move(network), slots, options, std::move(roots));
}

Future<void> readyFuture() {
  Promise<void> promise;
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

Future<void> onGradients(Call& call, GradientMessage message) {
  Worker& worker = call.worker();
  ContextPtr context = valueOrThrow(interceptorOf(worker).contexts().find(message.context));
  std::shared_ptr<Pass> pass;
  Future<void> answer = readyFuture();
  {
    MutexLock lock(context->mutex);
    LivePass& live = livePass(worker, context, message);
    throwIfError(live.pass->addReady(message.message, std::move(message.gradients)));
    pass = live.pass;
    if (!live.engagedBy) answer = live.engagedBy.emplace().future();
  }
  pass->runUntilIdle().ignore();  // a failure is the answer
  pass->sink().onIdle(*pass);
  return answer;
}

std::vector<int> knownTo(ContextState& context, int self, bool releasing = false) {
  MutexLock lock(context.mutex);
  context.released = context.released || releasing;
  std::vector<int> ranks(context.known.begin(), context.known.end());
  std::erase(ranks, self);
  return ranks;
}

// Ends the pass on this worker; false when it had ended here before.
bool finishHere(Worker& worker, const ContextPtr& context, const FinishMessage& message, Status& outcome) {
  std::shared_ptr<Pass> pass;
  {
    MutexLock lock(context->mutex);
    if (!context->finishedPasses.insert(message.pass).second) return false;
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

// Here, then on all workers that this one reached; the first failure.
Status finishEverywhere(Worker& worker, const ContextPtr& context, const FinishMessage& message) {
  Status outcome;
  if (!finishHere(worker, context, message, outcome)) return {};
  CurrentContext none(interceptorOf(worker), nullptr);
  std::vector<Future<void>> others;
  Caller caller = worker.with({.timeout = kWhilePeerLives});
  for (int rank : knownTo(*context, worker.self().rank))
    others.push_back(caller.async<&onFinish>(rank, message));
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
  if (context.ok()) throwIfError(finishEverywhere(worker, *context, message));
}

void onRelease(Call& call, int64_t contextId) { releaseEverywhere(call.worker(), contextId); }

}  // namespace

void runBackward(Worker& worker, const ContextPtr& context, std::vector<Root> roots,
                 const BackwardOptions& options) {
  FinishMessage end{context->id, interceptorOf(worker).contexts().nextId(), ""};
  std::shared_ptr<Pass> pass =
      valueOrThrow(makePass(worker, context, {end.pass, options.retainGraph}, std::move(roots)));
  Future<void> done;
  {
    MutexLock lock(context->mutex);
    throwIfError(context->broken);
    LivePass& live = context->passes.emplace(end.pass, LivePass{pass, std::nullopt}).first->second;
    done = live.engagedBy.emplace().future();
  }
  pass->runUntilIdle().ignore();  // a failure is what `done` tells
  pass->sink().onIdle(*pass);
  static_cast<Network&>(pass->sink()).readAnswers();
  Status outcome;
  try {
    done.wait();
  } catch (const Error& error) {
    outcome = error.status();
    end.failure = "the backward pass failed: " + outcome.message();
  }
  Status finished = finishEverywhere(worker, context, end);
  throwIfError(outcome.ok() ? finished : outcome);
}

void releaseEverywhere(Worker& worker, int64_t contextId) {
  AutogradInterceptor& interceptor = interceptorOf(worker);
  ContextPtr context = interceptor.contexts().release(contextId);
  if (!context) return;
  std::vector<std::shared_ptr<Pass>> unfinished;
  {
    MutexLock lock(context->mutex);
    for (auto& [id, live] : context->passes) unfinished.push_back(live.pass);
    context->passes.clear();
  }
  CurrentContext none(interceptor, nullptr);
  for (int rank : knownTo(*context, worker.self().rank, true)) worker.async<&onRelease>(rank, contextId);
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
