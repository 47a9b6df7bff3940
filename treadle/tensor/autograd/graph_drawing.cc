#include "treadle/tensor/autograd/graph_drawing.h"

#include <algorithm>
#include <sstream>

namespace treadle::autograd {
namespace {

std::string nameOf(const DrawnGraph& graph, int rank) {
  auto found = graph.find(rank);
  return found == graph.end() ? "worker " + std::to_string(rank) : "'" + found->second.name + "'";
}

std::string joined(const std::vector<int64_t>& numbers) {
  std::string text;
  for (int64_t number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

std::string described(const DrawnGraph& graph, const GraphNode& node) {
  if (node.kind == GraphNodeKind::kLeaf) return "leaf " + node.name;
  const bool sent = node.kind == GraphNodeKind::kSend;
  if (!sent && node.kind != GraphNodeKind::kReceive) return node.name;
  std::string text = sent ? "send " : "receive ";
  text += std::to_string(node.messageId) + (sent ? " to " : " from ") + nameOf(graph, node.peer);
  if (!node.function.empty()) text += " (" + node.function + ")";
  if (sent) text += (node.tensors.size() == 1 ? ", tensor " : ", tensors ") + joined(node.tensors);
  return text;
}

// On one line, whatever the worker that described it calls it.
std::string textOf(const DrawnGraph& graph, const GraphNode& node) {
  std::string text = described(graph, node);
  std::ranges::replace_if(text, [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return text;
}

std::string quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string idOf(int rank, size_t place) { return "w" + std::to_string(rank) + "n" + std::to_string(place); }

const char* shapeOf(const GraphNode& node) {
  if (node.kind == GraphNodeKind::kLeaf) return "box";
  if (node.kind == GraphNodeKind::kSend) return "cds";
  return node.kind == GraphNodeKind::kReceive ? "house" : "ellipse";
}

void drawWorker(std::ostream& out, const DrawnGraph& graph, int rank) {
  const DrawnWorker& worker = graph.at(rank);
  out << "  subgraph cluster" << rank << " {\n    label=" << quoted(worker.name) << ";\n";
  for (size_t i = 0; i < worker.nodes.size(); ++i) {
    out << "    " << idOf(rank, i) << " [shape=" << shapeOf(worker.nodes[i])
        << ", label=" << quoted(textOf(graph, worker.nodes[i])) << "];\n";
    for (int64_t behind : worker.nodes[i].madeOf)
      out << "    " << idOf(rank, static_cast<size_t>(behind)) << " -> " << idOf(rank, i) << ";\n";
  }
  out << "  }\n";
}

// Where each message came, by its sender and number.
std::map<std::pair<int, int64_t>, std::string> receiveIds(const DrawnGraph& graph) {
  std::map<std::pair<int, int64_t>, std::string> ids;
  for (const auto& [rank, worker] : graph)
    for (size_t i = 0; i < worker.nodes.size(); ++i)
      if (const GraphNode& node = worker.nodes[i]; node.kind == GraphNodeKind::kReceive)
        ids.emplace(std::pair(node.peer, node.messageId), idOf(rank, i));
  return ids;
}

}  // namespace

std::string asText(const DrawnGraph& graph) {
  std::ostringstream out;
  for (const auto& [rank, worker] : graph) {
    out << "worker '" << worker.name << "'\n";
    for (size_t i = 0; i < worker.nodes.size(); ++i) {
      const GraphNode& node = worker.nodes[i];
      out << "  " << i << "  " << textOf(graph, node);
      if (!node.madeOf.empty()) out << " <- " << joined(node.madeOf);
      out << '\n';
    }
  }
  return out.str();
}

std::string asGraphviz(const DrawnGraph& graph) {
  std::ostringstream out;
  out << "digraph autograd {\n";
  for (const auto& [rank, worker] : graph) drawWorker(out, graph, rank);
  const auto received = receiveIds(graph);
  for (const auto& [rank, worker] : graph)
    for (size_t i = 0; i < worker.nodes.size(); ++i)
      if (auto to = received.find({rank, worker.nodes[i].messageId});
          worker.nodes[i].kind == GraphNodeKind::kSend && to != received.end())
        out << "  " << idOf(rank, i) << " -> " << to->second << " [style=dashed];\n";
  out << "}\n";
  return out.str();
}

}  // namespace treadle::autograd
