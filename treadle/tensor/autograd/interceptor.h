#pragma once
// How distributed autograd joins in calls. On a thread with a current context and gradients on, every request carries
// the context's id, and when tensors in it require gradients, a send node is made here and a receive node at the
// callee; answers likewise. The header field of a message:
//
//   field := context:i64  mode:u8  count:u32  tensor-index:u32 *      (ascending; count 0: no tensor takes part, and
//            nothing follows)
//            message:i64  lineage                                     (lineage.h; in SMART mode)
//
// One per worker, owned by its engine. Its functions are called by whichever thread encodes or decodes a
// message; what is current is known by thread, so it needs no lock of its own.

#include "treadle/core/rpc/interceptor.h"
#include "treadle/tensor/autograd/contexts.h"
#include "treadle/tensor/bridge/tensor_hooks.h"
#include "treadle/tensor/bridge/thread_state.h"

namespace treadle {
class Worker;
}  // namespace treadle

namespace treadle::autograd {

class AutogradInterceptor final : public rpc::Interceptor {
 public:
  // As Contexts is made.
  explicit AutogradInterceptor(int rank, AutogradMode usual = AutogradMode::kSmart, ContextsNetwork network = {})
      : contexts_(rank, usual, std::move(network)) {}

  // Null outside of a context, and where gradients are off: calls then carry nothing of autograd and cost nothing.
  std::unique_ptr<rpc::OutgoingHook> onRequest(int rank, const std::string& function) override;
  // The answer belongs to the context of its request, whatever is current on the thread that answers: a
  // handler may answer later, from anywhere.
  std::unique_ptr<rpc::OutgoingHook> onReply(int rank, const std::string& function,
                                             rpc::IncomingHook* request) override;
  // DataError for a field that is none; NotFoundError when the context has ended: the call then fails with
  // that.
  std::shared_ptr<rpc::IncomingHook> onArrival(int rank, Bytes field) override;
  void afterTask() override;
  // Null outside of a context.
  std::unique_ptr<rpc::HandlerScope> onHandler(const std::string& function, rpc::IncomingHook* request) override;
  // Null on a thread with libtorch's default state and no current context.
  std::unique_ptr<rpc::ReadingScope> onReading() override;
  void onLost(int rank) override { contexts_.onLost(rank); }

  Contexts& contexts() { return contexts_; }

  // This thread's current one of this worker; null when there is none.
  ContextPtr current() const;

 private:
  Contexts contexts_;
  const bridge::CleanThreadState cleanState_;
};

// For its lifetime a context of a worker (null: none) is current on the thread that made this, while no later one is.
// They may end in any order and on any thread, as those of programs do that replace one AutogradContext by the next.
class CurrentContext {
 public:
  CurrentContext(const AutogradInterceptor& interceptor, ContextPtr context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  struct Entry;  // of a thread's list

 private:
  const AutogradInterceptor& interceptor_;
  std::shared_ptr<Entry> entry_;
};

// The interceptor of a worker. StateError when it was not joined with tensors.
AutogradInterceptor& interceptorOf(Worker& worker);

// What a worker has of a context. Null for a context that never came to it: it has no gradients there. Throws what
// Contexts::partIn fails with, and the failure of a pass of the context.
ContextPtr partIn(Worker& worker, int64_t contextId);

}  // namespace treadle::autograd
