#pragma once
// The parts of all workers as one text. Plain functions; any thread.

#include <map>
#include <string>

#include "treadle/tensor/autograd/graph_part.h"

namespace treadle::autograd {

struct DrawnWorker {
  std::string name;
  std::vector<GraphNode> nodes;
};
// By rank. Parts came from other workers: whatever is in them, the drawing is a well-formed one.
using DrawnGraph = std::map<int, DrawnWorker>;

std::string asText(const DrawnGraph& graph);
std::string asGraphviz(const DrawnGraph& graph);

}  // namespace treadle::autograd
