#include "treadle/tensor/autograd/graph_part.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <set>
#include <sstream>
#include <unordered_map>

namespace treadle::autograd {
namespace {

GraphNode described(const Node& node) {
  GraphNode described;
  if (const RecvNode* receive = RecvNode::from(node)) {
    described.kind = GraphNodeKind::kReceive;
    described.messageId = receive->message().messageId;
    described.peer = receive->message().peerRank;
    described.function = receive->message().function;
  } else if (const SendNode* send = SendNode::from(node)) {
    described.kind = GraphNodeKind::kSend;
    described.messageId = send->message().messageId;
    described.peer = send->message().peerRank;
    described.function = send->message().function;
    described.tensors = send->tensorIndexes();
  } else if (auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node)) {
    described.kind = GraphNodeKind::kLeaf;
    std::ostringstream text;
    text << leaf->variable.dtype().name() << ' ' << leaf->variable.sizes();
    described.name = text.str();
  } else {
    described.name = node.name();
  }
  return described;
}

// Takes down a graph from its ends: each node after all that it is made of. Without recursion, as graphs are deep.
class Walk {
 public:
  explicit Walk(std::vector<GraphNode>& nodes) : nodes_(nodes) {}

  void from(const Node& root) {
    std::vector<const Node*> todo = {&root};
    while (!todo.empty()) {
      const Node& next = *todo.back();
      const size_t behind = todo.size();
      // A node that is met twice before it is taken down is on the stack twice.
      if (!places_.contains(&next))
        for (const Edge& edge : next.next_edges())
          if (edge.is_valid() && !places_.contains(edge.function.get())) todo.push_back(edge.function.get());
      if (todo.size() > behind) continue;
      takeDown(next);
      todo.pop_back();
    }
  }

 private:
  void takeDown(const Node& node) {
    if (!places_.emplace(&node, static_cast<int64_t>(nodes_.size())).second) return;
    GraphNode taken = described(node);
    for (const Edge& edge : node.next_edges())
      if (edge.is_valid()) taken.madeOf.push_back(places_.at(edge.function.get()));
    nodes_.push_back(std::move(taken));
  }

  std::vector<GraphNode>& nodes_;
  std::unordered_map<const Node*, int64_t> places_;
};

// Results of calls that nothing was made of, as far as the messages that left know.
void addUnusedReceives(const ContextGraph& graph, std::vector<GraphNode>& nodes) {
  std::set<ReceivedId> met;
  for (const GraphNode& node : nodes)
    if (node.kind == GraphNodeKind::kReceive) met.emplace(node.peer, node.messageId);
  for (const auto& [rank, messageId] : graph.received().inUse()) {
    if (met.contains({rank, messageId})) continue;
    GraphNode node;
    node.kind = GraphNodeKind::kReceive;
    node.messageId = messageId;
    node.peer = rank;
    nodes.push_back(std::move(node));
  }
}

}  // namespace

std::vector<GraphNode> nodesOf(const ContextGraph& graph, const std::vector<at::Tensor>& roots) {
  std::vector<GraphNode> nodes;
  Walk walk(nodes);
  // Held while their graphs are walked.
  const std::vector<NodeRef<SendNode>> sends = graph.sends();
  for (const NodeRef<SendNode>& send : sends) walk.from(*send);
  // Held likewise: that of a leaf may be owned by nobody else, and another be made at its place.
  torch::autograd::edge_list edges;
  for (const at::Tensor& root : roots) {
    if (!root.defined() || !root.requires_grad()) continue;
    edges.push_back(torch::autograd::impl::gradient_edge(root));
    walk.from(*edges.back().function);
  }
  addUnusedReceives(graph, nodes);
  return nodes;
}

}  // namespace treadle::autograd
