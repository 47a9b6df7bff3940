#include "treadle/tensor/autograd/dependencies.h"

#include <stdexcept>
#include <unordered_set>

#include "treadle/tensor/autograd/accumulate.h"

namespace treadle::autograd {

bool leadsTo(const Node& from, const Node& to) {
  std::unordered_set<const Node*> seen = {&from};
  std::vector<const Node*> todo = {&from};
  while (!todo.empty()) {
    const Node& next = *todo.back();
    todo.pop_back();
    if (&next == &to) return true;
    for (const Edge& edge : next.next_edges())
      if (edge.is_valid() && seen.insert(edge.function.get()).second) todo.push_back(edge.function.get());
  }
  return false;
}

void Dependencies::countEdge(const Edge& edge) {
  if (edge.is_valid() && countOne(edge)) countBehind({edge.function.get()});
}

void Dependencies::countEdgesOf(const Node& root) {
  for (const Edge& edge : root.next_edges()) countEdge(edge);
}

// An edge to a known node is one gradient more to wait for; the graph behind it has been counted already.
bool Dependencies::countOne(const Edge& edge) {
  auto [found, isNew] = nodes_.try_emplace(edge.function.get());
  ++found->second.edges;
  return isNew;
}

// Depth first with a stack of its own: a recurrent model may be a chain of millions of nodes.
void Dependencies::countBehind(std::vector<Node*> todo) {
  while (!todo.empty()) {
    Node* node = todo.back();
    todo.pop_back();
    noteEnd(*node);
    for (const Edge& edge : node->next_edges()) {
      if (edge.is_valid() && countOne(edge)) todo.push_back(edge.function.get());
    }
  }
}

// Leaves and receive nodes have no edges: everything else is left alone.
void Dependencies::noteEnd(Node& node) {
  if (node.num_outputs() != 0) return;
  if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(&node)) leaves_.push_back(leaf);
  if (const RecvNode* receive = RecvNode::from(node)) receives_.push_back(receive);
}

std::optional<ReadyNode> Dependencies::deliver(const Edge& edge, MaybeGradient gradient) {
  // Both can only come from a hook that changed the graph after it was counted. The pass fails: running on
  // would lose gradients silently.
  auto found = nodes_.find(edge.function.get());
  if (found == nodes_.end() || edge.input_nr >= edge.function->num_inputs()) {
    throw std::logic_error("the graph at " + edge.function->name() + " changed while the pass was running");
  }
  Waiting& waiting = found->second;
  waiting.gradients.resize(edge.function->num_inputs());
  if (gradient) {
    MaybeGradient& sum = waiting.gradients[edge.input_nr];
    if (!sum) sum.emplace();
    addGradient(*sum, *std::move(gradient));
  }
  // Taken out when complete, so what is left in the table are the nodes that wait.
  if (--waiting.edges > 0) return std::nullopt;
  ReadyNode ready{edge.function, std::move(waiting.gradients)};
  nodes_.erase(found);
  return ready;
}

}  // namespace treadle::autograd
