#include "treadle/tensor/autograd/backward.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "treadle/tensor/autograd/describe.h"
#include "treadle/tensor/autograd/interceptor.h"
#include "treadle/tensor/autograd/pass_end.h"
#include "treadle/tensor/autograd/pass_network.h"

namespace treadle::autograd {
namespace {

// The answer to a message that found this worker engaged already: at once, by the rule.
Future<EndedRanks> readyFuture() {
  Promise<EndedRanks> promise;
  promise.set();
  return promise.future();
}

// The pass of a message that came, as far as this worker has it. On another worker than the owner of the context, it is
// the message that makes the pass known.
LivePass& livePass(const Worker& worker, ContextState& context, const PassId& id) TREADLE_REQUIRES(context.mutex) {
  if (context.ended) raise(contextGone(context.id));
  if (id.pass <= context.lastEnded) raise(failedPrecondition("gradients came for a backward pass that is over"));
  if (!context.live && context.ownerRank != worker.self().rank) context.live.emplace(LivePass{.id = id.pass});
  LivePass* live = context.find(id.pass);
  if (live == nullptr)
    raise(invalidArgument("gradients came for another backward pass of autograd context " + std::to_string(context.id) +
                          " than the one that is under way"));
  throwIfError(live->refused);
  return *live;
}

// Nobody is to wait for a pass that does not run here: what has come for it is answered, and so is what still comes.
[[noreturn]] void refuse(ContextState& context, const PassId& id, const Status& why) {
  std::optional<Promise<EndedRanks>> engagedBy;
  std::map<int64_t, std::vector<MaybeGradient>> early;  // freed without the lock
  {
    MutexLock lock(context.mutex);
    if (LivePass* live = context.find(id.pass)) {
      live->refused = why;
      early.swap(live->early);
      if (live->engagedBy) engagedBy.emplace(*std::move(live->engagedBy));
      live->engagedBy.reset();
    }
  }
  if (engagedBy) engagedBy->fail(why);
  raise(why);
}

// A refused message may be one of several that belong together.
void add(Pass& pass, int64_t messageId, std::vector<MaybeGradient> gradients) {
  Status added = pass.addReady(messageId, std::move(gradients));
  if (!added.ok()) pass.fail(added);
  throwIfError(added);
}

// To the pass, or to what it takes when it has counted its graph.
void addAll(LivePass& live, std::vector<MessageGradients> messages) {
  for (MessageGradients& message : messages) {
    if (live.pass) {
      add(*live.pass, message.messageId, std::move(message.gradients));
    } else if (!live.early.emplace(message.messageId, std::move(message.gradients)).second) {
      raise(invalidArgument("gradients came twice for message " + std::to_string(message.messageId)));
    }
  }
}

// Counts its graph without the lock, which threads that read messages take, and then takes what has come meanwhile.
std::shared_ptr<Pass> countAndTakeEarly(Worker& worker, const ContextPtr& context, const PassId& id,
                                        std::optional<std::vector<int64_t>> sends) try {
  auto pass = valueOrThrow(makePass(worker, context, {id.pass, id.retainGraph, std::move(sends)}, {}));
  MutexLock lock(context->mutex);
  LivePass& live = livePass(worker, *context, id);
  live.pass = pass;
  for (auto& [messageId, gradients] : std::exchange(live.early, {})) add(*pass, messageId, std::move(gradients));
  return pass;
} catch (...) {
  refuse(*context, id, statusOfCurrentException("the beginning of a backward pass"));
}

// Gradients of a pass of the context's owner, for messages of this worker that went to `from`. What is gone of those is
// the pass's affair.
void checkSource(const ContextState& context, int from, const GradientMessage& gradients) {
  const ContextGraph& graph = *context.graph;
  if (gradients.messages.empty()) raise(invalidArgument("a message with gradients holds none"));
  if (rankOfId(gradients.id.pass) != context.ownerRank)
    raise(invalidArgument("gradients came for a backward pass of somebody else than the owner of the context"));
  const int64_t end = graph.numbersGiven();
  for (const MessageGradients& message : gradients.messages)
    if (message.messageId < 0 || message.messageId >= end)
      raise(invalidArgument("gradients came for message " + std::to_string(message.messageId) +
                            " of autograd context " + std::to_string(graph.contextId()) +
                            ", which this worker never sent"));
    else if (auto send = graph.findSend(message.messageId); send && send->message().peerRank != from)
      raise(invalidArgument("gradients came for message " + std::to_string(message.messageId) +
                            " of autograd context " + std::to_string(graph.contextId()) +
                            " from a worker to which it never went"));
}

// Whom the root tells of the end: in SMART mode it knows who took part, otherwise whom it sent messages.
std::vector<int> othersOf(const Worker& worker, const ContextPtr& context, const Lineage& sends,
                          const EndedRanks& ended) {
  if (context->graph->mode() == AutogradMode::kFast) return toTell(worker, *context, ended);
  std::vector<int> others = sends.ranks();
  std::erase(others, worker.self().rank);
  for (int32_t rank : ended) std::erase(others, rank);
  return others;
}

// Fails the pass of this worker at the deadline, which is `limit` after the user's call.
class TimeLimit {
 public:
  TimeLimit(Worker& worker, const std::shared_ptr<Pass>& pass, TimePoint deadline, Duration limit) {
    if (deadline == kNever) return;
    timer_ = worker.engine().after(std::max(deadline - Clock::now(), Duration::zero()));
    auto timer = sharedStateOf(timer_);
    timer->onReady([timer = timer.get(), weak = std::weak_ptr(pass), limit] {
      auto alive = weak.lock();
      if (alive && timer->result().ok()) static_cast<PassNetwork&>(alive->sink()).giveUp(*alive, limit);
    });
  }
  ~TimeLimit() {
    if (timer_.valid()) timer_.cancel();
  }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  Future<void> timer_;
};

// A context takes one pass at a time.
class OnlyPass {
 public:
  explicit OnlyPass(ContextState& context) : context_(context) {
    MutexLock lock(context.mutex);
    if (std::exchange(context.isInBackward, true))
      raise(failedPrecondition("a backward pass of autograd context " + std::to_string(context.id) +
                               " is under way; a context takes one at a time"));
  }
  ~OnlyPass() {
    MutexLock lock(context_.mutex);
    context_.isInBackward = false;
  }
  OnlyPass(const OnlyPass&) = delete;
  OnlyPass& operator=(const OnlyPass&) = delete;

 private:
  ContextState& context_;
};

// Engages this worker by itself: what would be an acknowledgement elsewhere ends the wait here.
Future<EndedRanks> engage(ContextState& context, const std::shared_ptr<Pass>& pass) {
  throwIfError(context.usable());
  MutexLock lock(context.mutex);
  if (context.ended) raise(contextGone(context.id));
  context.live.emplace(LivePass{.id = pass->passId(), .begun = true, .pass = pass});
  return context.live->engagedBy.emplace().future();
}

// Until it is over on all workers, well or badly.
Status runToItsEnd(const std::shared_ptr<Pass>& pass, const Lineage& sends, const Future<EndedRanks>& done,
                   TimePoint deadline) {
  auto& network = static_cast<PassNetwork&>(pass->sink());
  try {
    network.begin(*pass, sends);
    PassNetwork::runUntilIdle(*pass);
    // While this thread waits it serves the sockets of its own calls; for a chain of two workers that saves two
    // wake-ups per step.
    network.readAnswers(*pass, deadline);
    Future<EndedRanks>(done).wait();
    return {};
  } catch (...) {
    return statusOfCurrentException("a backward pass");
  }
}

std::string failureText(const Status& failure) { return "the backward pass failed: " + failure.message(); }

// A failure is told to all who may have heard of the pass, also to those on which it had ended well.
std::vector<int> allOf(const Worker& worker, ContextState& context, const Lineage& sends) {
  std::vector<int> all = toTell(worker, context, {});
  for (int rank : sends.ranks())
    if (rank != worker.self().rank && std::ranges::find(all, rank) == all.end()) all.push_back(rank);
  return all;
}

}  // namespace

PassId idOf(const Pass& pass) { return {pass.contextId(), pass.passId(), pass.retainGraph()}; }

EndedRanks onBegin(CallContext& call, const BeginMessage& message) {
  Worker& worker = call.worker();
  ContextPtr context = valueOrThrow(interceptorOf(worker).contexts().find(message.id.context));
  if (call.caller().rank != context->ownerRank || rankOfId(message.id.pass) != context->ownerRank ||
      context->graph->mode() != AutogradMode::kSmart)
    raise(invalidArgument("a backward pass is begun by the worker that owns the context, in SMART mode"));
  // In order, so none twice: its nodes would wait for more gradients than come.
  if (std::ranges::adjacent_find(message.sends, std::greater_equal<>()) != message.sends.end())
    raise(invalidArgument("a backward pass is begun with a message that is there twice, or not in order"));
  {
    MutexLock lock(context->mutex);
    if (message.id.pass <= context->lastEnded) return {};  // the word of its end came first
    if (std::exchange(livePass(worker, *context, message.id).begun, true))
      raise(invalidArgument("a backward pass was begun twice"));
  }
  PassNetwork::runUntilIdle(*countAndTakeEarly(worker, context, message.id, message.sends));
  return {};
}

rpc::AnswerThen<EndedRanks> onGradients(CallContext& call, GradientMessage message) {
  Worker& worker = call.worker();
  ContextPtr context = valueOrThrow(interceptorOf(worker).contexts().find(message.id.context));
  checkSource(*context, call.caller().rank, message);
  std::shared_ptr<Pass> pass;
  Future<EndedRanks> answer = readyFuture();
  bool begins = false;
  {
    MutexLock lock(context->mutex);
    LivePass& live = livePass(worker, *context, message.id);
    addAll(live, std::move(message.messages));
    // In SMART mode the worker that called backward says when it begins.
    if (context->graph->mode() == AutogradMode::kFast) begins = !std::exchange(live.begun, true);
    pass = live.pass;
    // This message engages the worker: its answer is kept back until the worker is idle again, which is how
    // the sender (and at the end the worker that called backward) knows.
    if (!live.engagedBy) answer = live.engagedBy.emplace().future();
  }
  if (begins) pass = countAndTakeEarly(worker, context, message.id, {});
  // An answer that is given at once does not wait for the nodes: the sender may end its part while they run.
  UniqueFunction<void()> run;
  if (pass) run = [pass = std::move(pass)] { PassNetwork::runUntilIdle(*pass); };
  return {std::move(answer), std::move(run)};
}

void runBackward(Worker& worker, ContextPtr context, std::vector<Root> roots, const BackwardOptions& options,
                 TimePoint deadline) {
  const OnlyPass only(*context);
  FinishMessage end{{context->id, interceptorOf(worker).contexts().nextId(), options.retainGraph}, ""};
  PassOptions here{end.id.pass, options.retainGraph};
  Lineage sends;
  if (context->graph->mode() == AutogradMode::kSmart) {
    sends = valueOrThrow(context->graph->lineageOf(roots));
    here.sends = sends.numbers(worker.self().rank);
  }
  std::shared_ptr<Pass> pass = valueOrThrow(makePass(worker, context, std::move(here), std::move(roots)));
  auto& network = static_cast<PassNetwork&>(pass->sink());
  network.setOwnPass(end.id.pass);
  const TimeLimit limit(worker, pass, deadline, options.timeout);
  Future<EndedRanks> done = engage(*context, pass);
  const Status outcome = runToItsEnd(pass, sends, done, deadline);
  if (!outcome.ok()) end.failure = failureText(outcome);
  const std::vector<int> others =
      outcome.ok() ? othersOf(worker, context, sends, network.endedRanks()) : allOf(worker, *context, sends);
  const int self = worker.self().rank;
  const Status finished = finishEverywhere(worker, context, end, self, others, deadline);
  if (outcome.ok() && !finished.ok()) {
    // It failed at its end: those on which it had ended well are to hear of that.
    end.failure = failureText(finished);
    finishEverywhere(worker, context, end, self, allOf(worker, *context, sends), deadline).ignore();
  }
  throwIfError(outcome.ok() ? finished : outcome);
}

Functions backwardFunctions() {
  return Functions()
      .add<&onBegin>("treadle.autograd.begin")
      .add<&onGradients>("treadle.autograd.gradients")
      .add<&onFinish>("treadle.autograd.finish")
      .add<&onDropped>("treadle.autograd.dropped")
      .add<&onAdopt>("treadle.autograd.adopt")
      .add<&onRelease>("treadle.autograd.release")
      .add<&onDescribe>("treadle.autograd.describe");
}

}  // namespace treadle::autograd
