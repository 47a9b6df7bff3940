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
  // StateError when `options` ask for what is not there, or `worker` was joined without tensors. The worker
  // must outlive the context.
  explicit AutogradContext(Worker& worker, AutogradOptions options = {});
  ~AutogradContext();
  AutogradContext(const AutogradContext&) = delete;
  AutogradContext& operator=(const AutogradContext&) = delete;

  // Unique in the job.
  int64_t id() const;

  // Computes the gradients of the sum of `roots`, tensors of one element each that were computed within the
  // context, with respect to all leaves that they depend on, on every worker. Returns when all are ready.
  // Gradients add up over several calls. Throws ArgumentError (a root without history), PeerLostError,
  // StateError (a sent tensor got no gradient), or what a node threw, with the name of its worker; the
  // context is of no use after that.
  void backward(const std::vector<at::Tensor>& roots, BackwardOptions options = {});

  // Of a leaf on this worker; undefined when it got none.
  at::Tensor gradient(const at::Tensor& leaf) const;
  // (leaf, gradient) on this worker.
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients() const;

 private:
  Worker& worker_;
  const std::shared_ptr<autograd::ContextState> context_;
  const std::unique_ptr<autograd::CurrentContext> current_;
};

}  // namespace treadle
