#include "treadle/core/rpc/call.h"

#include "treadle/core/rpc/engine.h"

namespace treadle::rpc {

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
      try {
        auto scope = call->engine.enter(*call);
        stretch();
      } catch (...) {  // of the interceptor: the task ends here, for nothing goes on with it
        Responder(call).fail(statusOfCurrentException(call->function));
      }
    });
  };
}

}  // namespace treadle::rpc

namespace treadle {

Worker& CallContext::worker() const {
  if (incoming_->engine.worker() == nullptr) raise(failedPrecondition("this call is not served by a Worker"));
  return *incoming_->engine.worker();
}

WorkerInfo CallContext::caller() const { return incoming_->engine.membership().info(incoming_->rank); }

bool CallContext::cancelled() const {
  return incoming_->cancellation.requested() || Clock::now() > incoming_->deadline;
}

}  // namespace treadle
