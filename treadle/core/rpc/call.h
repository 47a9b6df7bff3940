#pragma once
// A request while its callee works on it: `Call` is what a handler may ask to be given, `Responder` what answers. Both
// are handles of one IncomingCall, which lives until it is answered. Any thread may answer, once.

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

// What the engine knows of one request that came in. Held by the engine's table until it is answered, and by
// whoever may still answer it.
// Belongs to the engine; fields are set on the reading thread before the handler starts.
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
  size_t bytes = 0;           // that it holds of its caller's credits here
  // What came, until the handler takes it: kept here, so that the task that runs it is small.
  link::Message message;
  size_t valuesAt = 0;             // where in its payload the arguments begin
  std::vector<HandlePtr> handles;  // the references among them
  Cancellation cancellation;
  std::atomic<bool> answered = false;
  bool givenUp = false;  // by its caller; guarded by the engine's lock
};

}  // namespace rpc

// The call that a handler serves. A handler whose first parameter is `Call&` is given it; the parameter is no part of
// the signature. The reference is good until the handler returns; a copy, for one that answers later by a Future, for
// as long as the worker.
class Call {
 public:
  explicit Call(std::shared_ptr<rpc::IncomingCall> incoming) : incoming_(std::move(incoming)) {}

  // The worker that this handler runs on. StateError when the engine is used without one.
  Worker& worker() const;
  WorkerInfo caller() const;
  // Whether the caller has given up: it cancelled, its time limit passed, or it is lost. Nobody interrupts a
  // handler: one that runs long looks here from time to time, and may then throw whatever it likes.
  bool cancelled() const;
  // When the caller gives up, on this machine's clock, later by the time that the request took to come.
  TimePoint deadline() const { return incoming_->deadline; }

  const std::shared_ptr<rpc::IncomingCall>& incoming() const { return incoming_; }

 private:
  std::shared_ptr<rpc::IncomingCall> incoming_;
};

namespace rpc {

class Responder {
 public:
  explicit Responder(std::shared_ptr<IncomingCall> call) : call_(std::move(call)) {}

  // Answers with what `encode` puts into the message. An exception of `encode` becomes the answer.
  void reply(UniqueFunction<void(Encoder&)> encode) const;
  // The value stays here, under the reference that the caller asked for.
  void keep(OwnedValue value) const;
  void fail(Status why) const;
  // The worker's pool, for an answer that comes later: it may have to wait for a slow peer, and not every thread may.
  // May be kept longer than the worker lives, and then drops what it is given; the rest of this may not.
  io::ContinueOn pool() const;
  // For a handler that goes on later: runs its stretches in the pool, where what is current on a handler's thread is
  // current again.
  io::TaskRun::Post stretches() const;

  bool wantsReference() const { return call_->result.has_value(); }
  IncomingCall& call() const { return *call_; }

 private:
  std::shared_ptr<IncomingCall> call_;
};

}  // namespace rpc
}  // namespace treadle
