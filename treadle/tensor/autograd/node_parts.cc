#include "treadle/tensor/autograd/node_parts.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <unordered_map>

#include "treadle/core/base/check.h"
#include "treadle/tensor/autograd/accumulate.h"
#include "treadle/tensor/autograd/hooked_leaves.h"

namespace treadle::autograd {
namespace {

namespace generated = torch::autograd::generated;
using torch::autograd::SavedVariable;

// By edge of a node each of whose gradients is an operation of its own: the factor whose gradient goes there, as the
// node has saved it; null: it is none. Empty: no such node.
std::vector<const SavedVariable*> factorsOf(const Node& node) {
  if (const auto* mm = dynamic_cast<const generated::MmBackward0*>(&node)) return {&mm->self_, &mm->mat2_};
  if (const auto* mm = dynamic_cast<const generated::AddmmBackward0*>(&node)) return {nullptr, &mm->mat1_, &mm->mat2_};
  if (const auto* mm = dynamic_cast<const generated::BmmBackward0*>(&node)) return {&mm->self_, &mm->mat2_};
  if (const auto* of = dynamic_cast<const generated::ConvolutionBackward0*>(&node))
    return {&of->input_, &of->weight_, nullptr};
  return {};
}

// Hooks of saved tensors may be those of a checkpoint, which run a segment again.
bool haveHooks(const std::vector<const SavedVariable*>& factors) {
  return std::ranges::any_of(factors, [](const SavedVariable* one) { return one != nullptr && one->has_hooks(); });
}

bool hasHooks(Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         !node.retains_grad_hooks().empty();
}

// Over nodes that only arrange it anew, as that of weight.t(). What hooks wait for is wanted soon: they may be those of
// a DistributedDataParallel, which sends it.
bool endsInParameter(const Edge& edge) {
  constexpr int kMostNodes = 4;
  Node* node = edge.function.get();
  for (int i = 0; i < kMostNodes && node != nullptr; ++i) {
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) return !hasGradHooks(*leaf);
    if (node->num_outputs() != 1) return false;
    node = node->next_edge(0).function.get();
  }
  return false;
}

// Of the tensor whose gradient goes over the edge.
size_t bytesOver(const Edge& edge) {
  const auto& tensor = edge.function->input_metadata(edge.input_nr);
  if (tensor.is_nested_tensor()) return 0;
  size_t bytes = tensor.dtype().itemsize();
  for (const c10::SymInt& size : tensor.shape_as_dim_vector())
    bytes *= static_cast<size_t>(size.guard_int(__FILE__, __LINE__));
  return bytes;
}

// Of the graph task that runs on this thread, which is the engine loop's own. libtorch has no way to change it that it
// exports.
std::unordered_map<Node*, torch::autograd::GraphTask::ExecInfo>& wanted() {
  const auto* info = torch::autograd::get_current_graph_task_exec_info();
  TREADLE_CHECK(info != nullptr, "a node runs in parts outside the engine");
  return const_cast<std::unordered_map<Node*, torch::autograd::GraphTask::ExecInfo>&>(*info);
}

}  // namespace

std::optional<Parts> partsOf(Node& node, const std::vector<MaybeGradient>& gradients) {
  const std::vector<const SavedVariable*> factors = factorsOf(node);
  if (factors.size() != node.num_outputs() || haveHooks(factors) || hasHooks(node)) return {};
  Parts parts{std::vector<bool>(factors.size()), std::vector<bool>(factors.size())};
  for (const MaybeGradient& gradient : gradients) {
    if (!gradient || !gradient->defined()) continue;
    if (!isUnshared(*gradient)) return {};
    parts.bytesKept += gradient->nbytes();
  }
  bool goesOn = false, ends = false;
  for (size_t i = 0; i < factors.size(); ++i) {
    const Edge& edge = node.next_edge(i);
    if (!edge.is_valid()) continue;
    parts.later[i] = endsInParameter(edge);
    parts.now[i] = !parts.later[i];
    if (parts.now[i] && factors[i] == nullptr) return {};  // to which the node's own gradient goes on
    if (parts.now[i]) parts.bytesKept += bytesOver(edge);
    ends |= parts.later[i];
    goesOn |= parts.now[i];
  }
  return goesOn && ends ? std::optional(std::move(parts)) : std::nullopt;
}

OnlyEdges::OnlyEdges(const Node& node, const std::vector<bool>& edges) {
  auto& nodes = wanted();
  TREADLE_CHECK(nodes.empty(), "a node runs in parts within another one that does");
  for (size_t i = 0; i < edges.size(); ++i)
    if (edges[i] && node.next_edge(i).is_valid()) nodes[node.next_edge(i).function.get()].needed_ = true;
}

OnlyEdges::~OnlyEdges() { wanted().clear(); }  // all are wanted

}  // namespace treadle::autograd
