#pragma once
// The node that stands for a message which this worker received: the grad_fn of its tensors. A pass takes the gradients
// of those tensors from here and sends them to where the message came from. It has no edges, so it keeps nothing alive;
// the received tensors own it, and what was made of them. When it goes its sender is told (received_messages.h).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <typeinfo>
#include <vector>

#include "treadle/tensor/autograd/gradient_sink.h"
#include "treadle/tensor/autograd/lineage.h"
#include "treadle/tensor/autograd/received_messages.h"
#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::autograd {

class RecvNode final : public Node {
 public:
  // `lineage`: of the message, itself among it; null in FAST mode. `among`: where it is removed when it goes.
  RecvNode(int64_t contextId, MessageInfo message, LineagePtr lineage, std::shared_ptr<ReceivedMessages> among);
  ~RecvNode() override;

  // Makes this node the grad_fn of `tensors`: the i-th becomes output i. They must be plain tensors without
  // history, of a floating or complex type. To be called once, right after construction.
  static Status attach(const NodeRef<RecvNode>& node, std::vector<at::Tensor>& tensors);

  // Null for a node of another kind. Cheaper than dynamic_cast, for every node of a graph is asked.
  static const RecvNode* from(const Node& node) {
    return typeid(node) == typeid(RecvNode) ? static_cast<const RecvNode*>(&node) : nullptr;
  }

  const MessageInfo& message() const { return message_; }
  const LineagePtr& lineage() const { return lineage_; }

  // FailedPrecondition naming both when this is not its context.
  Status checkContext(int64_t contextId) const;

  std::string name() const override;

 protected:
  // Throws StateError: a pass of ours does not run it, and nothing else knows where the gradients must go.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

 private:
  const int64_t contextId_;
  const MessageInfo message_;
  const LineagePtr lineage_;
  const std::shared_ptr<ReceivedMessages> among_;
};

}  // namespace treadle::autograd
