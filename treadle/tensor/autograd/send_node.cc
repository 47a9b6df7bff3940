#include "treadle/tensor/autograd/send_node.h"

namespace treadle::autograd {

SendNode::SendNode(MessageInfo message, std::vector<int64_t> tensorIndexes, torch::autograd::edge_list edges)
    : Node(std::move(edges)), message_(std::move(message)), tensorIndexes_(std::move(tensorIndexes)) {
  // Nothing points at this node, so its inputs need no shapes: what arrives is checked against the nodes
  // behind it.
  for (size_t i = 0; i < tensorIndexes_.size(); ++i) add_input_metadata(Node::undefined_input());
}

// In messages only; nobody parses it.
std::string SendNode::name() const {
  return "TreadleSend(message " + std::to_string(message_.messageId) + " to worker " +
         std::to_string(message_.peerRank) + ")";
}

torch::autograd::variable_list SendNode::apply(torch::autograd::variable_list&& gradients) {
  return std::move(gradients);
}

}  // namespace treadle::autograd
