#include "treadle/tensor/autograd/pass_network.h"

#include "treadle/tensor/autograd/backward.h"
#include "treadle/tensor/autograd/interceptor.h"
#include "treadle/tensor/autograd/pass_end.h"

namespace treadle::autograd {
namespace {

// The pass that this thread runs for its caller, rather than reading what completes a part of one.
thread_local const Pass* runningHere = nullptr;

struct Load {
  size_t tensors = 0, bytes = 0;
};
// Of gradients that travel together: far below the limits of a message (link/message.h), and enough to be worth one.
constexpr Load kMost{4096, size_t{256} << 20};

// Of another layout than these none travels.
size_t bytesOf(const at::Tensor& gradient) {
  if (gradient.layout() == at::kSparse) return gradient._indices().nbytes() + gradient._values().nbytes();
  return gradient.layout() == at::kStrided ? gradient.nbytes() : 0;
}

Load loadOf(const MessageGradients& message) {
  Load load{message.gradients.size(), 0};
  for (const MaybeGradient& gradient : message.gradients)
    if (gradient && gradient->defined()) load.bytes += bytesOf(*gradient);
  return load;
}

}  // namespace

// What is sent are values: sending them must not become part of the graph that is being run.
template <auto Function, class Message>
void PassNetwork::send(Pass& pass, int rank, const Message& message) {
  // Taken before the message leaves: the answer may be there before `async` returns, and a pass without
  // pending work could count as idle in between.
  auto pending = std::make_shared<Pass::Pending>(pass.addPending());
  CurrentContext none(interceptorOf(worker_), nullptr);
  auto state = sharedStateOf(worker_.with({.timeout = kNoTimeout}).async<Function>(rank, message));
  {
    MutexLock lock(mutex_);
    answers_.emplace_back(rank, state);
  }
  // On the thread that read the answer. It only counts; nodes never run here (Pass::runUntilIdle does that).
  state->onReady([this, state, pending] {
    if (!state->result().ok()) return pending->fail(state->result().status());
    ended(*state->result());
    pending->complete();
  });
}

// What left as many messages may be more than one message can hold.
Status PassNetwork::sendGradients(Pass& pass, int rank, std::vector<MessageGradients> messages) {
  GradientMessage together{idOf(pass), {}};
  Load load;
  for (MessageGradients& message : messages) {
    const Load more = loadOf(message);
    if (!together.messages.empty() &&
        (load.tensors + more.tensors > kMost.tensors || load.bytes + more.bytes > kMost.bytes)) {
      send<&onGradients>(pass, rank, together);
      together.messages.clear();
      load = {};
    }
    load = {load.tensors + more.tensors, load.bytes + more.bytes};
    together.messages.push_back(std::move(message));
  }
  send<&onGradients>(pass, rank, together);
  return {};
}

void PassNetwork::begin(Pass& pass, const Lineage& sends) {
  for (int rank : sends.ranks())
    if (rank != worker_.self().rank) send<&onBegin>(pass, rank, BeginMessage{idOf(pass), sends.numbers(rank)});
}

std::string PassNetwork::nameOf(int rank) const { return link::describe(worker_.peer(rank)); }

void PassNetwork::runUntilIdle(Pass& pass) {
  const Pass* before = std::exchange(runningHere, &pass);
  pass.runUntilIdle().ignore();  // a failure is what is answered
  pass.sink().onIdle(pass);
  runningHere = before;
}

// Answers the message that made this worker active, if the pass has nothing left to do.
void PassNetwork::onIdle(Pass& pass) {
  if (pass.passId() == ownPass_ && !pass.status().ok()) stopWaiting();
  std::optional<Promise<EndedRanks>> engagedBy;
  std::shared_ptr<Pass> alive;
  {
    // Asked under the lock that onGradients holds while it adds: otherwise gradients that arrive between
    // the question and the answer would be acknowledged before they have been worked on. See Note [Idle] in
    // pass.h.
    MutexLock lock(context_->mutex);
    LivePass* live = context_->find(pass.passId());
    if (live == nullptr || !pass.idle()) return;
    std::optional<Promise<EndedRanks>>& engaged = live->engagedBy;
    if (!engaged) return;
    engagedBy.emplace(std::move(*engaged));
    engaged.reset();
    alive = live->pass;
  }
  // Outside of the lock: whoever waits for the promise may run on. The end of a pass runs callbacks that may wait and
  // frees a graph, which is nothing for a thread that reads: there a task does it.
  auto answer = [this, alive, promise = std::move(*engagedBy)]() mutable { endAndAnswer(*alive, std::move(promise)); };
  if (runningHere == &pass || pass.passId() == ownPass_) return answer();
  worker_.engine().executor().post(std::move(answer));
}

EndedRanks PassNetwork::endedRanks() {
  MutexLock lock(mutex_);
  return {ended_.begin(), ended_.end()};
}

void PassNetwork::readAnswers(const Pass& pass, TimePoint deadline) {
  std::vector<std::pair<int, Future<EndedRanks>>> answers;
  {
    MutexLock lock(mutex_);
    answers = answers_;
  }
  for (const auto& [rank, answer] : answers) {
    if (!pass.status().ok()) return;
    (void)sharedStateOf(answer)->waitUntil(deadline);
  }
}

void PassNetwork::giveUp(Pass& pass, Duration limit) {
  std::string waitsFor;
  {
    MutexLock lock(mutex_);
    std::set<int> ranks;
    for (const auto& [rank, answer] : answers_)
      if (!answer.ready() && ranks.insert(rank).second) waitsFor += (waitsFor.empty() ? "" : ", ") + nameOf(rank);
  }
  if (waitsFor.empty()) waitsFor = nameOf(worker_.self().rank);
  pass.fail(deadlineExceeded("the backward pass of autograd context " + std::to_string(pass.contextId()) +
                             " did not end within " + toText(limit) + " (BackwardOptions::timeout): " + waitsFor +
                             " had not done its part"));
  onIdle(pass);
}

// Whether the pass may end here without being told: it has ended on all whom this worker would have to tell. The one
// that called backward needs not be told, and in SMART mode it tells all others itself.
bool PassNetwork::nobodyIsBehind(int64_t passId) {
  if (context_->graph->mode() == AutogradMode::kSmart) return true;
  EndedRanks knowing = endedRanks();
  knowing.push_back(rankOfId(passId));
  return toTell(worker_, *context_, knowing).empty();
}

void PassNetwork::endAndAnswer(Pass& pass, Promise<EndedRanks> engagedBy) {
  Status status = pass.status();
  // A callback may wait for callbacks on other workers. They hear of the end after this answer only.
  if (status.ok() && pass.passId() != ownPass_ && pass.complete() && !pass.hasCallbacks() &&
      nobodyIsBehind(pass.passId())) {
    if (finishHere(worker_, context_, {idOf(pass), ""}, status)) ended({worker_.self().rank});
  }
  status.ok() ? engagedBy.set(endedRanks()) : engagedBy.fail(std::move(status));
}

void PassNetwork::ended(const EndedRanks& ranks) {
  MutexLock lock(mutex_);
  ended_.insert(ranks.begin(), ranks.end());
}

// Some answers may come only when their workers hear of the failure, which this worker is to report.
void PassNetwork::stopWaiting() {
  std::vector<std::pair<int, Future<EndedRanks>>> answers;
  {
    MutexLock lock(mutex_);
    answers.swap(answers_);  // once: what is cancelled may bring another thread, or this one, here again
  }
  for (auto& [rank, answer] : answers) answer.cancel();
}

Result<std::shared_ptr<Pass>> makePass(Worker& worker, const ContextPtr& context, PassOptions options,
                                       std::vector<Root> roots) {
  auto network = std::make_shared<PassNetwork>(worker, context);
  LeafSlots& slots = interceptorOf(worker).contexts().slots();
  return Pass::create(context->graph, std::move(network), slots, std::move(options), std::move(roots));
}

}  // namespace treadle::autograd
