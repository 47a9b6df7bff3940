#include "treadle/tensor/autograd/graph_executor.h"

#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <sstream>
#include <stdexcept>

#include "treadle/core/base/error.h"
#include "treadle/tensor/autograd/run_node.h"

namespace treadle::autograd {
namespace {

Status checkRoot(const Root& root, size_t index) {
  std::ostringstream message;
  message << "root " << index << " of backward ";
  if (!root.tensor.defined()) {
    message << "is an undefined tensor";
  } else if (!root.tensor.requires_grad()) {
    message << "does not require grad and has no grad_fn, so nothing can be differentiated";
  } else if (!root.gradient.defined() && root.tensor.numel() != 1) {
    message << "has shape " << root.tensor.sizes() << ": only a tensor of one element can do without a gradient";
  } else {
    return {};
  }
  return invalidArgument(message.str());
}

// The gradients of the roots, checked by libtorch against the shapes of what they are the gradients of.
Result<std::vector<at::Tensor>> rootGradients(const std::vector<Root>& roots, const torch::autograd::edge_list& edges) {
  std::vector<at::Tensor> gradients;
  for (const Root& root : roots) {
    gradients.push_back(root.gradient.defined() ? root.gradient : at::ones_like(root.tensor));
  }
  try {
    torch::autograd::validate_outputs(edges, gradients, [](const std::string& message) { return message; });
  } catch (const std::exception&) {
    return invalidArgument(failureOf("checking the gradients given to backward").message());
  }
  return gradients;
}

}  // namespace

Result<std::vector<ReadyNode>> GraphExecutor::prepare(const std::vector<NodeRef<SendNode>>& sends,
                                                      const std::vector<Root>& roots) {
  // Sends and roots are counted together before anything runs: a node behind both must wait for both, even if
  // the gradient of the send comes much later.
  for (const auto& send : sends) dependencies_.countEdgesOf(*send);
  TREADLE_RETURN_IF_ERROR(countRoots(roots));
  TREADLE_RETURN_IF_ERROR(checkEnds());
  torch::autograd::AutoGradMode noGrad(false);
  Result<std::vector<at::Tensor>> gradients = rootGradients(roots, rootEdges_);
  if (!gradients.ok()) return std::move(gradients).status();
  std::vector<ReadyNode> ready;
  for (size_t i = 0; i < rootEdges_.size(); ++i) {
    auto node = dependencies_.deliver(rootEdges_[i], std::move((*gradients)[i]));
    if (node) ready.push_back(std::move(*node));
  }
  return ready;
}

Status GraphExecutor::countRoots(const std::vector<Root>& roots) {
  for (size_t i = 0; i < roots.size(); ++i) {
    TREADLE_RETURN_IF_ERROR(checkRoot(roots[i], i));
    rootEdges_.push_back(torch::autograd::impl::gradient_edge(roots[i].tensor));
    dependencies_.countEdge(rootEdges_.back());
  }
  return {};
}

Status GraphExecutor::checkEnds() {
  // A tensor that was received in one context and used in another would send its gradients to a worker that
  // knows nothing of this pass.
  for (const RecvNode* receive : dependencies_.receives()) {
    if (receive->contextId() == contextId_) continue;
    return failedPrecondition(receive->name() + " belongs to autograd context " + std::to_string(receive->contextId()) +
                              " and cannot take part in a pass of context " + std::to_string(contextId_));
  }
  // Claimed before anything runs, so that a refused pass has changed nothing.
  for (torch::autograd::AccumulateGrad* leaf : dependencies_.leaves()) {
    if (hasGradHooks(*leaf)) TREADLE_RETURN_IF_ERROR(hookedLeaves_.claim(leaf->variable));
  }
  return {};
}

std::vector<int64_t> GraphExecutor::receivedIds() const {
  std::vector<int64_t> ids;
  for (const RecvNode* receive : dependencies_.receives()) ids.push_back(receive->message().messageId);
  return ids;
}

Status GraphExecutor::runNext() {
  // A node's failure is a status, not an exception: the engine around the loop must not see it.
  ReadyNode task = ready_.pop();
  NodePtr node = task.node;  // outlives the run, for its name
  try {
    run(std::move(task));
    return {};
  } catch (...) {
    return failureOf("autograd node " + node->name());
  }
}

void GraphExecutor::run(ReadyNode task) {
  Node& node = *task.node;
  if (node.num_outputs() == 0) {
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(&node)) {
      return runLeaf(*leaf, std::move(task.gradients));
    }
  }
  std::vector<at::Tensor> outputs = runNode(node, std::move(task.gradients), retainGraph_);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Edge& edge = node.next_edge(i);
    // An input that does not require a gradient.
    if (!edge.is_valid()) continue;
    auto ready = dependencies_.deliver(edge, std::move(outputs[i]));
    if (ready) ready_.push(std::move(*ready));
  }
}

void GraphExecutor::runLeaf(torch::autograd::AccumulateGrad& leaf, std::vector<at::Tensor> gradients) {
  if (hasGradHooks(leaf)) {
    // Hooks may have been added since the pass was prepared.
    throwIfError(hookedLeaves_.claim(leaf.variable));
    hookedLeaves_.swapIn(leaf.variable);
    runNode(leaf, std::move(gradients), retainGraph_);
    return;
  }
  // What AccumulateGrad::apply checks and does, but for where the gradient goes: into the context instead of
  // `.grad`.
  gradients = applyPreHooks(leaf, std::move(gradients));
  if (leaf.variable.grad_fn())
    throw std::logic_error("a leaf tensor was moved into the graph by an in-place operation");
  if (leaf.variable.requires_grad()) gradients_.add(leaf.variable, std::move(gradients.at(0)));
}

}  // namespace treadle::autograd
