#include "treadle/core/rpc/engine.h"

#include "treadle/core/base/log.h"

namespace treadle::rpc {
namespace {

// Links lose nothing while their worker lives: this is for what a hook or a proxy makes of them.
constexpr Duration kResendEvery = std::chrono::seconds(1);

}  // namespace

std::shared_ptr<Engine> Engine::make(cluster::Membership& membership, io::Reactor& reactor, io::Executor& executor,
                                     Functions functions, std::unique_ptr<Interceptor> interceptor,
                                     const EngineOptions& options, Worker* worker) {
  auto engine = std::make_shared<Engine>(membership, reactor, executor, std::move(functions), std::move(interceptor),
                                         options, worker);
  engine->references_->setEngine(engine);
  return engine;
}

Engine::Engine(cluster::Membership& membership, io::Reactor& reactor, io::Executor& executor, Functions functions,
               std::unique_ptr<Interceptor> interceptor, const EngineOptions& options, Worker* worker)
    : membership_(membership),
      reactor_(reactor),
      executor_(executor),
      functions_(std::move(functions)),
      interceptor_(std::move(interceptor)),
      options_(options),
      worker_(worker),
      references_(std::make_shared<References>(
          membership.self().rank,
          [this](int rank, RefNotice notice, const ForkEntry& entry) { sendNotice(rank, notice, entry); })) {
  for (int rank = 0; rank < membership.worldSize(); ++rank) {
    toPeers_.emplace_back(options.unansweredLimitBytes);
    fromPeers_.emplace_back(options.unansweredLimitBytes);
  }
  if (interceptor_) executor_.setAfterTask([shared = interceptor_] { shared->afterTask(); });
}

void Engine::sendNotice(int rank, RefNotice notice, const ForkEntry& entry) {
  if (notice == RefNotice::kForkDeleted) resendLater();
  MessageHeader header;
  header.type = MessageType::kNotice;
  header.notice = notice;
  header.fork = entry;
  wire::Writer payload;
  encodeHeader(payload, header);
  auto mode = notice == RefNotice::kDeletionKnown ? link::SendMode::kLazy : link::SendMode::kUrgent;
  // A failure means that the peer is lost, and its forks and values with it.
  membership_.send(rank, link::Subject::kRpc, payload.bytes(), {}, mode, kNever).ignore();
}

// Stands as long as a deletion is not acknowledged, which a peer's next message does as a rule.
void Engine::resendLater() {
  if (resending_.exchange(true)) return;
  MutexLock lock(mutex_);
  if (!closed_.ok()) return;
  resendTimer_ = reactor_.at(deadlineAfter(kResendEvery), [this] {
    resending_.store(false);
    if (references_->resendDeletions()) resendLater();
  });
}

Engine::~Engine() { close(cancelled("this worker has left its job")); }

void Engine::onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) {
  wire::Reader reader(message.payload);
  Result<MessageHeader> header = parseHeader(reader, membership_.worldSize());
  if (!header.ok()) return from->close(header.status());
  size_t valuesAt = message.payload.size() - reader.left();
  switch (header->type) {
    case MessageType::kRequest:
    case MessageType::kFetch: return onRequest(rank, from, std::move(*header), std::move(message), valuesAt);
    case MessageType::kAnswer: return onAnswer(rank, std::move(*header), std::move(message), valuesAt);
    case MessageType::kCancel: return onCancel(rank, header->id);
    case MessageType::kNotice: return references_->onNotice(rank, header->notice, header->fork);
  }
}

// First the references, then the calls: who is told of a lost call may drop references at once.
void Engine::onLost(int rank, const Status& why) {
  std::vector<uint64_t> pending;
  std::vector<std::shared_ptr<IncomingCall>> incoming;
  {
    MutexLock lock(mutex_);
    lost_.insert(rank);
    for (const auto& [id, call] : pending_)
      if (call.rank == rank) pending.push_back(id);
    for (const auto& [key, call] : incoming_)
      if (key.first == rank) incoming.push_back(call);
  }
  references_->onLost(rank, why);
  for (const auto& call : incoming)
    if (!wantedByOthers(*call)) call->cancellation.request();
  dropInPool(std::move(incoming));
  if (interceptor_) interceptor_->onLost(rank);
  toPeers_[static_cast<size_t>(rank)].close(why);
  for (uint64_t id : pending) finishPending(id, why);
}

// Handlers that still run see themselves cancelled; their answers go to closed connections, which is where
// they end.
void Engine::close(const Status& why) {
  std::vector<uint64_t> pending;
  std::vector<std::shared_ptr<IncomingCall>> incoming;
  std::map<uint64_t, UniqueFunction<void()>> hooks;
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return;
    hooks.swap(endHooks_);
    closed_ = why;
    if (expiry_) reactor_.cancel(expiry_->second);
    reactor_.cancel(resendTimer_);
    for (const auto& [id, call] : pending_) pending.push_back(id);
    for (const auto& [key, call] : incoming_) incoming.push_back(call);
  }
  for (auto& [number, hook] : hooks) hook();
  for (Credits& credits : toPeers_) credits.close(why);
  for (uint64_t id : pending) finishPending(id, why);
  references_->clear(why);
  // Last: what waits for a value is told `why`.
  for (const auto& call : incoming) call->cancellation.request();
}

CallCounts Engine::counts() const {
  CallCounts counts;
  for (const Credits& credits : toPeers_) counts.unansweredBytes += credits.takenBytes();
  for (const Credits& credits : fromPeers_) counts.bytesToAnswer += credits.takenBytes();
  MutexLock lock(mutex_);
  counts.sent = sent_;
  counts.handled = handled_;
  counts.pending = pending_.size() - givenUp_;
  counts.running = incoming_.size();
  return counts;
}

Future<void> Engine::after(Duration delay) {
  Promise<void> promise(&executor_);
  Future<void> future = promise.future();
  // The promise goes with the timer if that is cancelled.
  io::Reactor::TimerId timer =
      reactor_.at(deadlineAfter(delay), [promise = std::move(promise)]() mutable { promise.set(); });
  uint64_t hook = atEnd([this, timer] { reactor_.cancel(timer); });
  future.share()->cancelHook = [weak = weak_from_this(), timer] {
    if (auto alive = weak.lock()) alive->reactor_.cancel(timer);
  };
  future.share()->onReady([weak = weak_from_this(), hook] {
    if (auto alive = weak.lock()) alive->forgetAtEnd(hook);
  });
  return future;
}

uint64_t Engine::atEnd(UniqueFunction<void()> hook) {
  {
    MutexLock lock(mutex_);
    if (closed_.ok()) {
      endHooks_.emplace(++lastHook_, std::move(hook));
      return lastHook_;
    }
  }
  hook();
  return 0;
}

void Engine::forgetAtEnd(uint64_t number) {
  MutexLock lock(mutex_);
  auto dropped = endHooks_.extract(number);
  lock.unlock();  // what it holds goes without it
}

Status Engine::whetherHere() const {
  MutexLock lock(mutex_);
  return closed_.ok() ? Status() : failedPrecondition("this worker has left its job");
}

void Engine::tellIfIdle() {
  MutexLock lock(mutex_);
  bool nothingLeft = idle();
  lock.unlock();
  tellIfIdle(nothingLeft);
}

// After every call. The hook does nothing before this worker's shutdown.
void Engine::tellIfIdle(bool nothingLeft) const {
  if (nothingLeft && idleHook_) idleHook_();
}

}  // namespace treadle::rpc
