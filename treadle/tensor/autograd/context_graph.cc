#include "treadle/tensor/autograd/context_graph.h"

#include <torch/csrc/autograd/variable.h>

namespace treadle::autograd {
namespace {

Status usedTwice(const MessageInfo& message, int64_t contextId) {
  return invalidArgument("worker " + std::to_string(message.peerRank) + " used message id " +
                         std::to_string(message.messageId) + " twice in autograd context " + std::to_string(contextId));
}

}  // namespace

Result<Departure> ContextGraph::addSend(int peerRank, std::string function, std::span<const at::Tensor> tensors) {
  Departure departure;
  torch::autograd::edge_list edges;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || !tensors[i].requires_grad()) continue;
    edges.push_back(torch::autograd::impl::gradient_edge(tensors[i]));
    departure.indexes.push_back(static_cast<int64_t>(i));
  }
  if (departure.indexes.empty()) return departure;
  if (mode_ == AutogradMode::kSmart) {
    Result<LineagePtr> lineage = lineageOf(edges);
    if (!lineage.ok()) return lineage.status();
    departure.lineage = *std::move(lineage);
  }
  std::lock_guard lock(mutex_);
  departure.messageId = nextMessageId_++;
  sends_.emplace(departure.messageId,
                 makeNode<SendNode>(MessageInfo{departure.messageId, peerRank, std::move(function)}, departure.indexes,
                                    std::move(edges)));
  return departure;
}

Status ContextGraph::addReceive(MessageInfo message, const LineagePtr& lineage, std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return {};
  const ReceivedId id(message.peerRank, message.messageId);
  LineagePtr whole;
  if (mode_ == AutogradMode::kSmart) {
    TREADLE_RETURN_IF_ERROR(checkLineage(lineage));
    auto withItself = lineage == nullptr ? std::make_shared<Lineage>() : std::make_shared<Lineage>(*lineage);
    withItself->add(message.peerRank, message.messageId);
    whole = std::move(withItself);
  }
  if (!received_->add(id)) return usedTwice(message, contextId_);
  auto node = makeNode<RecvNode>(contextId_, std::move(message), std::move(whole), received_);
  Status attached = RecvNode::attach(node, tensors);
  // Nothing was received: its sender is not told that it is gone.
  if (!attached.ok()) received_->spend(std::span(&id, 1));
  return attached;
}

Status ContextGraph::checkLineage(const LineagePtr& lineage) const {
  if (lineage == nullptr) return {};
  if (lineage->end(rank_) <= numbersGiven()) return {};
  return dataLoss("the lineage of a message names one that this worker never sent in autograd context " +
                  std::to_string(contextId_));
}

Result<LineagePtr> ContextGraph::lineageOf(const torch::autograd::edge_list& edges) {
  LineagePtr lineage;
  std::lock_guard lock(ancestryMutex_);
  for (const Edge& edge : edges) TREADLE_RETURN_IF_ERROR(ancestry_.unite(lineage, edge));
  return lineage;
}

Result<Lineage> ContextGraph::lineageOf(const std::vector<Root>& roots) {
  torch::autograd::edge_list edges;
  for (const Root& root : roots)
    if (root.tensor.defined() && root.tensor.requires_grad())
      edges.push_back(torch::autograd::impl::gradient_edge(root.tensor));
  Result<LineagePtr> lineage = lineageOf(edges);
  if (!lineage.ok()) return lineage.status();
  return *lineage == nullptr ? Lineage() : **lineage;
}

NodeRef<SendNode> ContextGraph::findSend(int64_t messageId) const {
  std::lock_guard lock(mutex_);
  auto found = sends_.find(messageId);
  return found == sends_.end() ? NodeRef<SendNode>() : found->second;
}

int64_t ContextGraph::numbersGiven() const {
  std::lock_guard lock(mutex_);
  return nextMessageId_;
}

std::vector<NodeRef<SendNode>> ContextGraph::sends() const {
  std::vector<NodeRef<SendNode>> sends;
  std::lock_guard lock(mutex_);
  for (const auto& [messageId, send] : sends_) sends.push_back(send);
  return sends;
}

void ContextGraph::forget(std::span<const int64_t> sentIds) {
  // Declared before the lock, so that what they take out (whole graphs) is freed after it is let go.
  std::vector<NodeRef<SendNode>> sends;
  std::lock_guard lock(mutex_);
  for (int64_t messageId : sentIds)
    if (auto entry = sends_.extract(messageId)) sends.push_back(std::move(entry.mapped()));
}

void ContextGraph::forgetSentTo(int rank, std::span<const int64_t> sentIds) {
  std::vector<int64_t> went;
  for (int64_t messageId : sentIds)
    if (NodeRef<SendNode> send = findSend(messageId); send && send->message().peerRank == rank)
      went.push_back(messageId);
  forget(went);
}

void ContextGraph::clearAncestry() {
  std::lock_guard lock(ancestryMutex_);
  ancestry_.clear();
}

}  // namespace treadle::autograd
