#include "treadle/train/ddp/loss_leaves.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::ddp {

std::vector<LossLeaf> leavesOf(const at::Tensor& loss) {
  std::vector<LossLeaf> leaves;
  const autograd::Edge root = torch::autograd::impl::gradient_edge(loss);
  std::unordered_set<autograd::Node*> seen = {root.function.get()};
  std::vector<autograd::Node*> todo = {root.function.get()};
  while (!todo.empty()) {
    autograd::Node* const node = todo.back();
    todo.pop_back();
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node))
      leaves.push_back({leaf->variable, !node->post_hooks().empty()});
    for (const autograd::Edge& edge : node->next_edges())
      if (edge.is_valid() && seen.insert(edge.function.get()).second) todo.push_back(edge.function.get());
  }
  return leaves;
}

}  // namespace treadle::ddp
