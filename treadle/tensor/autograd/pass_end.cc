#include "treadle/tensor/autograd/pass_end.h"

#include "treadle/tensor/autograd/interceptor.h"
#include "treadle/tensor/autograd/pass_network.h"

namespace treadle::autograd {
namespace {

// A callback that waits for other workers fails so when one of them has failed.
bool isConsequence(const Status& failure) {
  return failure.code() == Code::kCancelled || failure.code() == Code::kDeadlineExceeded;
}

// Each worker knows for itself what got no gradient there.
Status both(Status one, const Status& other) {
  if (isConsequence(one) && !other.ok() && !isConsequence(other)) return other;
  if (one.code() != Code::kFailedPrecondition || other.code() != Code::kFailedPrecondition) return one;
  return failedPrecondition(one.message() + "; " + other.message()).withWorker(one.worker());
}

// What became of the pass there.
Status endedBy(TimePoint deadline, const Future<void>& other, const WorkerInfo& there) {
  const auto state = sharedStateOf(other);
  Result<bool> ready = state->waitUntil(deadline);
  if (!ready.ok()) return ready.status();
  if (*ready) return state->result().status();
  return deadlineExceeded("the backward pass was over, and " + link::describe(there) +
                          " had not ended it within the time limit (BackwardOptions::timeout)");
}

}  // namespace

std::vector<int> toTell(const Worker& worker, ContextState& context, const EndedRanks& knowing) {
  MutexLock lock(context.mutex);
  std::vector<int> ranks(context.known.begin(), context.known.end());
  std::erase(ranks, worker.self().rank);
  for (int32_t rank : knowing) std::erase(ranks, rank);
  return ranks;
}

namespace {

// What this worker has to do about the end of a pass.
enum class Left { kNothing, kTellOthers, kEndHere };

// Whether the pass ended badly, and this worker hears of it for the first time. From then on the context is of no use,
// also where a node of the pass still runs.
bool isNewFailure(ContextState& context, const FinishMessage& message) TREADLE_REQUIRES(context.mutex) {
  if (message.failure.empty() || message.id.pass <= context.lastFailed) return false;
  context.lastFailed = message.id.pass;
  if (context.broken.ok()) context.broken = cancelled(message.failure);
  return true;
}

// Refuses what no worker of a job says. Nobody has to inform the owner, and in SMART mode only the owner reports a good
// end. What has ended here may come again.
void checkMayEnd(const ContextState& context, int self, const FinishMessage& message, int from)
    TREADLE_REQUIRES(context.mutex) {
  const int owner = context.ownerRank;
  const bool isNew = message.id.pass > context.lastEnded;
  const bool isSmart = context.graph->mode() == AutogradMode::kSmart;
  const bool isStrangers = isNew && isSmart && message.failure.empty() && from != owner && from != self;
  const bool isOther = isNew && context.live && context.live->id != message.id.pass;
  if (rankOfId(message.id.pass) != owner || (self == owner && from != self) || isStrangers || isOther)
    raise(invalidArgument("worker " + std::to_string(from) + " may not end this backward pass of autograd context " +
                          std::to_string(context.id)));
}

// Takes the end of the pass, which worker `from` reports, for the calling thread.
Left takeEnd(ContextState& context, int self, const FinishMessage& message, int from, std::shared_ptr<Pass>& pass) {
  MutexLock lock(context.mutex);
  checkMayEnd(context, self, message, from);
  const bool hasFailed = isNewFailure(context, message);
  // Remembered: several others may report the end, and gradients that come after it must not begin the pass anew. Where
  // it ended well here and failed elsewhere, those behind must hear of it too.
  if (message.id.pass <= context.lastEnded) return hasFailed ? Left::kTellOthers : Left::kNothing;
  context.lastEnded = message.id.pass;
  if (const LivePass* live = context.find(message.id.pass)) pass = live->pass;
  return Left::kEndHere;
}

// Why the context is of no use. That something was cancelled is no better reason than the one that is there.
void noteOutcome(ContextState& context, const Status& outcome) TREADLE_REQUIRES(context.mutex) {
  if (!outcome.ok() && (context.broken.ok() || outcome.code() != Code::kCancelled)) context.broken = outcome;
}

using Callbacks = std::vector<UniqueFunction<void()>>;

// Once takeEnd has said so. `onSuccess`: what is to run if the pass has ended well elsewhere too.
Status endHere(Worker& worker, const ContextPtr& context, const FinishMessage& message, std::shared_ptr<Pass> pass,
               Callbacks& onSuccess) {
  const bool smart = context->graph->mode() == AutogradMode::kSmart;
  Status outcome;
  // FAST mode: sends of this worker that no gradient reached; a pass over them alone finds and names them.
  if (!smart && !pass && message.failure.empty() && !context->isOver() && !context->graph->sends().empty()) {
    Result<std::shared_ptr<Pass>> over = makePass(worker, context, {message.id.pass, false}, {});
    over.ok() ? void(pass = *std::move(over)) : void(outcome = over.status());
  }
  if (pass) {
    if (!message.failure.empty()) pass->fail(cancelled(message.failure));
    outcome = pass->finish();
    onSuccess = pass->takeSuccessCallbacks();
  } else if (!message.failure.empty()) {
    outcome = cancelled(message.failure);
  }
  std::optional<LivePass> ended = [&] {
    MutexLock lock(context->mutex);
    noteOutcome(*context, outcome);
    return context->take(message.id.pass);
  }();
  // Gradients that engaged this worker again after the last look may still wait for their answer.
  if (ended && ended->engagedBy) outcome.ok() ? ended->engagedBy->set({}) : ended->engagedBy->fail(outcome);
  return outcome;
}

}  // namespace

bool finishHere(Worker& worker, const ContextPtr& context, const FinishMessage& message, Status& outcome) {
  std::shared_ptr<Pass> pass;
  const int self = worker.self().rank;
  const Left left = takeEnd(*context, self, message, self, pass);
  Callbacks onSuccess;  // none, as nobody ends a pass with callbacks by itself
  if (left == Left::kEndHere) outcome = endHere(worker, context, message, std::move(pass), onSuccess);
  return left != Left::kNothing;
}

Status finishEverywhere(Worker& worker, const ContextPtr& context, const FinishMessage& message, int from,
                        const std::vector<int>& others, TimePoint deadline) {
  std::shared_ptr<Pass> pass;
  const Left left = takeEnd(*context, worker.self().rank, message, from, pass);
  if (left == Left::kNothing) {
    // In SMART mode a good end is reported once: what ended here before was by this worker itself, or a failure.
    const bool isToldOnce = context->graph->mode() == AutogradMode::kSmart && message.failure.empty();
    return isToldOnce ? context->usable() : Status();
  }
  // Sends the end to all others before the pass ends here: a callback of the pass may wait for callbacks there. Waits
  // for all, also when one fails: when backward returns, only lost workers may still be at work on the pass.
  std::vector<std::pair<int, Future<void>>> ending;
  Status notTold;
  {
    CurrentContext none(interceptorOf(worker), nullptr);
    CallProxy caller = worker.with({.timeout = kNoTimeout});
    for (int rank : others) {
      try {
        ending.emplace_back(rank, caller.async<&onFinish>(rank, message));
      } catch (const Error& error) {
        // That worker cannot be reached. The end still goes to the others.
        if (notTold.ok()) notTold = error.status();
      }
    }
  }
  Status outcome;
  Callbacks onSuccess;
  if (left == Left::kEndHere) outcome = endHere(worker, context, message, std::move(pass), onSuccess);
  if (outcome.ok()) outcome = std::move(notTold);
  for (auto& [rank, other] : ending) {
    Status ended = endedBy(deadline, other, worker.peer(rank));
    outcome = outcome.ok() ? std::move(ended) : both(std::move(outcome), ended);
  }
  if (outcome.ok()) {
    for (auto& callback : onSuccess) callback();
    return {};
  }
  MutexLock lock(context->mutex);
  noteOutcome(*context, outcome);
  return outcome;
}

void onFinish(CallContext& call, const FinishMessage& message) {
  Worker& worker = call.worker();
  Result<ContextPtr> found = interceptorOf(worker).contexts().find(message.id.context);
  // A context that was released meanwhile has no pass to end: that is what the caller wants.
  if (!found.ok()) return;
  const ContextPtr& context = *found;
  // In SMART mode the worker that called backward tells all whom a pass that went well concerns.
  const bool passOn = context->graph->mode() == AutogradMode::kFast || !message.failure.empty();
  std::vector<int> others;
  if (passOn) others = toTell(worker, *context, {call.caller().rank, context->ownerRank});
  throwIfError(finishEverywhere(worker, context, message, call.caller().rank, others));
}

void releaseEverywhere(Worker& worker, int64_t contextId, std::optional<int> toldBy) {
  AutogradInterceptor& interceptor = interceptorOf(worker);
  ContextPtr context = interceptor.contexts().release(contextId);
  if (!context) return;
  context->end();
  CurrentContext none(interceptor, nullptr);
  // Nobody waits for these: they go with what is sent next, as a rule the next context's first message.
  EndedRanks knowing;
  if (toldBy) knowing.push_back(*toldBy);
  for (int rank : toTell(worker, *context, knowing)) worker.with({.lazy = true}).async<&onRelease>(rank, contextId);
}

namespace {

std::shared_ptr<ReceivedMessages> makeReceived(Worker& worker, int64_t contextId) {
  auto tell = [&worker, contextId](int rank, const std::vector<int64_t>& messageIds) {
    CurrentContext none(interceptorOf(worker), nullptr);
    try {
      worker.with({.lazy = true}).async<&onDropped>(rank, contextId, messageIds);
    } catch (const Error&) {}  // this worker is leaving, or that one is gone: nobody keeps anything for it
  };
  return std::make_shared<ReceivedMessages>(&worker.engine().executor(), std::move(tell));
}

// An owner that does not know it any more has ended it; one that is lost takes it along.
void adopt(Worker& worker, int64_t contextId, int owner) {
  CurrentContext none(interceptorOf(worker), nullptr);
  std::shared_ptr<Future<void>::State> answer;
  try {
    answer = sharedStateOf(worker.with({.timeout = kNoTimeout}).async<&onAdopt>(owner, contextId));
  } catch (const Error&) {
    return;  // not there yet, in an open job, or this worker is leaving: the loss of the owner ends the context
  }
  answer->onReady([&worker, answer = answer.get(), contextId, pool = io::ContinueOn(&worker.engine().executor())] {
    if (answer->result().status().code() != Code::kNotFound) return;
    pool.post([&worker, contextId] { releaseEverywhere(worker, contextId); });
  });
}

}  // namespace

ContextsNetwork networkOf(Worker& worker) {
  const auto later = [&worker](UniqueFunction<void()> task) { worker.engine().executor().post(std::move(task)); };
  return {.mayExist =
              [&worker](int rank) {
                // In an open job a message may overtake the word of who has come.
                const cluster::Membership& members = worker.engine().membership();
                return rank >= 0 && (members.open() || rank < members.worldSize());
              },
          .later = later,
          .makeReceived = [&worker](int64_t contextId) { return makeReceived(worker, contextId); },
          .adopt = [&worker, later](
                       int64_t contextId,
                       int owner) { later([&worker, contextId, owner] { adopt(worker, contextId, owner); }); }};
}

void onAdopt(CallContext& call, int64_t contextId) {
  ContextPtr context = valueOrThrow(interceptorOf(call.worker()).contexts().find(contextId));
  MutexLock lock(context->mutex);
  if (context->ended) raise(contextGone(contextId));
  context->known.insert(call.caller().rank);
}

void onDropped(CallContext& call, int64_t contextId, const std::vector<int64_t>& messageIds) {
  Result<ContextPtr> context = interceptorOf(call.worker()).contexts().find(contextId);
  if (!context.ok()) return;
  (*context)->graph->forgetSentTo(call.caller().rank, messageIds);
}

void onRelease(CallContext& call, int64_t contextId) {
  releaseEverywhere(call.worker(), contextId, call.caller().rank);
}

}  // namespace treadle::autograd
