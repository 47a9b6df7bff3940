#pragma once
// The node that stands for a message which left this worker. In the backward pass the gradients that come
// back over the network are its inputs, and go on to the graph behind the tensors that were sent: it is a root of the
// local graph. Owned by the ContextGraph of its context; run by passes of that context only.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <typeinfo>
#include <vector>

#include "treadle/tensor/autograd/gradient_sink.h"
#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::autograd {

class SendNode final : public Node {
 public:
  // `edges[i]` is the gradient edge of the message's tensor number `tensorIndexes[i]`.
  SendNode(MessageInfo message, std::vector<int64_t> tensorIndexes, torch::autograd::edge_list edges);

  // Null for a node of another kind.
  static const SendNode* from(const Node& node) {
    return typeid(node) == typeid(SendNode) ? static_cast<const SendNode*>(&node) : nullptr;
  }

  const MessageInfo& message() const { return message_; }

  // Which tensors of the message carry a gradient: the i-th gradient that comes back belongs to the i-th of
  // them.
  const std::vector<int64_t>& tensorIndexes() const { return tensorIndexes_; }

  std::string name() const override;

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

 private:
  MessageInfo message_;
  std::vector<int64_t> tensorIndexes_;
};

}  // namespace treadle::autograd
