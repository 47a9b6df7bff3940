#pragma once
// One distributed forward and backward pass. While an AutogradContext lives it is current on the thread that
// made it: calls from this thread, and the calls that their handlers make in turn, become part of one graph
// across workers. `backward` runs that graph backwards on all of them; each worker keeps the gradients of its
// own leaves in the context, not in `.grad`, so that many contexts can use the same parameters at once.
// Destroying it releases it on all workers. To be destroyed on the thread that made it; `gradient` and
// `gradients` from any.

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/autograd/options.h"

namespace treadle {

namespace autograd {
struct ContextState;
class CurrentContext;
}  // namespace autograd

class AutogradContext {
 public:
  // Makes it current on this thread for this worker; one that was current before is again when this one goes.
  // Nothing is sent. StateError when `options` ask for what is not there, or `worker` was joined without
  // tensors. The worker must outlive the context.
  explicit AutogradContext(Worker& worker, AutogradOptions options = {});
  // Tells all workers that took part, without waiting for them. Gradients that are wanted longer must have
  // been taken out before. Throws nothing; with the job gone there is nobody to tell.
  ~AutogradContext();
  AutogradContext(const AutogradContext&) = delete;
  AutogradContext& operator=(const AutogradContext&) = delete;

  // Unique in the job.
  int64_t id() const;

  // Computes the gradients of the sum of `roots`, tensors of one element each that were computed within the
  // context, with respect to all leaves that they depend on, on every worker. Returns when all are ready.
  // Gradients add up over several calls; a second call over the same graph needs `retainGraph` in the first.
  //
  // FAST mode: every tensor that was sent within the context and requires a gradient must take part in the
  // roots, or StateError names the messages that did not. Also thrown: ArgumentError (a root without history,
  // or of more than one element), PeerLostError, and what a node threw, with the name of its worker. The
  // context is of no use after a failure. There is no time limit: only the life of the peers bounds it.
  // One call at a time, on a thread that is no handler of a call that peers wait for in the same pass.
  void backward(const std::vector<at::Tensor>& roots, BackwardOptions options = {});

  // Of a leaf on this worker, of its shape, dtype and strides; undefined when it got none. It keeps its
  // values when a later pass adds more.
  at::Tensor gradient(const at::Tensor& leaf) const;
  // (leaf, gradient) on this worker, in the order in which the passes reached the leaves.
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients() const;

 private:
  Worker& worker_;
  const std::shared_ptr<autograd::ContextState> context_;
  const std::unique_ptr<autograd::CurrentContext> current_;
};

}  // namespace treadle
