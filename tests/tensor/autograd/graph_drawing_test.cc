// Drawings are well-formed whatever workers say of their parts.

#include "treadle/tensor/autograd/graph_drawing.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace treadle::autograd::graph_drawing_test {
namespace {

GraphNode node(GraphNodeKind kind, std::string name, std::vector<int64_t> madeOf = {}) {
  GraphNode made;
  made.kind = kind;
  made.name = std::move(name);
  made.madeOf = std::move(madeOf);
  return made;
}

TEST(GraphDrawing, KeepsEachNodeOnALineOfItsOwn) {
  const DrawnGraph graph = {
      {3,
       {"odd",
        {node(GraphNodeKind::kLeaf, "a\"; }\n digraph {\\"), node(GraphNodeKind::kOperation, "Mul\tBackward", {0})}}}};
  EXPECT_EQ(asText(graph), "worker 'odd'\n  0  leaf a\"; }  digraph {\\\n  1  Mul Backward <- 0\n");
  const std::string drawing = asGraphviz(graph);
  EXPECT_NE(drawing.find("label=\"leaf a\\\"; }  digraph {\\\\\"];\n"), std::string::npos) << drawing;
  EXPECT_NE(drawing.find("w3n0 -> w3n1;"), std::string::npos) << drawing;
}

TEST(GraphDrawing, NamesWhoIsNotDrawnByRank) {
  GraphNode send = node(GraphNodeKind::kSend, "");
  send.messageId = 4, send.peer = 7, send.tensors = {0, 2};
  const DrawnGraph graph = {{0, {"A", {send}}}};
  EXPECT_EQ(asText(graph), "worker 'A'\n  0  send 4 to worker 7, tensors 0, 2\n");
  EXPECT_EQ(asGraphviz(graph).find("dashed"), std::string::npos);
}

}  // namespace
}  // namespace treadle::autograd::graph_drawing_test
