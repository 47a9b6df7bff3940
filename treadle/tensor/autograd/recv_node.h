#pragma once
// The node that stands for a message which this worker received: the grad_fn of its tensors. In the backward
// pass it hands the gradients of those tensors to the pass's GradientSink, which sends them to where the
// message came from. It has no edges, so it keeps nothing alive; the received tensors own it, and their
// context keeps a list of them.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "treadle/tensor/autograd/gradient_sink.h"
#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::autograd {

class RecvNode final : public Node {
 public:
  RecvNode(int64_t contextId, MessageInfo message);

  // Makes this node the grad_fn of `tensors`: the i-th becomes output i. They must be plain tensors without
  // history, of a floating or complex type. To be called once, right after construction.
  static Status attach(const NodeRef<RecvNode>& node, std::vector<at::Tensor>& tensors);

  int64_t contextId() const { return contextId_; }
  const MessageInfo& message() const { return message_; }

  std::string name() const override;

 protected:
  // Throws StateError outside a pass of its own context: nothing else knows where the gradients must go.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

 private:
  int64_t contextId_;
  MessageInfo message_;
};

}  // namespace treadle::autograd
