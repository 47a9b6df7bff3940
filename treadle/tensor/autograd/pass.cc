#include "treadle/tensor/autograd/pass.h"

#include <torch/csrc/autograd/graph_task.h>

#include <sstream>
#include <utility>

#include "treadle/core/io/executor.h"
#include "treadle/tensor/autograd/engine_loop.h"
#include "treadle/tensor/autograd/graph_executor.h"
#include "treadle/tensor/autograd/plain_backward.h"
#include "treadle/tensor/autograd/run_node.h"

namespace treadle::autograd {

// Says that this thread drains a pass. Passes nest when a node of one waits and its thread drains another.
struct Pass::Running {
  explicit Running(Pass* pass) : pass(pass), outer(innermost) { innermost = this; }
  ~Running() { innermost = outer; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  Pass* pass;
  Running* outer;
  int engineTask = -1;  // tells our own engine loop from a local backward that a node starts
  static thread_local Running* innermost;
};

thread_local Pass::Running* Pass::Running::innermost = nullptr;

// A node may call a plain backward() of its own, whose nodes run on this thread too but belong to another
// graph task: the task id tells them apart.
Pass* Pass::current() {
  Running* running = Running::innermost;
  if (running == nullptr || running->engineTask != torch::autograd::get_current_graph_task_id()) return nullptr;
  return running->pass;
}

bool Pass::isInNode() { return Running::innermost != nullptr && Running::innermost->engineTask != -1; }

std::optional<int64_t> Pass::contextInNode() {
  return isInNode() ? std::optional(Running::innermost->pass->graph_->contextId()) : std::nullopt;
}

Pass::Pass(Key, std::shared_ptr<ContextGraph> graph, std::shared_ptr<GradientSink> sink, LeafSlots& slots,
           PassOptions options)
    : graph_(std::move(graph)),
      sink_(std::move(sink)),
      options_(std::move(options)),
      executor_(std::make_unique<GraphExecutor>(graph_->contextId(), graph_->gradients(), slots, options_.retainGraph)),
      engine_(std::make_unique<EngineLoop>(options_.retainGraph)) {
  refusePlainBackwardInNodes();
}

// No lock is needed: whoever could call anything else would hold a pointer to this pass.
Pass::~Pass() {
  if (state_ != State::kOpen) return;
  fail(cancelled("the backward pass of autograd context " + std::to_string(contextId()) + " was given up"));
  end();
}

Result<std::shared_ptr<Pass>> Pass::create(std::shared_ptr<ContextGraph> graph, std::shared_ptr<GradientSink> sink,
                                           LeafSlots& slots, PassOptions options, std::vector<Root> roots) {
  auto pass = std::make_shared<Pass>(Key{}, std::move(graph), std::move(sink), slots, std::move(options));
  Status prepared = pass->prepare(roots);
  if (prepared.ok()) return pass;
  pass->state_ = State::kFinished;  // nothing was begun
  return prepared;
}

Result<std::shared_ptr<Pass>> Pass::create(std::shared_ptr<ContextGraph> graph, GradientSink& sink, LeafSlots& slots,
                                           PassOptions options, std::vector<Root> roots) {
  std::shared_ptr<GradientSink> notOwned(std::shared_ptr<void>(), &sink);
  return create(std::move(graph), std::move(notOwned), slots, std::move(options), std::move(roots));
}

Status Pass::prepare(const std::vector<Root>& roots) {
  std::vector<NodeRef<SendNode>> sends = takingPart();
  Result<std::vector<ReadyNode>> ready = executor_->prepare(sends, roots);
  if (!ready.ok()) return ready.status();
  incoming_ = std::move(ready).value();
  for (NodeRef<SendNode>& send : sends) {
    int64_t messageId = send->message().messageId;
    awaited_.emplace(messageId, std::move(send));
  }
  for (int64_t messageId : options_.sends.value_or(std::vector<int64_t>())) awaited_.try_emplace(messageId);
  sends_ = awaited_.size();
  return {};
}

// In FAST mode a snapshot: messages that leave during the pass (a handler at work elsewhere) belong to a later one. In
// SMART mode what takes part may be gone, see Note [Used up].
std::vector<NodeRef<SendNode>> Pass::takingPart() const {
  if (!options_.sends) return graph_->sends();
  std::vector<NodeRef<SendNode>> sends;
  for (int64_t messageId : *options_.sends)
    if (NodeRef<SendNode> send = graph_->findSend(messageId)) sends.push_back(std::move(send));
  return sends;
}

// Everything in here comes from a peer. With mutex_ held.
Status Pass::checkArrival(int64_t messageId, const std::vector<MaybeGradient>& gradients) const {
  if (!status_.ok()) return status_;
  std::string context = "autograd context " + std::to_string(contextId());
  if (state_ != State::kOpen) return failedPrecondition("the backward pass of " + context + " is over");
  auto found = awaited_.find(messageId);
  if (found == awaited_.end()) {
    return invalidArgument("gradients came for message " + std::to_string(messageId) + ", which this pass of " +
                           context + " never sent or already has gradients for");
  }
  if (!found->second && noneReached(gradients)) return {};
  if (!found->second)
    return failedPrecondition("message " + std::to_string(messageId) + " that " + sink_->nameOf(graph_->rank()) +
                              " sent in " + context +
                              " is needed by this backward pass and gone: an earlier pass went through it without "
                              "BackwardOptions::retainGraph");
  if (found->second->num_inputs() == gradients.size()) return {};
  return invalidArgument(std::to_string(gradients.size()) + " gradients came for message " + std::to_string(messageId) +
                         " of " + context + ", which needs " + std::to_string(found->second->num_inputs()));
}

Status Pass::addReady(int64_t messageId, std::vector<MaybeGradient> gradients) {
  std::lock_guard lock(mutex_);
  TREADLE_RETURN_IF_ERROR(checkArrival(messageId, gradients));
  // A second set of gradients for the same message is refused from here on.
  auto send = awaited_.extract(messageId);
  if (!send.mapped()) return {};
  if (graph_->mode() == AutogradMode::kFast || allReached(gradients)) spent_.push_back(messageId);
  incoming_.push_back({std::move(send.mapped()), std::move(gradients)});
  return {};
}

Status Pass::runUntilIdle() {
  {
    std::lock_guard lock(mutex_);
    // Whoever drains looks at incoming_ again before it stops, so nothing is left lying.
    if (draining_ || incoming_.empty() || !status_.ok()) return status_;
    draining_ = true;
  }
  drain();
  tellIdle();
  return status();
}

void Pass::drain() {
  Running running(this);
  do {
    try {
      engine_->run([&] {
        running.engineTask = torch::autograd::get_current_graph_task_id();
        runReady();
      });
    } catch (...) {
      // runReady() does not throw: this comes from what a hook queued for the end of the pass.
      fail(failureOf("a callback queued with the autograd engine"));
    }
    running.engineTask = -1;
  } while (!stopDraining());
}

// Inside the engine. What arrives meanwhile is taken in after each node, so that its order by sequence number
// holds.
void Pass::runReady() {
  while (takeIncoming()) {
    // The first failure stops the loop by takeIncoming().
    Status ran = executor_->runNext([this](const Node& node) { return madeFor(node); });
    if (ran.ok() && !executor_->receiveIsNext()) ran = sendOut();
    if (!ran.ok()) fail(std::move(ran));
  }
}

// The forward call that made a node. Of a node that no handler made, the call of the first message that depends on it.
// Empty where none does.
std::string Pass::madeFor(const Node& node) const {
  if (const std::optional<HandlerRun> run = graph_->handlerRuns().of(node))
    return " (made by '" + run->function + "' for " + sink_->nameOf(run->callerRank) + ")";
  for (const NodeRef<SendNode>& send : graph_->sends()) {
    if (!leadsTo(*send, node)) continue;
    const MessageInfo& message = send->message();
    return " (of '" + message.function + "', behind its message " + std::to_string(message.messageId) + " to " +
           sink_->nameOf(message.peerRank) + ")";
  }
  return {};
}

// Only handed over: the pass goes on while the peers work. A hook may have made a tensor that does not travel.
Status Pass::sendOut() {
  for (auto& [rank, messages] : executor_->takeOutgoing()) {
    try {
      TREADLE_RETURN_IF_ERROR(sink_->sendGradients(*this, rank, std::move(messages)));
    } catch (...) {
      return failureOf("sending gradients to " + sink_->nameOf(rank));
    }
  }
  return {};
}

bool Pass::takeIncoming() {
  std::lock_guard lock(mutex_);
  if (!status_.ok()) return false;
  for (ReadyNode& ready : incoming_) executor_->push(std::move(ready));
  incoming_.clear();
  return executor_->hasReady();
}

bool Pass::stopDraining() {
  std::lock_guard lock(mutex_);
  // The same lock as addReady(): either the new gradients are seen here, or their caller sees that nobody
  // drains.
  if (status_.ok() && !incoming_.empty()) return false;
  draining_ = false;
  changed_.notify_all();
  return true;
}

bool Pass::idleLocked() const { return !draining_ && (!status_.ok() || (incoming_.empty() && pending_ == 0)); }

bool Pass::idle() const {
  std::lock_guard lock(mutex_);
  return idleLocked();
}

bool Pass::complete() const {
  std::lock_guard lock(mutex_);
  return idleLocked() && status_.ok() && awaited_.empty();
}

Status Pass::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void Pass::fail(Status failure) {
  std::lock_guard lock(mutex_);
  if (status_.ok() && state_ != State::kFinished) status_ = std::move(failure);
}

// Without the lock while the sink is told: it takes its own and asks idle().
void Pass::tellIdle() {
  {
    std::lock_guard lock(mutex_);
    if (!idleLocked() || state_ != State::kOpen) return;
  }
  sink_->onIdle(*this);
}

Pass::Pending Pass::addPending() {
  std::lock_guard lock(mutex_);
  ++pending_;
  return Pending(shared_from_this());
}

void Pass::pendingDone() {
  {
    std::lock_guard lock(mutex_);
    --pending_;
  }
  tellIdle();
}

Pass::Pending& Pass::Pending::operator=(Pending&& other) noexcept {
  if (this != &other) {
    complete();
    pass_ = std::move(other.pass_);
  }
  return *this;
}

void Pass::Pending::complete() {
  if (std::shared_ptr<Pass> pass = std::exchange(pass_, nullptr)) pass->pendingDone();
}

void Pass::Pending::fail(Status failure) {
  if (pass_) pass_->fail(std::move(failure));
  complete();
}

void Pass::onFinish(UniqueFunction<void(const Status&)> callback) {
  std::lock_guard lock(mutex_);
  callbacks_.push_back(std::move(callback));
}

void Pass::onSuccess(UniqueFunction<void()> callback) {
  std::lock_guard lock(mutex_);
  successCallbacks_.push_back(std::move(callback));
}

std::vector<UniqueFunction<void()>> Pass::takeSuccessCallbacks() {
  std::lock_guard lock(mutex_);
  return std::exchange(successCallbacks_, {});
}

bool Pass::hasCallbacks() const {
  std::lock_guard lock(mutex_);
  return !callbacks_.empty();
}

Status Pass::finish() {
  for (Running* running = Running::innermost; running != nullptr; running = running->outer) {
    if (running->pass == this) return failedPrecondition("a node or hook of a backward pass cannot finish that pass");
  }
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return state_ != State::kFinishing; });
    if (state_ == State::kFinished) return status_;
    if (status_.ok() && !idleLocked()) {
      return failedPrecondition("the backward pass of autograd context " + std::to_string(contextId()) +
                                " is still at work on this worker and cannot be finished");
    }
    state_ = State::kFinishing;  // no arrivals any more
    if (draining_) {
      const io::Executor::Blocking blocking;  // also where it fails: the graph must not go under a node that runs
      changed_.wait(lock, [&] { return !draining_; });
    }
  }
  noteMissingGradients();
  end();
  return status();
}

// FAST mode's price: a send that took no part. Named by message, peer and function, because the user knows it
// by its call.
void Pass::noteMissingGradients() {
  std::map<int64_t, NodeRef<SendNode>> missing;
  {
    std::lock_guard lock(mutex_);
    if (!status_.ok()) return;
    missing = awaited_;
  }
  std::erase_if(missing, [](const auto& entry) { return entry.second == nullptr; });
  if (missing.empty() && executor_->waiting() > 0)
    return fail(internalError(std::to_string(executor_->waiting()) + " autograd nodes of context " +
                              std::to_string(contextId()) + " still wait, though all gradients have come"));
  if (missing.empty()) return;
  std::ostringstream text;
  text << missing.size() << " of " << sends_ << " messages that " << sink_->nameOf(graph_->rank())
       << " sent in autograd context " << contextId() << " never got a gradient, so " << executor_->waiting()
       << " local autograd nodes did not run:";
  constexpr size_t kNamed = 8;  // a model that is wired wrongly may miss thousands
  size_t named = 0;
  for (const auto& [messageId, send] : missing) {
    if (named++ == kNamed) break;
    text << " message " << messageId << " to " << sink_->nameOf(send->message().peerRank);
    if (!send->message().function.empty()) text << " (" << send->message().function << ")";
    text << " tensors " << at::IntArrayRef(send->tensorIndexes()) << ";";
  }
  if (missing.size() > kNamed) text << " and " << missing.size() - kNamed << " more;";
  if (graph_->mode() == AutogradMode::kFast)
    text << " in FAST mode every tensor that was sent and requires grad must take part in the loss: leave the others "
            "out, send them detached, or use AutogradMode::kSmart";
  fail(failedPrecondition(text.str()));
}

std::vector<UniqueFunction<void(const Status&)>> Pass::takeCallbacks() {
  std::lock_guard lock(mutex_);
  return std::exchange(callbacks_, {});
}

// Those that a callback registers run after all that had been registered before.
void Pass::runCallbacks() {
  for (auto callbacks = takeCallbacks(); !callbacks.empty(); callbacks = takeCallbacks())
    for (auto& callback : callbacks) {
      try {
        callback(status());
      } catch (...) {
        fail(failureOf("a callback at the end of the backward pass"));
      }
    }
}

void Pass::replaceGradient(const at::Tensor& leaf, at::Tensor gradient) {
  replaced_.emplace_back(leaf, std::move(gradient));
}

// After the callbacks, each of which may fail the pass: then the context keeps what it had. A hook may have left
// something else than a gradient in `.grad`.
void Pass::moveGradients() {
  try {
    if (status().ok()) {
      executor_->hookedLeaves().moveInto(graph_->gradients());
      for (auto& [leaf, gradient] : replaced_) graph_->gradients().replace(leaf, std::move(gradient));
    }
  } catch (...) {
    fail(failureOf("what hooks left as the gradients of parameters"));
  }
  replaced_.clear();
}

void Pass::end() {
  runCallbacks();
  moveGradients();
  executor_->hookedLeaves().restore();
  // What was reached in part alone stays, as another pass may go through the rest.
  if (!options_.retainGraph) {
    // In this order: with what was sent goes the graph behind it, in which there may be what came.
    graph_->received().spend(executor_->spentReceives());
    graph_->forget(spent_);
    graph_->clearAncestry();
  }
  std::vector<ReadyNode> unused;  // both freed after the lock is let go: graphs hang on them
  std::map<int64_t, NodeRef<SendNode>> unanswered;
  std::lock_guard lock(mutex_);
  unused.swap(incoming_);
  unanswered.swap(awaited_);
  state_ = State::kFinished;
  changed_.notify_all();
}

}  // namespace treadle::autograd
