#pragma once
// One worker's part of the graph of a context as plain values, for drawings of the whole (describe.h). Nodes are taken
// down as they are at the moment; any thread.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "treadle/tensor/autograd/context_graph.h"

namespace treadle::autograd {

enum class GraphNodeKind : int32_t { kOperation, kLeaf, kSend, kReceive };

struct GraphNode {
  GraphNodeKind kind = GraphNodeKind::kOperation;
  std::string name;             // of an operation as libtorch calls it; of a leaf its type and sizes
  std::vector<int64_t> madeOf;  // the nodes whose results it uses, by their places in the part; all come before it
  // Of sends and receives alone.
  int64_t messageId = -1;
  int32_t peer = -1;             // rank of the worker at the other end
  std::string function;          // what was called; empty when that is not known here
  std::vector<int64_t> tensors;  // of a send: which of the message's tensors want a gradient
};
inline auto fields(GraphNode& node) {
  return std::tie(node.kind, node.name, node.madeOf, node.messageId, node.peer, node.function, node.tensors);
}

struct GraphPart {
  std::vector<GraphNode> nodes;
  std::vector<int32_t> others;  // ranks to whom this worker has sent messages of the context
};
inline auto fields(GraphPart& part) { return std::tie(part.nodes, part.others); }

// What the messages that left, and `roots`, were made of, and the messages that came and are still in use. Tensors
// without a history are left out.
std::vector<GraphNode> nodesOf(const ContextGraph& graph, const std::vector<at::Tensor>& roots);

}  // namespace treadle::autograd
