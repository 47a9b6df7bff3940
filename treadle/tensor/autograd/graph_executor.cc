#include "treadle/tensor/autograd/graph_executor.h"

#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "treadle/core/base/error.h"
#include "treadle/tensor/autograd/node_parts.h"
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

constexpr size_t kMostBytesKept = size_t{64} << 20;  // for the later parts of nodes

std::vector<at::Tensor> orUndefined(std::vector<MaybeGradient> gradients) {
  std::vector<at::Tensor> all;
  all.reserve(gradients.size());
  for (MaybeGradient& gradient : gradients) all.push_back(std::move(gradient).value_or(at::Tensor()));
  return all;
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
  for (const RecvNode* receive : dependencies_.receives()) TREADLE_RETURN_IF_ERROR(receive->checkContext(contextId_));
  // Claimed before anything runs, so that a refused pass has changed nothing.
  for (torch::autograd::AccumulateGrad* leaf : dependencies_.leaves()) {
    if (hasGradHooks(*leaf)) TREADLE_RETURN_IF_ERROR(hookedLeaves_.claim(leaf->variable));
  }
  return {};
}

Status GraphExecutor::runNext(const std::function<std::string(const Node&)>& madeFor) {
  // A node's failure is a status, not an exception: the engine around the loop must not see it.
  ReadyNode task = ready_.pop();
  NodePtr node = task.node;  // outlives the run, for its name
  try {
    run(std::move(task));
    return {};
  } catch (...) {
    Status failure = failureOf("autograd node " + node->name() + madeFor(*node));
    // Where its forward ran, as libtorch tells it: in its log.
    if (torch::autograd::AnomalyMode::is_enabled()) node->metadata()->print_stack(node->name());
    return failure;
  }
}

void GraphExecutor::run(ReadyNode task) {
  Node& node = *task.node;
  if (const RecvNode* receive = RecvNode::from(node))
    return runReceive(node, receive->message(), std::move(task.gradients));
  if (const SendNode* send = SendNode::from(node)) return runSend(*send, std::move(task.gradients));
  if (noneReached(task.gradients)) {
    for (const Edge& edge : node.next_edges()) deliver(edge, std::nullopt);
    return;
  }
  if (node.num_outputs() == 0) {
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(&node))
      return runLeaf(*leaf, orUndefined(std::move(task.gradients)));
  }
  const std::vector<bool> edges = takePart(task);
  std::vector<at::Tensor> outputs;
  if (edges.empty()) {
    outputs = runNode(node, orUndefined(std::move(task.gradients)), retainGraph_);
  } else {
    const OnlyEdges only(node, edges);
    outputs = runNode(node, orUndefined(std::move(task.gradients)), retainGraph_ || task.edgesLeft.empty());
  }
  for (size_t i = 0; i < outputs.size(); ++i)
    if (edges.empty() || edges[i]) deliver(node.next_edge(i), std::move(outputs[i]));
}

std::vector<bool> GraphExecutor::takePart(ReadyNode& task) {
  if (!task.edgesLeft.empty()) {
    bytesKept_ -= task.bytesKept;
    return task.edgesLeft;
  }
  if (dependencies_.receives().empty()) return {};  // no other worker waits for anything
  std::optional<Parts> parts = partsOf(*task.node, task.gradients);
  if (!parts || bytesKept_ + parts->bytesKept > kMostBytesKept) return {};
  bytesKept_ += parts->bytesKept;
  ready_.push({task.node, task.gradients, std::move(parts->later), parts->bytesKept});
  return std::move(parts->now);
}

// An edge leads nowhere from an input that does not require a gradient.
void GraphExecutor::deliver(const Edge& edge, MaybeGradient gradient) {
  if (!edge.is_valid()) return;
  auto ready = dependencies_.deliver(edge, std::move(gradient));
  if (ready) ready_.push(std::move(*ready));
}

void GraphExecutor::runReceive(Node& node, const MessageInfo& message, std::vector<MaybeGradient> gradients) {
  if (!noneReached(gradients)) applyReceiveHooks(node, gradients);
  for (MaybeGradient& gradient : gradients)
    if (gradient && gradient->defined() && gradient->_is_zerotensor()) gradient = at::Tensor();
  if (allReached(gradients)) spentReceives_.emplace_back(message.peerRank, message.messageId);
  outgoing_[message.peerRank].push_back({message.messageId, std::move(gradients)});
}

// What a peer sent is checked here against the shapes of what it was sent.
void GraphExecutor::runSend(const SendNode& node, std::vector<MaybeGradient> gradients) {
  std::vector<at::Tensor> outputs = orUndefined(gradients);
  torch::autograd::validate_outputs(node.next_edges(), outputs,
                                    [](const std::string& message) { return "the peer sent an " + message; });
  for (size_t i = 0; i < outputs.size(); ++i)
    deliver(node.next_edge(i), gradients[i] ? MaybeGradient(std::move(outputs[i])) : std::nullopt);
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
