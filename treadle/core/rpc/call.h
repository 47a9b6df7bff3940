#pragma once
// A request while its callee works on it. A handler may take a `CallContext` to inspect the request; a `Responder`
// answers it. Both are handles of one IncomingCall, which lives until it is answered. Any thread may answer, once.

#include <atomic>
#include <memory>

#include "treadle/core/base/clock.h"
#include "treadle/core/io/task_run.h"
#include "treadle/core/link/connection.h"
#include "treadle/core/rpc/cancellation.h"
#include "treadle/core/rpc/inputs.h"

namespace treadle {

class Worker;

namespace rpc {

class Engine;

// The engine's record of one incoming request. The engine's table holds it until it is answered; so does every handle
// that may still answer it. The reading thread sets the fields before the handler starts.
struct IncomingCall {
  IncomingCall(Engine& owner, int callerRank, uint64_t callId, std::shared_ptr<link::Connection> from)
      : engine(owner), rank(callerRank), id(callId), connection(std::move(from)) {}

  Engine& engine;
  const int rank;
  const uint64_t id;
  const std::shared_ptr<link::Connection> connection;
  TimePoint deadline = kNever;
  std::string function;
  int priority = 0;
  std::optional<ForkEntry> result;  // the caller wants a reference: the value stays here
  std::shared_ptr<IncomingHook> hook;
  OwnedValue target;          // for a member function
  std::vector<Input> inputs;  // arguments that came as references, by index
  size_t bytes = 0;           // its share of the caller's credits here
  // The received message, until the handler takes it. It is kept here so that the task that runs the handler is small.
  link::Message message;
  size_t valuesAt = 0;             // offset of the arguments in its payload
  std::vector<HandlePtr> handles;  // references among the arguments
  Duration usualRunTime{};         // of the handler until now, zero if unknown; set by the thread that runs it
  Cancellation cancellation;
  std::atomic<bool> answered = false;
  bool givenUp = false;  // the caller gave up; guarded by the engine's lock
};

}  // namespace rpc

// The call that a handler serves. A handler whose first parameter is `CallContext&` receives it; this parameter is not
// part of the signature. The reference is valid until the handler returns. A handler that answers later by a Future
// keeps a copy, which is valid as long as the worker.
class CallContext {
 public:
  explicit CallContext(std::shared_ptr<rpc::IncomingCall> incoming) : incoming_(std::move(incoming)) {}

  // The worker that runs this handler. StateError when the engine is used without a worker.
  Worker& worker() const;
  WorkerInfo caller() const;
  // Whether the caller has given up: it cancelled, its time limit passed, or it is lost. Nothing interrupts a handler:
  // one that runs long checks this from time to time, and may then throw any exception.
  bool cancelled() const;
  // When the caller gives up, on this machine's clock; later than on the caller by the time that the request took to
  // arrive.
  TimePoint deadline() const { return incoming_->deadline; }

 private:
  std::shared_ptr<rpc::IncomingCall> incoming_;
};

namespace rpc {

class Responder {
 public:
  explicit Responder(std::shared_ptr<IncomingCall> call) : call_(std::move(call)) {}

  // Answers with the values that `encode` writes. An exception of `encode` becomes the answer.
  void reply(UniqueFunction<void(Encoder&)> encode) const;
  // Keeps the value here, under the reference that the caller asked for.
  void keep(OwnedValue value) const;
  void fail(Status why) const;
  // The worker's pool, for an answer that is sent later: sending may wait for a slow peer, and some threads must not
  // wait. May outlive the worker, and then drops its tasks; the other members of this class must not.
  io::ContinueOn pool() const;
  // For a handler that resumes later: runs each of its parts in the pool, under the same HandlerScope (interceptor.h)
  // as the handler itself.
  io::TaskRun::Post stretches() const;

  bool wantsReference() const { return call_->result.has_value(); }
  IncomingCall& call() const { return *call_; }

 private:
  std::shared_ptr<IncomingCall> call_;
};

}  // namespace rpc
}  // namespace treadle
