#pragma once
// How many gradients each node of the local graph still waits for, and what has arrived for it. Knows only
// the nodes that the pass will reach: everything behind its roots. Owned by a pass's executor, used by one
// thread at a time.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "treadle/tensor/autograd/recv_node.h"
#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::autograd {

// A node with all the gradients that it will get, one per input.
struct ReadyNode {
  NodePtr node;
  std::vector<MaybeGradient> gradients;
  // Of one that has run in part (node_parts.h): by edge, whether its gradient is still to be computed. Empty: all are.
  std::vector<bool> edgesLeft = {};
  size_t bytesKept = 0;  // for that
};

// Whether the gradients of one node come to the other, over any others. Walks the graph.
bool leadsTo(const Node& from, const Node& to);

class Dependencies {
 public:
  // Counts the edge, and when its node is new everything behind that node, without recursion: graphs are
  // deep.
  void countEdge(const Edge& edge);
  void countEdgesOf(const Node& root);

  // Brings a gradient, or the word that there is none, over an edge that was counted. Returns the node when it was the
  // last one that the node waited for. Throws when more arrives than was counted: a hook changed the graph during the
  // pass.
  std::optional<ReadyNode> deliver(const Edge& edge, MaybeGradient gradient);

  // Nodes that still wait.
  size_t waiting() const { return nodes_.size(); }

  // The ends of the graph that were met while counting.
  const std::vector<torch::autograd::AccumulateGrad*>& leaves() const { return leaves_; }
  const std::vector<const RecvNode*>& receives() const { return receives_; }

 private:
  struct Waiting {
    size_t edges = 0;
    std::vector<MaybeGradient> gradients;  // one per input, made when the first arrives
  };
  void countBehind(std::vector<Node*> todo);
  bool countOne(const Edge& edge);  // true when the node is new
  void noteEnd(Node& node);

  std::unordered_map<Node*, Waiting> nodes_;
  std::vector<torch::autograd::AccumulateGrad*> leaves_;
  std::vector<const RecvNode*> receives_;
};

}  // namespace treadle::autograd
