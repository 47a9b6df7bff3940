#pragma once
// One distributed forward and backward pass. While an AutogradContext lives it is current on the thread that
// made it: calls from this thread, and the calls that their handlers make in turn, become part of one graph
// across workers. `backward` runs that graph backwards on all of them; each worker keeps the gradients of its
// own leaves in the context, not in `.grad`, so that many contexts can use the same parameters at once.
// Destroying it releases it on all workers. To be destroyed on the thread that made it; `gradient` and
// `gradients` from any.

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/autograd/options.h"
#include "treadle/tensor/bridge/tensor_codec.h"

namespace treadle {

enum class GraphFormat;
class AutogradContext;

namespace autograd {
struct ContextState;
class CurrentContext;
}  // namespace autograd

std::string describe(const AutogradContext& context, GraphFormat format, const std::vector<at::Tensor>& roots);

class AutogradContext {
 public:
  // Makes it current on this thread for this worker; one that was current before is again when this one goes.
  // Nothing is sent. StateError when `worker` was joined without tensors. The worker must outlive the context.
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
  // In FAST mode every tensor that was sent within the context and requires a gradient must take part in the
  // roots, or StateError names the messages that did not; in SMART mode the pass finds out which do. Also thrown:
  // ArgumentError (a root without history, or of more than one element), PeerLostError, and what a node threw, with the
  // name of its worker. The context is of no use after a failure. Without BackwardOptions::timeout only the life of
  // the peers bounds it; with it, TimeoutError names who had not done its part. One call at a time, on a thread that is
  // no handler of a call that peers wait for in the same pass.
  void backward(const std::vector<at::Tensor>& roots, BackwardOptions options = {});

  // The same from a tensor on any worker, made by a call within the context: its value is fetched, which makes it a
  // root of this worker's. Waits until it is made.
  void backward(const RRef<at::Tensor>& root, BackwardOptions options = {});

  // Of a leaf on this worker, of its shape, dtype and strides; undefined when it got none. It keeps its
  // values when a later pass adds more.
  at::Tensor gradient(const at::Tensor& leaf) const;
  // (leaf, gradient) on this worker, in the order in which the passes reached the leaves.
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients() const;

 private:
  friend std::string describe(const AutogradContext&, GraphFormat, const std::vector<at::Tensor>&);

  Worker& worker_;
  const std::shared_ptr<autograd::ContextState> context_;
  const std::unique_ptr<autograd::CurrentContext> current_;
};

}  // namespace treadle
