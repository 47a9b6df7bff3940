#include "treadle/tensor/autograd/context_graph.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

namespace treadle::autograd {
namespace {

Status usedTwice(int64_t messageId, int64_t contextId) {
  return invalidArgument("message id " + std::to_string(messageId) + " was used twice in autograd context " +
                         std::to_string(contextId));
}

template <class Map>
std::vector<typename Map::mapped_type> valuesOf(const Map& map) {
  std::vector<typename Map::mapped_type> values;
  values.reserve(map.size());
  for (const auto& [key, value] : map) values.push_back(value);
  return values;
}

// Takes entries out of a map, so that the caller can free them (whole graphs) without its lock.
template <class Map>
std::vector<typename Map::mapped_type> takeFrom(Map& map, std::span<const int64_t> keys) {
  std::vector<typename Map::mapped_type> taken;
  for (int64_t key : keys) {
    if (auto entry = map.extract(key)) taken.push_back(std::move(entry.mapped()));
  }
  return taken;
}

}  // namespace

Result<std::vector<int64_t>> ContextGraph::addSend(MessageInfo message, std::span<const at::Tensor> tensors) {
  std::vector<int64_t> indexes;
  // As for any operation: under no_grad the receiver gets plain values.
  if (!c10::GradMode::is_enabled()) return indexes;
  torch::autograd::edge_list edges;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || !tensors[i].requires_grad()) continue;
    edges.push_back(torch::autograd::impl::gradient_edge(tensors[i]));
    indexes.push_back(static_cast<int64_t>(i));
  }
  if (indexes.empty()) return indexes;
  int64_t messageId = message.messageId;
  auto node = makeNode<SendNode>(std::move(message), indexes, std::move(edges));
  std::lock_guard lock(mutex_);
  if (!sends_.try_emplace(messageId, std::move(node)).second) return usedTwice(messageId, contextId_);
  return indexes;
}

Status ContextGraph::addReceive(MessageInfo message, std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return {};
  int64_t messageId = message.messageId;
  auto node = makeNode<RecvNode>(contextId_, std::move(message));
  // Held while nodes are attached, which is short: a message id must not pass the check twice.
  std::lock_guard lock(mutex_);
  if (receives_.contains(messageId)) return usedTwice(messageId, contextId_);
  TREADLE_RETURN_IF_ERROR(RecvNode::attach(node, tensors));
  receives_.emplace(messageId, std::move(node));
  return {};
}

NodeRef<SendNode> ContextGraph::findSend(int64_t messageId) const {
  std::lock_guard lock(mutex_);
  auto found = sends_.find(messageId);
  return found == sends_.end() ? NodeRef<SendNode>() : found->second;
}

std::vector<NodeRef<SendNode>> ContextGraph::sends() const {
  std::lock_guard lock(mutex_);
  return valuesOf(sends_);
}

std::vector<NodeRef<RecvNode>> ContextGraph::receives() const {
  std::lock_guard lock(mutex_);
  return valuesOf(receives_);
}

void ContextGraph::forget(std::span<const int64_t> sentIds, std::span<const int64_t> receivedIds) {
  // Declared before the lock, so that what they take out is freed after it is let go.
  std::vector<NodeRef<SendNode>> sends;
  std::vector<NodeRef<RecvNode>> receives;
  std::lock_guard lock(mutex_);
  sends = takeFrom(sends_, sentIds);
  receives = takeFrom(receives_, receivedIds);
}

}  // namespace treadle::autograd
