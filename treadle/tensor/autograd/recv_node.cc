#include "treadle/tensor/autograd/recv_node.h"

#include <torch/csrc/autograd/variable.h>

#include <limits>

#include "treadle/core/base/error.h"
#include "treadle/tensor/autograd/pass.h"

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

RecvNode::RecvNode(int64_t contextId, MessageInfo message)
    : Node(kFirst), contextId_(contextId), message_(std::move(message)) {}

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

torch::autograd::variable_list RecvNode::apply(torch::autograd::variable_list&& gradients) {
  // Who calls Tensor::backward on something that came from another worker learns here what to call instead.
  Pass* pass = Pass::current();
  if (pass == nullptr) {
    raise(failedPrecondition("a local backward pass reached " + name() + ", whose gradients belong on worker " +
                             std::to_string(message_.peerRank) +
                             ": call AutogradContext::backward instead of Tensor::backward"));
  }
  if (pass->contextId() != contextId_) {
    raise(failedPrecondition(name() + " belongs to autograd context " + std::to_string(contextId_) +
                             " and cannot take part in a pass of context " + std::to_string(pass->contextId())));
  }
  // Only handed over: the pass goes on while the peer works.
  throwIfError(pass->sink().sendGradients(*pass, message_, std::move(gradients)));
  return {};
}

}  // namespace treadle::autograd
