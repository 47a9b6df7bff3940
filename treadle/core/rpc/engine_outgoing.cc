// The caller's side of the engine.
//
// Budget of a blocking call without arguments or result, by rank, without an interceptor:
//   locks (uncontended)   the member's connection, the table (insert, take), the send queue twice, the interest in
//                         reading, the future twice: eight
//   allocations           the future, the table's entry, the frame, the list of its parts, the answer's payload: five,
//                         and one each for names and signatures of over 15 characters; the payload's memory is used
//                         again (wire/writer.h)
//   system calls          sendmsg, and the recvmsg (TCP: recv) that brings the answer; another one and sched_yield for
//                         each look before that, poll if it sleeps
//
// With many in flight three allocations and six locks, and up to a hundred share a sendmsg. `make bench-budget` counts
// them.
//
// Besides, a compare-and-swap and a subtraction on the callee's credits.
//
// A timer is set only when no earlier one stands: with equal time limits, once per limit rather than once per call.

#include "treadle/core/rpc/engine.h"

namespace treadle::rpc {
namespace {

uint64_t microsecondsUntil(TimePoint deadline) {
  if (deadline == kNever) return UINT64_MAX;
  auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now()).count();
  return left > 0 ? static_cast<uint64_t>(left) : 0;
}

link::SendMode modeOf(const OutgoingCall& call) {
  if (call.caller != nullptr) return link::SendMode::kStay;
  return call.options.lazy ? link::SendMode::kLazy : link::SendMode::kCapture;
}

Status tooLate(Duration timeout) {
  return deadlineExceeded("it did not answer within " + toText(timeout) +
                          " (CallOptions::timeout and JoinOptions::rpcTimeout say how long it may take)");
}

std::vector<ForkEntry> forkAll(Encoder& encoder) {
  std::vector<ForkEntry> entries;
  for (const HandlePtr& handle : encoder.forked())
    entries.push_back(encoder.references().fork(handle, encoder.toRank()));
  return entries;
}

void check(const OutgoingCall& call) {
  if (call.function.size() > kMaxNameBytes)
    raise(invalidArgument("no function has a name of " + std::to_string(call.function.size()) + " bytes"));
  if (call.options.priority < INT8_MIN || call.options.priority > INT8_MAX)
    raise(invalidArgument("a call's priority is from -128 to 127, not " + std::to_string(call.options.priority)));
  if (call.options.attempts != 1)
    raise(invalidArgument("CallOptions::attempts is for `call` of a function that both sides know: '" + call.function +
                          "' is called in another way"));
}

// Of the buffers of a request whose caller waits; null when the callee cannot read them where they are.
const link::MemoryOffer* offerOf(WaitingCaller& caller, const link::Connection& connection, Encoder& encoder) {
  caller.offer = connection.offer(encoder.buffers());
  if (caller.offer) caller.offer->keep(encoder.takeKept());
  return caller.offer.get();
}

}  // namespace

CallTicket Engine::send(OutgoingCall call) { return submit(std::move(call), std::nullopt); }

HandlePtr Engine::sendForReference(OutgoingCall call) {
  HandlePtr handle = references_->expect(call.rank);
  call.complete = [references = references_, entry = handle->entry()](Result<Decoder*> result) {
    references->confirm(entry, result.ok() ? Status() : result.status());
  };
  try {
    submit(std::move(call), handle->entry());
  } catch (...) {
    // Nothing was asked for: the reference is settled, or its handle's end would be waited for in vain.
    references_->confirm(handle->entry(), cancelled("the request for this value was not sent"));
    throw;
  }
  return handle;
}

MessageHeader Engine::headerOf(const OutgoingCall& call, const std::optional<ForkEntry>& result) {
  MessageHeader header;
  header.type = call.fetch ? MessageType::kFetch : MessageType::kRequest;
  if (call.target) header.target = call.target->entry().ref;
  header.function = call.function;
  header.signature = signatureHash(call.signature);
  header.result = result;
  header.priority = static_cast<int8_t>(call.options.priority);
  return header;
}

// Before anything is sent: where the caller could not wait for the answer, the function is not to run.
Result<std::shared_ptr<link::Connection>> Engine::connectionFor(const OutgoingCall& call) const {
  if (call.caller != nullptr) TREADLE_RETURN_IF_ERROR(call.caller->permit.status());
  return membership_.outgoing(call.rank);
}

// The order matters: the answer is counted as awaited and in the table before the request can leave, as the
// answer may be here before `send` returns.
CallTicket Engine::submit(OutgoingCall call, std::optional<ForkEntry> result) {
  check(call);
  if (call.target) throwIfError(references_->failureUnknownToOwner(*call.target));
  Duration timeout = call.options.timeout.value_or(options_.rpcTimeout);
  TimePoint deadline = deadlineAfter(timeout);
  auto connection = connectionFor(call);
  MessageHeader header = headerOf(call, result);
  Pending pending{call.rank,
                  std::move(call.function),
                  std::move(call.signature),
                  deadline,
                  nullptr,
                  std::move(call.target),
                  {},
                  std::move(call.complete),
                  timeout};
  if (!connection.ok()) {
    if (result) references_->notAsked(*result);
    const Status left = whetherHere();
    return pending.complete(told(pending, left.ok() ? connection.status() : left)), CallTicket{};
  }
  pending.connection = *connection;

  auto hook = interceptor_ ? interceptor_->onRequest(call.rank, header.function) : nullptr;
  Encoder encoder(*references_, call.rank, hook.get());
  if (call.encode) call.encode(encoder);
  if (hook) header.field = hook->field();
  // Forks and the table's entry are made only when nothing can throw any more.
  header.forks = forkAll(encoder);
  for (ReferredArgument& input : encoder.takeInputs()) {
    header.inputs.push_back({input.index, input.handle->entry().ref, input.handle->entry().owner});
    pending.inputs.push_back(std::move(input.handle));
  }
  wire::Writer payload;
  payload.reserve(kUsualHeaderBytes + encoder.writer().size());
  encodeHeader(payload, header);
  payload.raw(encoder.writer().bytes());
  pending.bytes = peer(call.rank).toPeer.costOf(payload.size(), encoder.buffers(), header.inputs.size());

  const link::MemoryOffer* offer = call.caller != nullptr ? offerOf(*call.caller, **connection, encoder) : nullptr;
  CallTicket ticket;
  Status sent = takeCredits(pending);
  if (sent.ok()) {
    (*connection)->awaitAnswer(call.caller != nullptr);
    ticket = {addPending(std::move(pending)), deadline, *connection};
    stampRequest(payload, ticket.id, microsecondsUntil(deadline));
    sent = (*connection)
               ->send(link::Subject::kRpc, payload.bytes(), encoder.buffers(), modeOf(call), deadline,
                      {offer, call.options.priority});
    if (!sent.ok()) notSent(call.rank);
  }
  if (sent.ok()) {
    // It may have waited for room for so long that it was given up: then the cancellation went before it, to nobody.
    if (Clock::now() >= deadline && !giveUp(ticket.id, tooLate(timeout))) sendCancel(**connection, ticket.id);
    return ticket;
  }
  references_->unfork(header.forks);
  if (result) references_->notAsked(*result);
  if (hook) hook->abandon();
  if (Status left = whetherHere(); !left.ok()) sent = left;
  if (!ticket.connection) return pending.complete(told(pending, sent)), ticket;
  finishPending(ticket.id, sent);
  tellIfIdle();  // also if the call was given up before: one fewer counts as sent now
  return ticket;
}

// What is waited for are answers, so somebody has to read them, whoever of their callers waits for one. A call without
// a time limit waits no longer than others do: handlers that wait for each other's callers in a circle would do so for
// ever.
Status Engine::takeCredits(const Pending& pending) {
  Credits& credits = peer(pending.rank).toPeer;
  if (credits.tryTake(pending.bytes)) return {};
  TimePoint deadline = pending.deadline == kNever ? deadlineAfter(options_.rpcTimeout) : pending.deadline;
  pending.connection->awaitAnswer(false);
  Status taken = credits.take(pending.bytes, deadline);
  pending.connection->answerArrived();
  return taken;
}

// The callee will never say that it has handled it, and the shutdown compares the two numbers.
void Engine::notSent(int rank) {
  MutexLock lock(mutex_);
  PeerCalls& callee = peer(rank);
  --sent_;
  --callee.sent;
  if (callee.lost) --sentToLost_;
}

uint64_t Engine::addPending(Pending pending) {
  MutexLock lock(mutex_);
  uint64_t id = ++lastId_;
  PeerCalls& callee = peer(pending.rank);
  ++sent_;
  ++callee.sent;
  if (callee.lost) ++sentToLost_;
  const TimePoint due = pending.deadline;
  pending_.emplace(id, std::move(pending));
  if (due != kNever)
    deadlines_.add(due, id, pending_.size() - givenUp_,
                   [this](uint64_t one) TREADLE_UNCHECKED_LOCKS { return isWaitedFor(one); });
  scheduleExpiry(due);
  return id;
}

std::optional<Engine::Taken> Engine::takePending(uint64_t id, std::optional<int> from) {
  MutexLock lock(mutex_);
  auto found = pending_.find(id);
  if (found == pending_.end() || (from && found->second.rank != *from)) return std::nullopt;
  if (!found->second.complete) --givenUp_;
  auto entry = pending_.extract(found);
  return Taken{std::move(entry), idle()};
}

// The failure as the caller is told it: which function of which worker.
Status Engine::told(const Pending& pending, const Status& status, bool fromThere) const {
  WorkerInfo callee = membership_.info(pending.rank);
  std::string worker = status.worker().empty() ? callee.name : status.worker();
  bool otherSignature = status.code() == Code::kFailedPrecondition && status.message().starts_with(kOtherSignature);
  Status whole =
      otherSignature ? failedPrecondition(status.message() + ", and " + pending.signature + " here") : status;
  Status told = whole.withContext("'" + pending.function + "' on " + link::describe(callee))
                    .withWorker(std::move(worker))
                    .withFunction(pending.function);
  return fromThere ? std::move(told).comingThrough(callee.name) : told;
}

// Whoever takes the entry out of the table gives back what it held, and whoever takes `complete` completes the call:
// answer, deadline, cancellation and loss may meet here, and one of them wins.
void Engine::finishPending(uint64_t id, Result<Decoder*> result, std::optional<int> from) {
  std::optional<Taken> taken = takePending(id, from);
  if (!taken) return;
  Pending& pending = taken->entry.mapped();
  pending.connection->answerArrived();
  peer(pending.rank).toPeer.giveBack(pending.bytes);
  if (!pending.complete) return;
  if (result.ok()) {
    pending.complete(std::move(result));
  } else {
    pending.complete(told(pending, result.status(), from.has_value()));
  }
  tellIfIdle(taken->idle);
}

void Engine::cancel(uint64_t id) { giveUp(id, cancelled("the call was cancelled")); }

// The entry of a call that nobody waits for any more, as it was. In the table it goes on holding its credit until the
// callee has answered, as it does for a cancelled call too: so long the callee counts it as well.
std::optional<Engine::Pending> Engine::stopWaiting(uint64_t id) {
  MutexLock lock(mutex_);
  auto found = pending_.find(id);
  if (found == pending_.end() || !found->second.complete) return std::nullopt;
  Pending pending = std::move(found->second);
  found->second = {pending.rank, {}, {}, kNever, pending.connection, {}, {}, {}, pending.timeout, pending.bytes};
  ++givenUp_;
  return pending;
}

void Engine::sendCancel(link::Connection& connection, uint64_t id) {
  MessageHeader header;
  header.type = MessageType::kCancel;
  header.id = id;
  wire::Writer payload;
  encodeHeader(payload, header);
  // A failure means that the callee is lost, and with it what was to be cancelled.
  connection.send(link::Subject::kRpc, payload.bytes(), {}, link::SendMode::kUrgent, kNever).ignore();
}

// Ends it at the callee too.
bool Engine::giveUp(uint64_t id, const Status& why) {
  std::optional<Pending> pending = stopWaiting(id);
  if (!pending) return false;
  sendCancel(*pending->connection, id);
  pending->complete(told(*pending, why));
  tellIfIdle();
  pending->connection->wakeReader();
  return true;
}

// One timer serves all pending calls: it stands at the earliest deadline or before. One that fires at this moment looks
// at the deadlines itself, and sets the next one.
void Engine::scheduleExpiry(TimePoint due) {
  if (due == kNever || !closed_.ok() || (expiry_ && expiry_->first <= due)) return;
  if (expiry_ && !reactor_.cancel(expiry_->second)) return;
  expiry_.emplace(due, reactor_.at(due, [this] { expire(); }));
}

bool Engine::isWaitedFor(uint64_t id) {
  ++deadlineLooks_;
  auto found = pending_.find(id);
  return found != pending_.end() && found->second.complete;
}

void Engine::expire() {
  std::vector<std::pair<uint64_t, Duration>> late;
  {
    MutexLock lock(mutex_);
    expiry_.reset();
    const auto isPending = [this](uint64_t id) TREADLE_UNCHECKED_LOCKS { return isWaitedFor(id); };
    for (uint64_t id : deadlines_.takeDue(Clock::now(), isPending)) late.emplace_back(id, pending_.at(id).timeout);
    scheduleExpiry(deadlines_.next(isPending));
  }
  for (const auto& [id, timeout] : late) giveUp(id, tooLate(timeout));
}

void Engine::onAnswer(int rank, MessageHeader header, link::Message message, size_t valuesAt) {
  // Also of an answer that nobody waits for any more: its forks must be let go, or their owners keep them.
  std::vector<HandlePtr> handles = references_->adopt(rank, header.forks);
  if (!header.status.ok()) {
    membership_.noteReported(rank, header.status);
    return finishPending(header.id, std::move(header.status), rank);
  }
  std::shared_ptr<link::Arrival> arrival = std::move(message.arrival);
  if (!arrival) return completeWith(rank, header, message, valuesAt, std::move(handles));
  auto parts = std::make_shared<std::tuple<MessageHeader, link::Message, std::vector<HandlePtr>>>(
      std::move(header), std::move(message), std::move(handles));
  arrival->whenWhole([this, rank, parts, valuesAt](const Status& whole) {
    // Answers come on lanes or in shared memory: otherwise the callee is lost, which ends the call.
    auto& [header, message, handles] = *parts;
    if (whole.ok()) completeWith(rank, header, message, valuesAt, std::move(handles));
  });
}

void Engine::completeWith(int rank, const MessageHeader& header, link::Message& message, size_t valuesAt,
                          std::vector<HandlePtr> handles) {
  try {
    std::shared_ptr<IncomingHook> hook;
    if (interceptor_ && !header.field.empty()) hook = interceptor_->onArrival(rank, header.field);
    Decoder decoder(*references_, std::move(message.payload), valuesAt, std::move(message.buffers), std::move(handles),
                    std::move(hook));
    finishPending(header.id, &decoder, rank);
  } catch (...) {
    finishPending(header.id, statusOfCurrentException("the answer's header"), rank);
  }
}

}  // namespace treadle::rpc
