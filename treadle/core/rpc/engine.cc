#include "treadle/core/rpc/engine.h"

#include "treadle/core/base/log.h"
#include "treadle/core/io/serving.h"

namespace treadle::rpc {
namespace {

// For what a full link refused, and for what a hook or a proxy makes of links, which lose nothing by themselves.
constexpr Duration kResendEvery = std::chrono::seconds(1);

// A deletion is told again until it is acknowledged, so both may be refused by a link that is full: what threads that
// poll or read tell of them stays bounded. On other threads a deletion is urgent, for no destructor waits for room.
link::SendMode modeOf(RefNotice notice) {
  if (notice == RefNotice::kDeletionKnown) return link::SendMode::kLazy;
  const bool mayBeRefused = notice == RefNotice::kForkDeleted && io::Serving::here();
  return mayBeRefused ? link::SendMode::kBatch : link::SendMode::kUrgent;
}

}  // namespace

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
          [this](int rank, RefNotice notice, const ForkEntry& entry) { sendNotice(rank, notice, entry); },
          options.referenceLimit)),
      peers_([limit = options.maxInFlightBytes](size_t) { return std::make_unique<PeerCalls>(limit); }) {
  references_->setEngine(*this);
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
  // Any failure but a refusal means that the peer is lost, and its forks and values with it.
  membership_.send(rank, link::Subject::kRpc, payload.bytes(), {}, modeOf(notice), kNever).ignore();
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

// Other threads may be in here through a reference.
Engine::~Engine() {
  close(cancelled("this worker has left its job"));
  references_->awaitUsers();
}

void Engine::onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) {
  wire::Reader reader(message.payload);
  Result<MessageHeader> header = parseHeader(reader, membership_.worldSize());
  if (!header.ok()) return from->close(header.status());
  size_t valuesAt = message.payload.size() - reader.left();
  Status given = references_->checkGiven(rank, header->forks, header->result ? &*header->result : nullptr);
  if (!given.ok()) return from->close(given);
  switch (header->type) {
    case MessageType::kRequest:
    case MessageType::kFetch: return onRequest(rank, from, *header, std::move(message), valuesAt);
    case MessageType::kAnswer: return onAnswer(rank, std::move(*header), std::move(message), valuesAt);
    case MessageType::kCancel: return onCancel(rank, header->id);
    case MessageType::kNotice:
      if (Status flood = references_->onNotice(rank, header->notice, header->fork); !flood.ok()) from->close(flood);
      // A worker that leaves waits for nobody to hold its values any more.
      if (header->notice == RefNotice::kForkDeleted) tellIfIdle();
  }
}

// First the references, then the calls: who is told of a lost call may drop references at once.
void Engine::onLost(int rank, const Status& why) {
  std::vector<uint64_t> pending;
  std::vector<std::shared_ptr<IncomingCall>> incoming;
  {
    MutexLock lock(mutex_);
    PeerCalls& lost = peer(rank);
    lost.lost = true;
    sentToLost_ += lost.sent;
    handledOfLost_ += lost.handled;
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
  peer(rank).toPeer.close(why);
  for (uint64_t id : pending) finishPending(id, why);
  tellIfIdle();
}

// Handlers that still run see themselves cancelled. Their answers are not sent (stopAnswering).
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
  peers_.forEach([&](PeerCalls& peer) { peer.toPeer.close(why); });
  for (uint64_t id : pending) finishPending(id, why);
  references_->clear(why);
  // Last: what waits for a value is told `why`.
  for (const auto& call : incoming) call->cancellation.request();
}

Future<void> Engine::after(Duration delay) {
  Promise<void> promise(&executor_);
  Future<void> future = promise.future();
  // The promise goes with the timer if that is cancelled.
  io::Reactor::TimerId timer =
      reactor_.at(deadlineAfter(delay), [promise = std::move(promise)]() mutable { promise.set(); });
  sharedStateOf(future)->cancelHook = [references = references_, timer] {
    if (auto alive = references->engine()) alive->reactor_.cancel(timer);
  };
  atEndUnless(*sharedStateOf(future), [this, timer] { reactor_.cancel(timer); });
  return future;
}

void Engine::atEndUnless(io::FutureCore& ready, UniqueFunction<void()> hook) {
  MutexLock lock(mutex_);
  if (!closed_.ok()) {
    lock.unlock();
    return hook();
  }
  const uint64_t number = ++lastHook_;
  endHooks_.emplace(number, std::move(hook));
  lock.unlock();
  ready.onReady([references = references_, number] {
    if (auto alive = references->engine()) alive->forgetAtEnd(number);
  });
}

void Engine::forgetAtEnd(uint64_t number) {
  MutexLock lock(mutex_);
  auto dropped = endHooks_.extract(number);
  lock.unlock();  // what it holds goes without it
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
