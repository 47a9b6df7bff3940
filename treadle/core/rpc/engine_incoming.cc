// The callee's side of the engine, and the handles that handlers and answers go through.
//
// Budget of an empty request on the pool thread that polls: epoll_wait, recvmsg (TCP: recv), sendmsg; eleven
// uncontended locks (three of the reactor, three of the executor, two of the table, the references, the send queue
// twice); eight small allocations (the call and its table entry, the request's payload, the message, the task, which is
// too large to lie within its queue, the answer's payload, frame and list of parts), and one for each eight tasks.
// Workers with tensors add a lock: libtorch's state of the thread is put away after the task. No wake-up: the thread
// that read the request runs it and answers. With many in flight six locks, as one poll brings many.

#include "treadle/core/base/log.h"
#include "treadle/core/rpc/engine.h"

namespace treadle::rpc {
namespace {

TimePoint deadlineIn(uint64_t microseconds) {
  if (microseconds > static_cast<uint64_t>(INT64_MAX / 1000)) return kNever;
  return deadlineAfter(std::chrono::microseconds(microseconds));
}

}  // namespace

// On the reading thread: what must be done before anything else comes from this peer.
void Engine::onRequest(int rank, const std::shared_ptr<link::Connection>& from, MessageHeader header,
                       link::Message message, size_t valuesAt) {
  std::vector<HandlePtr> handles = references_->adopt(rank, header.forks);
  if (header.result) references_->adoptRequested(rank, *header.result);
  auto call = std::make_shared<IncomingCall>(*this, rank, header.id, from);
  call->deadline = deadlineIn(header.timeLeftUs);
  call->function = header.function;
  call->priority = header.priority;
  call->result = header.result;
  bool twice = false;
  {
    MutexLock lock(mutex_);
    if (!closed_.ok() || lost_.contains(rank)) return;
    // Numbers grow as a rule, so that its place is at the end.
    auto entry = incoming_.emplace_hint(incoming_.end(), std::pair(rank, header.id), call);
    twice = entry->second != call;
  }
  if (twice) return from->close(dataLoss("it used the number of a call twice"));
  if (!accept(call, message, header.inputs.size())) return;
  try {
    if (interceptor_ && !header.field.empty()) call->hook = interceptor_->onArrival(rank, header.field);
  } catch (...) {
    return failWhenWhole(call, message.arrival, statusOfCurrentException("the request's header"));
  }
  begin(call, std::move(header), std::move(message), valuesAt, std::move(handles));
}

// Refuses what goes over the limit. That of a peer that counts as this worker does, with the same limit or a lower one,
// never does: what is unanswered here is unanswered there too, as its credit was taken there before the request left
// and is given back after the answer has come, which leaves after it is given back here. And of what sums up to its
// limit there, with at most one request cut down to seven eighths, no part sums up to more than this limit.
//
// Refusals are urgent and so on top of what is queued: a peer that goes on and does not read them is cut off.
bool Engine::accept(const std::shared_ptr<IncomingCall>& call, const link::Message& message, size_t inputs) {
  Credits& credits = fromPeers_[static_cast<size_t>(call->rank)];
  const size_t bytes = credits.costOf(message.payload.size(), message.buffers, inputs);
  if (credits.tryTake(bytes)) {
    call->bytes = bytes;
    return true;
  }
  Responder(call).fail(resourceExhausted(
      link::describe(membership_.self()) + " has requests of " + std::to_string(credits.takenBytes()) + " bytes of " +
      link::describe(membership_.info(call->rank)) + " to answer, and with this one of " + std::to_string(bytes) +
      " they would be over its limit of " + std::to_string(credits.limitBytes()) +
      "; give all workers the same JoinOptions::unansweredLimitBytes"));
  if (call->connection->queuedBytes() / 2 > options_.sendLimitBytes)
    call->connection->close(resourceExhausted("it sends requests over the limit and does not read what it is told"));
  return false;
}

// The answer gives credit for the next request: not while the bytes of this one still come.
void Engine::failWhenWhole(const std::shared_ptr<IncomingCall>& call, const std::shared_ptr<link::Arrival>& arrival,
                           const Status& why) {
  if (!arrival) return Responder(call).fail(why);
  arrival->whenWhole([call, why](const Status&) { Responder(call).fail(why); });
}

void Engine::begin(const std::shared_ptr<IncomingCall>& call, MessageHeader header, link::Message message,
                   size_t valuesAt, std::vector<HandlePtr> handles) {
  std::shared_ptr<link::Arrival> arrival = std::move(message.arrival);
  UniqueFunction<void()> task;
  if (header.type == MessageType::kFetch && header.target) {
    task = [this, call] { answerFetch(call); };
  } else {
    Result<const Functions::Entry*> entry = lookUp(header);
    if (!entry.ok()) return failWhenWhole(call, arrival, std::move(entry).status());
    task = [this, call, entry = *entry, message = std::move(message), valuesAt,
            handles = std::move(handles)]() mutable {
      run(call, *entry, std::move(message), valuesAt, std::move(handles));
    };
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
    OutgoingCall fetch;
    fetch.rank = entry.owner;
    fetch.function = kFetchValue;
    fetch.fetch = true;
    fetch.target = references_->borrow(entry.ref, entry.owner);
    fetch.options.priority = call.priority;
    fetch.options.timeout = call.deadline == kNever ? kWhilePeerLives : call.deadline - Clock::now();
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
  return interceptor_ ? interceptor_->onHandler(call.hook.get()) : nullptr;
}

void Engine::run(const std::shared_ptr<IncomingCall>& call, const Functions::Entry& entry, link::Message message,
                 size_t valuesAt, std::vector<HandlePtr> handles) {
  Responder responder(call);
  if (call->cancellation.requested()) return responder.fail(cancelled("the caller gave up before the function began"));
  // Another thread reads meanwhile, or the next request would wait for this one though there is a thread for it.
  io::Executor::expectRunTime(entry.runTime->typical());
  const TimePoint begin = Clock::now();
  try {
    auto scope = enter(*call);
    Decoder decoder(*references_, std::move(message.payload), valuesAt, std::move(message.buffers), std::move(handles),
                    call->hook);
    Call handle(call);
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
  auto scope = enter(*call);
  responder.reply([&](Encoder& encoder) {
    // The type's name goes first: a fetch has no signature that would have been compared.
    encoder.writer().string(demangled(value.type->name()));
    value.encode(encoder, value.value.get());
  });
}

// Encoding comes first and sending last, so that a result that cannot travel becomes a failure that can.
void Engine::sendAnswer(const std::shared_ptr<IncomingCall>& call, Status status,
                        UniqueFunction<void(Encoder&)> encode) {
  if (call->answered.exchange(true)) return;
  // Before the answer leaves: the caller may have the next request here before this thread goes on.
  fromPeers_[static_cast<size_t>(call->rank)].giveBack(call->bytes);
  MessageHeader header;
  header.type = MessageType::kAnswer;
  header.id = call->id;
  std::unique_ptr<OutgoingHook> hook;
  if (interceptor_ && status.ok()) hook = interceptor_->onReply(call->rank, call->function, call->hook.get());
  Encoder encoder(*references_, call->rank, hook.get());
  try {
    if (status.ok() && encode) encode(encoder);
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
    ++handled_;
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
    if (found == incoming_.end()) return;
    call = found->second;
  }
  if (!wantedByOthers(*call)) call->cancellation.request();
  dropInPool(std::move(call));
}

// The result of `remote` and `make` may have been passed on meanwhile.
bool Engine::wantedByOthers(const IncomingCall& call) const {
  return call.result && references_->wantedByOthers(call.result->ref, call.rank);
}

void Responder::reply(UniqueFunction<void(Encoder&)> encode) const {
  call_->engine.sendAnswer(call_, {}, std::move(encode));
}

void Responder::keep(OwnedValue value) const {
  if (!call_->result) return fail(failedPrecondition("what this function makes stays here; ask for a reference to it"));
  call_->engine.references().fulfil(call_->result->ref, std::move(value));
  call_->engine.sendAnswer(call_, {}, {});
}

void Responder::fail(Status why) const {
  if (why.worker().empty()) why = std::move(why).withWorker(call_->engine.membership().self().name);
  if (call_->result) call_->engine.references().fulfil(call_->result->ref, why);
  call_->engine.sendAnswer(call_, std::move(why), {});
}

io::ContinueOn Responder::pool() const { return &call_->engine.executor(); }

io::TaskRun::Post Responder::stretches() const {
  return [pool = pool(), call = call_](UniqueFunction<void()> stretch) {
    pool.post([call, stretch = std::move(stretch)]() mutable {
      auto scope = call->engine.enter(*call);
      stretch();
    });
  };
}

}  // namespace treadle::rpc

namespace treadle {

Worker& Call::worker() const {
  if (incoming_->engine.worker() == nullptr) raise(failedPrecondition("this call is not served by a Worker"));
  return *incoming_->engine.worker();
}

WorkerInfo Call::caller() const { return incoming_->engine.membership().info(incoming_->rank); }

bool Call::cancelled() const { return incoming_->cancellation.requested() || Clock::now() > incoming_->deadline; }

}  // namespace treadle
