// The callee's side of the engine.
//
// Budget of an empty request on the pool thread that polls: epoll_wait, recvmsg (TCP: recv), sendmsg; ten
// uncontended locks (three of the reactor, three of the executor, two of the table, the send queue twice); five small
// allocations (the call and its table entry, the request's payload, the answer's frame and list of parts), and one for
// each eight tasks. What is written goes into memory that the thread's last message left (wire/writer.h), and the task
// lies within its queue. Workers with tensors add a lock where a task left libtorch's state of the thread another than
// it was. No wake-up: the thread that read the request runs it and answers. With many in flight five locks, as one poll
// brings many, and three allocations.

#include "treadle/core/base/log.h"
#include "treadle/core/rpc/engine.h"
#include "treadle/core/rpc/typed_call.h"

namespace treadle::rpc {
namespace {

TimePoint deadlineIn(uint64_t microseconds) {
  if (microseconds > static_cast<uint64_t>(INT64_MAX / 1000)) return kNever;
  return deadlineAfter(std::chrono::microseconds(microseconds));
}

}  // namespace

// On the reading thread: what must be done before anything else comes from this peer.
void Engine::onRequest(int rank, const std::shared_ptr<link::Connection>& from, const MessageHeader& header,
                       link::Message message, size_t valuesAt) {
  std::vector<HandlePtr> handles = references_->adopt(rank, header.forks);
  if (header.result) references_->adoptRequested(rank, *header.result);
  auto call = std::make_shared<IncomingCall>(*this, rank, header.id, from);
  call->deadline = deadlineIn(header.timeLeftUs);
  call->function = header.function;
  call->priority = header.priority;
  call->result = header.result;
  const std::shared_ptr<link::Arrival> arrival = std::move(message.arrival);
  call->message = std::move(message);
  call->valuesAt = valuesAt;
  call->handles = std::move(handles);
  bool twice = false, tooLate = false;
  {
    MutexLock lock(mutex_);
    tooLate = !closed_.ok() || peer(rank).lost;
    // Numbers grow as a rule, so that its place is at the end.
    if (!tooLate) twice = incoming_.emplace_hint(incoming_.end(), std::pair(rank, header.id), call)->second != call;
  }
  if (tooLate) return dropRequest(rank, header);
  if (twice) return from->close(dataLoss("it used the number of a call twice"));
  if (!accept(call, header.inputs.size())) return;
  if (header.result)
    if (Status room = references_->roomFor(rank, 0); !room.ok()) return failWhenWhole(call, arrival, room);
  try {
    if (interceptor_ && !header.field.empty()) call->hook = interceptor_->onArrival(rank, header.field);
  } catch (...) {
    return failWhenWhole(call, arrival, statusOfCurrentException("the request's header"));
  }
  begin(call, header, arrival);
}

// It is not run: whoever holds a reference to its result, passed on by who is lost, is not to wait for it.
void Engine::dropRequest(int rank, const MessageHeader& header) {
  if (!header.result) return;
  std::optional<cluster::Membership::Loss> loss = membership_.lossOf(rank);
  references_->fulfil(header.result->ref, loss ? loss->why : cancelled("this worker has left the job"));
}

// Refuses what goes over the limit. That of a peer that counts as this worker does, with the same limit or a lower one,
// never does: what is unanswered here is unanswered there too, as its credit was taken there before the request left
// and is given back after the answer has come, which leaves after it is given back here. And of what sums up to its
// limit there, with at most one request cut down to seven eighths, no part sums up to more than this limit.
//
// Refusals are urgent and so on top of what is queued: a peer that goes on and does not read them is cut off.
bool Engine::accept(const std::shared_ptr<IncomingCall>& call, size_t inputs) {
  Credits& credits = peer(call->rank).fromPeer;
  const size_t bytes = credits.costOf(call->message.payload.size(), call->message.buffers, inputs);
  if (credits.tryTake(bytes)) {
    call->bytes = bytes;
    return true;
  }
  Responder(call).fail(resourceExhausted(
      link::describe(membership_.self()) + " has requests of " + std::to_string(credits.takenBytes()) + " bytes of " +
      link::describe(membership_.info(call->rank)) + " to answer, and with this one of " + std::to_string(bytes) +
      " they would be over its limit of " + std::to_string(credits.limitBytes()) +
      "; give all workers the same JoinOptions::maxInFlightBytes"));
  if (call->connection->queuedBytes() / 2 > options_.maxQueuedBytes)
    call->connection->close(resourceExhausted("it sends requests over the limit and does not read what it is told"));
  return false;
}

// The answer gives credit for the next request: not while the bytes of this one still come.
void Engine::failWhenWhole(const std::shared_ptr<IncomingCall>& call, const std::shared_ptr<link::Arrival>& arrival,
                           const Status& why) {
  if (!arrival) return Responder(call).fail(why);
  // Here and not where the last byte comes, which may be on a thread that must not run the destructors of users.
  call->handles.clear();
  call->message = {};
  arrival->whenWhole([call, why](const Status&) { Responder(call).fail(why); });
}

void Engine::begin(const std::shared_ptr<IncomingCall>& call, const MessageHeader& header,
                   const std::shared_ptr<link::Arrival>& arrival) {
  UniqueFunction<void()> task;
  if (header.type == MessageType::kFetch && header.target) {
    task = [this, call] { answerFetch(call); };
  } else {
    Result<const Functions::Entry*> entry = lookUp(header);
    if (!entry.ok()) return failWhenWhole(call, arrival, std::move(entry).status());
    task = [this, call, entry = *entry] { run(call, *entry); };
  }
  if (!arrival && !header.target && header.inputs.empty()) return executor_.post(std::move(task));
  auto preparation = std::make_shared<Preparation>(
      call, [this, task = std::move(task)]() mutable { executor_.post(std::move(task)); });
  if (arrival) preparation->awaitBytes(*arrival);
  if (header.target)
    preparation->awaitValue(*references_, *header.target,
                            [call](OwnedValue value) { call->target = std::move(value); });
  awaitInputs(preparation, header.inputs);
  preparation->allAsked();
}

void Engine::awaitInputs(const std::shared_ptr<Preparation>& preparation, const std::vector<InputEntry>& entries) {
  std::vector<Input>& inputs = preparation->call().inputs;
  inputs.resize(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    inputs[i].index = entries[i].index;
    if (entries[i].owner != references_->self()) {
      fetchInput(preparation, inputs[i], entries[i]);
    } else {
      preparation->awaitValue(*references_, entries[i].ref,
                              [&input = inputs[i]](OwnedValue value) { input.value = std::move(value); });
    }
  }
}

// In the pool: it may have to wait for credits of the owner, which a thread that reads must not.
void Engine::fetchInput(const std::shared_ptr<Preparation>& preparation, Input& input, const InputEntry& entry) {
  preparation->awaitOther();
  executor_.post([this, preparation, &input, entry] {
    if (preparation->ended()) return;
    const IncomingCall& call = preparation->call();
    const Duration left = call.deadline == kNever ? kNoTimeout : call.deadline - Clock::now();
    OutgoingCall fetch = fetchCall(entry.owner, kFetchValue, references_->borrow(entry.ref, entry.owner),
                                   {.timeout = left, .priority = call.priority});
    fetch.complete = [preparation, &input](Result<Decoder*> answer) {
      if (answer.ok()) input.fetched = std::make_unique<Decoder>(std::move(**answer));
      preparation->settle(answer.status());
    };
    try {
      auto scope = enter(call);
      CallTicket ticket = send(std::move(fetch));
      if (ticket.connection) preparation->stopWith([this, id = ticket.id] { cancel(id); });
    } catch (...) {
      preparation->settle(statusOfCurrentException("the fetch of an argument"));
    }
  });
}

Result<const Functions::Entry*> Engine::lookUp(const MessageHeader& header) const {
  const Functions::Entry* entry = functions_.find(header.function);
  if (entry == nullptr || entry->invoke == nullptr)
    return notFound("worker '" + membership_.self().name + "' offers no function '" + header.function +
                    "'; it offers: " + functions_.offered());
  if (entry->hash() != header.signature) return failedPrecondition(kOtherSignature + entry->signature);
  return entry;
}

std::unique_ptr<HandlerScope> Engine::enter(const IncomingCall& call) {
  return interceptor_ ? interceptor_->onHandler(call.function, call.hook.get()) : nullptr;
}

void Engine::run(const std::shared_ptr<IncomingCall>& call, const Functions::Entry& entry) {
  Responder responder(call);
  // They go with this, whatever comes of it.
  link::Message message = std::move(call->message);
  std::vector<HandlePtr> handles = std::move(call->handles);
  if (call->cancellation.requested()) return responder.fail(cancelled("the caller gave up before the function began"));
  // Another thread reads meanwhile, or the next request would wait for this one though there is a thread for it.
  call->usualRunTime = entry.runTime->typical();
  io::Executor::expectRunTime(call->usualRunTime);
  const TimePoint begin = Clock::now();
  try {
    auto scope = enter(*call);
    Decoder decoder(*references_, std::move(message.payload), call->valuesAt, std::move(message.buffers),
                    std::move(handles), call->hook);
    CallContext handle(call);
    entry.invoke(handle, decoder, responder);
  } catch (...) {
    responder.fail(statusOfCurrentException(call->function));
  }
  entry.runTime->add(Clock::now() - begin);
}

void Engine::answerFetch(const std::shared_ptr<IncomingCall>& call) {
  Responder responder(call);
  const OwnedValue& value = call->target;
  if (call->function == kAwaitValue) return responder.reply({});
  if (value.encode == nullptr)
    return responder.fail(invalidArgument("a " + demangled(value.type->name()) +
                                          " does not travel; call its functions at its owner instead"));
  try {
    auto scope = enter(*call);
    responder.reply([&](Encoder& encoder) {
      // The type's name goes first: a fetch has no signature that would have been compared.
      encoder.writer().string(demangled(value.type->name()));
      value.encode(encoder, value.value.get());
    });
  } catch (...) {
    responder.fail(statusOfCurrentException(call->function));
  }
}

// Encoding comes first and sending last, so that a result that cannot travel becomes a failure that can.
void Engine::sendAnswer(const std::shared_ptr<IncomingCall>& call, Status status,
                        UniqueFunction<void(Encoder&)> encode) {
  if (call->answered.exchange(true)) return;
  // Before the answer leaves: the caller may have the next request here before this thread goes on.
  peer(call->rank).fromPeer.giveBack(call->bytes);
  if (!answering_.load()) return answered(*call);
  MessageHeader header;
  header.type = MessageType::kAnswer;
  header.id = call->id;
  std::unique_ptr<OutgoingHook> hook;
  try {
    if (interceptor_ && status.ok()) hook = interceptor_->onReply(call->rank, call->function, call->hook.get());
  } catch (...) {
    status = statusOfCurrentException(call->function);
  }
  Encoder encoder(*references_, call->rank, hook.get());
  try {
    if (status.ok() && encode) encode(encoder);
    if (!encoder.forked().empty()) throwIfError(references_->roomFor(call->rank, encoder.forked().size()));
    if (hook) header.field = hook->field();
  } catch (...) {
    // Nothing of a result that cannot travel goes out.
    if (hook) hook->abandon();
    hook.reset();
    return sendFailure(call, header, statusOfCurrentException(call->function));
  }
  if (!status.ok()) return sendFailure(call, header, std::move(status));
  for (const HandlePtr& handle : encoder.forked()) header.forks.push_back(references_->fork(handle, call->rank));
  wire::Writer payload;
  payload.reserve(kUsualHeaderBytes + encoder.writer().size());
  encodeHeader(payload, header);
  payload.raw(encoder.writer().bytes());
  auto mode = encoder.buffers().empty() ? link::SendMode::kCapture : link::SendMode::kStay;
  Status sent = call->connection->send(link::Subject::kRpc, payload.bytes(), encoder.buffers(), mode, call->deadline,
                                       {.priority = call->priority});
  if (!sent.ok()) {
    logDebug(membership_.self().name, "the answer of '" + call->function + "' was not sent: " + sent.message());
    references_->unfork(header.forks);
    if (hook) hook->abandon();
    // Too large, say: the caller hears why, if it can still hear.
    if (sent.code() != Code::kPeerLost) return sendFailure(call, header, sent);
  }
  answered(*call);
}

// Urgent: it is small, and it may come from a thread that reads.
void Engine::sendFailure(const std::shared_ptr<IncomingCall>& call, MessageHeader& header, Status status) {
  header.status = std::move(status);
  header.forks.clear();
  header.field.clear();
  wire::Writer payload;
  encodeHeader(payload, header);
  call->connection->send(link::Subject::kRpc, payload.bytes(), {}, link::SendMode::kUrgent, kNever).ignore();
  answered(*call);
}

void Engine::answered(IncomingCall& call) {
  bool nothingLeft;
  {
    MutexLock lock(mutex_);
    PeerCalls& caller = peer(call.rank);
    ++handled_;
    ++caller.handled;
    if (caller.lost) ++handledOfLost_;
    incoming_.erase({call.rank, call.id});
    nothingLeft = idle();
  }
  tellIfIdle(nothingLeft);
}

// Nothing is answered: the caller has completed the call already. The handler's own answer, if any, finds
// nobody.
void Engine::onCancel(int rank, uint64_t id) {
  std::shared_ptr<IncomingCall> call;
  {
    MutexLock lock(mutex_);
    auto found = incoming_.find({rank, id});
    if (found == incoming_.end() || std::exchange(found->second->givenUp, true)) return;
    call = found->second;
  }
  if (!wantedByOthers(*call)) call->cancellation.request();
  dropInPool(std::move(call));
}

// The result of `remote` and `make` may have been passed on meanwhile.
bool Engine::wantedByOthers(const IncomingCall& call) const {
  return call.result && references_->wantedByOthers(call.result->ref, call.rank);
}

}  // namespace treadle::rpc
