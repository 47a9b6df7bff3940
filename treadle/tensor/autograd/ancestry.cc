#include "treadle/tensor/autograd/ancestry.h"

#include <algorithm>

#include "treadle/tensor/autograd/recv_node.h"

namespace treadle::autograd {
namespace {

// To `lineage`, which others may hold.
void uniteWith(LineagePtr& lineage, const LineagePtr& more) {
  if (more == nullptr || more == lineage) return;
  if (lineage == nullptr || more->contains(*lineage)) {
    lineage = more;
  } else if (!lineage->contains(*more)) {
    auto both = std::make_shared<Lineage>(*lineage);
    both->unite(*more);
    lineage = std::move(both);
  }
}

}  // namespace

Status Ancestry::unite(LineagePtr& lineage, const Edge& edge) {
  if (!edge.is_valid()) return {};
  LineagePtr found;
  Result<bool> known = ask(*edge.function, found);
  if (known.ok() && !*known) {
    TREADLE_RETURN_IF_ERROR(find(*edge.function));
    known = ask(*edge.function, found);
  }
  uniteWith(lineage, found);
  return known.status();
}

// Without recursion, as graphs are deep: a node stays on the stack until all behind it is known.
Status Ancestry::find(const Node& node) {
  const bool full = known_.size() >= most_;
  if (full) known_.clear();
  std::vector<const Node*> todo = {&node};
  while (!todo.empty()) {
    const Node& next = *todo.back();
    const size_t behind = todo.size();
    LineagePtr lineage;
    for (const Edge& edge : next.next_edges()) {
      if (!edge.is_valid()) continue;
      LineagePtr found;
      Result<bool> known = ask(*edge.function, found);
      if (!known.ok()) return known.status();
      if (!*known) todo.push_back(edge.function.get());
      uniteWith(lineage, found);
    }
    if (todo.size() > behind) continue;
    known_[&next] = {next.sequence_nr(), next.thread_id(), std::move(lineage)};
    todo.pop_back();
  }
  // What was found anew is what lives.
  if (full) most_ = std::max(most_, 2 * known_.size());
  return {};
}

// Whether the node is known, and then what it depends on.
Result<bool> Ancestry::ask(const Node& node, LineagePtr& lineage) const {
  if (const RecvNode* receive = RecvNode::from(node)) {
    TREADLE_RETURN_IF_ERROR(receive->checkContext(contextId_));
    lineage = receive->lineage();
  }
  if (node.num_outputs() == 0) return true;
  auto found = known_.find(&node);
  if (found == known_.end()) return false;
  const Known& known = found->second;
  if (known.sequence != node.sequence_nr() || known.thread != node.thread_id()) return false;
  lineage = known.lineage;
  return true;
}

}  // namespace treadle::autograd
