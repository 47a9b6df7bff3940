#pragma once
// One distributed forward and backward pass. While an AutogradContext lives, it is current on the thread that made it:
// calls from this thread, and the calls that their handlers make in turn, become part of one graph across workers.
// Calls under at::NoGradGuard do not: they are made as outside of any context, and their results require no gradients.
// `backward` runs that graph backwards on all of them. Each worker keeps the gradients of its own leaves in the
// context, not in `.grad`, so that many contexts can use the same parameters at once. Destroying the context releases
// it on all workers. Call `gradient` and `gradients` from any thread.

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
  // Becomes current on this thread for this worker, until its destructor has run, or the handler that makes it has
  // returned; of several the one that was made last is current. They may be destroyed in any order and on any thread;
  // what one keeps is freed when its own thread makes its next call or context. Sends nothing. StateError when `worker`
  // was joined without tensors. The worker must outlive the context.
  explicit AutogradContext(Worker& worker, AutogradOptions options = {});
  // Notifies all workers that took part, without waiting for them. Take out gradients that are needed longer before
  // this. Throws nothing; after the end of the job it notifies nobody.
  ~AutogradContext();
  AutogradContext(const AutogradContext&) = delete;
  AutogradContext& operator=(const AutogradContext&) = delete;

  // Unique in the job.
  int64_t id() const;

  // Computes the gradients of the sum of `roots` with respect to all leaves that they depend on, on every worker. Roots
  // are tensors of one element, computed within the context. Returns when all gradients are ready. Gradients add up
  // over several calls; a second call over the same graph needs `retainGraph` in the first.
  //
  // In FAST mode every tensor that was sent within the context and requires a gradient must take part in the roots;
  // otherwise StateError names the messages that did not. In SMART mode the pass finds out which take part. Also throws
  // ArgumentError (a root without history, or of more than one element), PeerLostError, and the exception of a node
  // with the name of its worker. After a failure the context has no use: another backward
  // and all calls that read its gradients throw that failure, on other workers as CancelledError. Without
  // BackwardOptions::timeout only the loss of a peer limits the pass; with it, TimeoutError names the workers that had
  // not done their part. One call at a time, StateError otherwise, and not in a handler whose answer a peer waits for
  // in the same pass.
  void backward(const std::vector<at::Tensor>& roots, BackwardOptions options = {});

  // The same from a tensor on any worker, made by a call within the context: its value is fetched and becomes a root of
  // this worker. Waits until it is made.
  void backward(const RRef<at::Tensor>& root, BackwardOptions options = {});

  // The gradient of a leaf on this worker, with the leaf's shape, dtype and strides; undefined when it got none. Later
  // passes do not change the returned tensor.
  at::Tensor gradient(const at::Tensor& leaf) const;
  // All pairs (leaf, gradient) on this worker, in the order in which the passes reached the leaves.
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients() const;

 private:
  friend std::string describe(const AutogradContext&, GraphFormat, const std::vector<at::Tensor>&);

  Worker& worker_;
  const std::shared_ptr<autograd::ContextState> context_;
  const std::unique_ptr<autograd::CurrentContext> current_;
};

// Gradients of this worker's leaves in a context that another worker began, and whose id it has sent. The first is
// undefined, and the second empty, where nothing of the context came to this worker. NotFoundError: this worker has
// heard that the context ended, or no worker of the job can have begun it. StateError: `worker` was joined without
// tensors. The failure of a pass of the context, if one has failed.
at::Tensor gradient(Worker& worker, int64_t contextId, const at::Tensor& leaf);
std::vector<std::pair<at::Tensor, at::Tensor>> gradients(Worker& worker, int64_t contextId);

}  // namespace treadle
