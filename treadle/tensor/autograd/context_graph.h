#pragma once
// One autograd context as one worker knows it: the messages that left and arrived in its forward pass, and
// the gradients its backward passes left here. The network half makes one per context and worker, records
// messages in it, and runs passes (pass.h) over it. Any thread may call it.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/tensor/autograd/gradient_sink.h"
#include "treadle/tensor/autograd/gradients.h"
#include "treadle/tensor/autograd/recv_node.h"
#include "treadle/tensor/autograd/send_node.h"
#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::autograd {

class ContextGraph {
 public:
  explicit ContextGraph(int64_t contextId) : contextId_(contextId) {}
  ContextGraph(const ContextGraph&) = delete;
  ContextGraph& operator=(const ContextGraph&) = delete;

  int64_t contextId() const { return contextId_; }

  // Records that a message with `tensors` leaves. Returns the indexes of those that need a gradient back,
  // which the receiver must be told; empty (and nothing recorded) when there are none or grad mode is off. To
  // be called on the thread that makes the call, before the tensors are let go. InvalidArgument for a message
  // id used before.
  Result<std::vector<int64_t>> addSend(MessageInfo message, std::span<const at::Tensor> tensors);

  // Records that a message arrived, and makes its receive node the grad_fn of `tensors`: the ones that the
  // sender named, in its order. InvalidArgument for a message id used before or a tensor that cannot carry a
  // gradient.
  Status addReceive(MessageInfo message, std::vector<at::Tensor>& tensors);

  // Null when there is none.
  NodeRef<SendNode> findSend(int64_t messageId) const;

  // By message id.
  std::vector<NodeRef<SendNode>> sends() const;
  std::vector<NodeRef<RecvNode>> receives() const;

  // What the passes left on this worker; see gradients.h.
  Gradients& gradients() { return gradients_; }
  const Gradients& gradients() const { return gradients_; }
  at::Tensor gradient(const at::Tensor& leaf) const { return gradients_.gradient(leaf); }

  // A pass that does not retain the graph consumed these messages: forget them, so that the memory goes and a
  // later forward and backward in the same context do not wait for them.
  void forget(std::span<const int64_t> sentIds, std::span<const int64_t> receivedIds);

 private:
  const int64_t contextId_;
  mutable std::mutex mutex_;
  std::map<int64_t, NodeRef<SendNode>> sends_;     // guarded by mutex_
  std::map<int64_t, NodeRef<RecvNode>> receives_;  // guarded by mutex_
  Gradients gradients_;
};

}  // namespace treadle::autograd
