#include "treadle/tensor/autograd/recv_node.h"

#include <torch/csrc/autograd/variable.h>

#include <limits>

#include "treadle/core/base/error.h"

namespace treadle::autograd {
namespace {

// The engine's own highest priority, the one of AccumulateGrad: a gradient leaves as soon as it is known, so
// that the peer works on it while this worker goes on.
constexpr uint64_t kFirst = std::numeric_limits<uint64_t>::max();

// Which tensors need a gradient is said by the sender, so all of this may be false: it would corrupt a graph
// of ours.
Status checkAttachable(const at::Tensor& tensor, size_t index) {
  std::string which = "received tensor " + std::to_string(index);
  if (!tensor.defined()) return invalidArgument(which + " is undefined and cannot carry a gradient");
  if (!torch::autograd::isDifferentiableType(tensor.scalar_type())) {
    return invalidArgument(which + " is of type " + c10::toString(tensor.scalar_type()) +
                           ", which cannot carry a gradient");
  }
  if (tensor.requires_grad() || tensor.is_view() || tensor.is_inference()) {
    return invalidArgument(which + " has a history of its own (it requires grad, is a view or an inference tensor); " +
                           "only a plain tensor can stand for a received one");
  }
  return {};
}

}  // namespace

RecvNode::RecvNode(int64_t contextId, MessageInfo message, LineagePtr lineage, std::shared_ptr<ReceivedMessages> among)
    : Node(kFirst),
      contextId_(contextId),
      message_(std::move(message)),
      lineage_(std::move(lineage)),
      among_(std::move(among)) {}

RecvNode::~RecvNode() { among_->remove({message_.peerRank, message_.messageId}); }

Status RecvNode::attach(const NodeRef<RecvNode>& node, std::vector<at::Tensor>& tensors) {
  // All are checked before the first is changed: a refused message leaves its tensors as they were.
  for (size_t i = 0; i < tensors.size(); ++i) TREADLE_RETURN_IF_ERROR(checkAttachable(tensors[i], i));
  for (at::Tensor& tensor : tensors) {
    uint32_t output = node->add_input_metadata(tensor);
    torch::autograd::impl::set_gradient_edge(tensor, Edge(node, output));
  }
  return {};
}

std::string RecvNode::name() const {
  return "TreadleRecv(message " + std::to_string(message_.messageId) + " from worker " +
         std::to_string(message_.peerRank) + ")";
}

Status RecvNode::checkContext(int64_t contextId) const {
  if (contextId == contextId_) return {};
  return failedPrecondition(name() + " came in autograd context " + std::to_string(contextId_) +
                            " and cannot take part in autograd context " + std::to_string(contextId) +
                            ": gradients belong to one context, so detach what goes from one to another");
}

// Who calls Tensor::backward on something that came from another worker learns here what to call instead.
torch::autograd::variable_list RecvNode::apply(torch::autograd::variable_list&&) {
  raise(failedPrecondition("a local backward pass reached " + name() + ", whose gradients belong on worker " +
                           std::to_string(message_.peerRank) +
                           ": call AutogradContext::backward instead of Tensor::backward"));
}

}  // namespace treadle::autograd
