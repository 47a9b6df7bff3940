#include "treadle/tensor/autograd/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/tensor/autograd/recv_node.h"
#include "treadle/tensor/bridge/autocast_state.h"

namespace treadle {
namespace {

using torch::autograd::Node, torch::autograd::variable_list;

thread_local int segmentDepth = 0;

class SegmentScope {
 public:
  SegmentScope() { ++segmentDepth; }
  ~SegmentScope() { --segmentDepth; }
  SegmentScope(const SegmentScope&) = delete;
  SegmentScope& operator=(const SegmentScope&) = delete;
};

// Casts of parameters that libtorch has kept may be of a graph that is not this one.
class AutocastScope {
 public:
  explicit AutocastScope(const bridge::AutocastState& state) {
    at::autocast::increment_nesting();
    at::autocast::clear_cache();
    state.apply();
  }
  ~AutocastScope() {
    at::autocast::clear_cache();
    at::autocast::decrement_nesting();
    before_.apply();
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  const bridge::AutocastState before_ = bridge::AutocastState::ofThread();
};

at::Tensor randomState() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void setRandomState(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// Draws from the state that is given, if one is; what was before comes back in the end. One at a time in a process, but
// for segments within segments.
class RandomScope {
 public:
  explicit RandomScope(const std::optional<at::Tensor>& state) {
    if (!state) return;
    lock_ = std::unique_lock(mutex());
    before_ = randomState();
    setRandomState(*state);
  }
  ~RandomScope() {
    if (before_.defined()) setRandomState(before_);
  }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex one;
    return one;
  }

  std::unique_lock<std::recursive_mutex> lock_;
  at::Tensor before_;
};

// A segment, and what its second run needs to compute the same.
struct FirstRun final : torch::CustomClassHolder {
  FirstRun(CheckpointSegment made, size_t inputsGiven) : segment(std::move(made)), inputs(inputsGiven) {}

  const CheckpointSegment segment;
  const size_t inputs;  // the first tensors of the node; the others are parameters
  const bridge::AutocastState autocast = bridge::AutocastState::ofThread();
  std::optional<at::Tensor> random = {};  // the state that the segment has drawn from
  size_t results = 0;
};

int64_t versionOf(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

variable_list runFirst(FirstRun& first, const variable_list& tensors, bool keepsRandomNumbers) {
  const SegmentScope scope;
  if (keepsRandomNumbers) first.random = randomState();
  std::vector<int64_t> versions;
  for (const at::Tensor& tensor : tensors) versions.push_back(versionOf(tensor));
  variable_list results = first.segment({tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(first.inputs)});
  for (size_t i = 0; i < tensors.size(); ++i)
    if (versionOf(tensors[i]) != versions[i])
      raise(
          invalidArgument("a checkpointed segment changes an input or a parameter in place, so its second run would "
                          "compute from other values"));
  // A result may be a tensor that others have: it must not become part of this graph.
  for (at::Tensor& result : results) {
    if (!result.defined()) raise(invalidArgument("a checkpointed segment returned an undefined tensor"));
    result = result.detach();
  }
  if (first.random && first.random->equal(randomState())) first.random.reset();
  first.results = results.size();
  return results;
}

variable_list runAgain(const FirstRun& first, const variable_list& inputs) {
  const at::AutoGradMode grad(true);
  const SegmentScope scope;
  const AutocastScope autocast(first.autocast);
  const RandomScope random(first.random);
  variable_list results = first.segment(inputs);
  if (results.size() != first.results)
    raise(failedPrecondition("a checkpointed segment returned " + std::to_string(first.results) +
                             " tensors in its first run and " + std::to_string(results.size()) + " in its second one"));
  return results;
}

bool requiresGradient(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

[[noreturn]] void raiseLost(const std::string& what) {
  raise(failedPrecondition("a checkpointed segment depends on " + what +
                           " that requires a gradient and would get none: let it use the tensors that it is called "
                           "with, and give it others as inputs, or leaves in CheckpointOptions::parameters"));
}

// Raises for what would lose its gradient: the results depend on it, and it is not among those that are wanted.
// `begin`: the number of the first node that the second run could make. Leaves of no elements get nothing.
void checkDependencies(const variable_list& results, const variable_list& wanted, uint64_t begin) {
  std::unordered_set<const at::TensorImpl*> given;
  for (const at::Tensor& one : wanted) given.insert(one.unsafeGetTensorImpl());
  std::unordered_set<Node*> seen;
  std::vector<Node*> next;
  const auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) next.push_back(node);
  };
  for (const at::Tensor& result : results)
    if (requiresGradient(result)) visit(torch::autograd::impl::gradient_edge(result).function.get());
  while (!next.empty()) {
    Node* node = next.back();
    next.pop_back();
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      if (leaf->variable.numel() > 0 && !given.contains(leaf->variable.unsafeGetTensorImpl()))
        raiseLost("a leaf of sizes " + c10::str(leaf->variable.sizes()));
    } else if (autograd::RecvNode::from(*node) != nullptr) {
      raiseLost("a tensor from another worker");
    } else if (node->sequence_nr() < begin) {
      raiseLost("a tensor that was computed before it, by " + node->name() + ",");
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
}

// By tensor that is wanted; undefined where it requires none, or takes no part.
variable_list gradientsOf(const variable_list& results, const variable_list& gradients, const variable_list& wanted) {
  variable_list from, with, to;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!gradients[i].defined() || !requiresGradient(results[i])) continue;
    from.push_back(results[i]);
    with.push_back(gradients[i]);
  }
  std::vector<size_t> places;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!requiresGradient(wanted[i])) continue;
    places.push_back(i);
    to.push_back(wanted[i]);
  }
  variable_list found(wanted.size());
  if (from.empty() || to.empty()) return found;
  const variable_list some = torch::autograd::grad(from, to, with, /*retain_graph=*/false, /*create_graph=*/false,
                                                   /*allow_unused=*/true);
  for (size_t i = 0; i < places.size(); ++i) found[places[i]] = some[i];
  return found;
}

struct CheckpointNode : torch::autograd::Function<CheckpointNode> {
  static variable_list forward(torch::autograd::AutogradContext* context, const c10::intrusive_ptr<FirstRun>& first,
                               bool keepsRandomNumbers, at::TensorList tensors) {
    context->set_materialize_grads(false);  // a result that takes no part is not differentiated
    context->save_for_backward(tensors.vec());
    context->saved_data["segment"] = at::IValue::make_capsule(first);
    return runFirst(*first, tensors.vec(), keepsRandomNumbers);
  }

  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled())
      raise(failedPrecondition("a checkpointed segment cannot be differentiated twice (create_graph)"));
    const auto capsule = context->saved_data["segment"].toCapsule();
    const auto& first = static_cast<const FirstRun&>(*capsule);
    const variable_list tensors = context->get_saved_variables();
    variable_list inputs;
    for (size_t i = 0; i < first.inputs; ++i)
      inputs.push_back(tensors[i].detach().requires_grad_(tensors[i].requires_grad()));
    variable_list wanted = inputs;
    for (size_t i = first.inputs; i < tensors.size(); ++i) {
      if (!torch::autograd::impl::hooks(tensors[i]).empty())
        raise(
            failedPrecondition("a parameter of a checkpointed segment has hooks, which would run twice: give it as an "
                               "input of the segment"));
      wanted.push_back(tensors[i]);
    }
    const uint64_t begin = at::sequence_number::peek();
    const variable_list results = runAgain(first, inputs);
    checkDependencies(results, wanted, begin);
    variable_list found(2);  // of what is no tensor
    for (at::Tensor& one : gradientsOf(results, gradients, wanted)) found.push_back(std::move(one));
    return found;
  }
};

// Each leaf once: libtorch would give each of two the gradient of both.
variable_list withParameters(const variable_list& inputs, const variable_list& parameters) {
  variable_list tensors = inputs;
  std::unordered_set<const at::TensorImpl*> known;
  for (const at::Tensor& one : parameters) {
    if (one.defined() && !one.is_leaf())
      raise(invalidArgument("a parameter of a checkpointed segment is no leaf: give it as an input"));
    if (known.insert(one.unsafeGetTensorImpl()).second) tensors.push_back(one);
  }
  if (std::ranges::any_of(tensors, [](const at::Tensor& one) { return !one.defined(); }))
    raise(invalidArgument("an input or a parameter of a checkpointed segment is undefined"));
  return tensors;
}

}  // namespace

std::vector<at::Tensor> checkpoint(CheckpointSegment segment, const std::vector<at::Tensor>& inputs,
                                   const CheckpointOptions& options) {
  const variable_list tensors = withParameters(inputs, options.parameters);
  if (!at::GradMode::is_enabled() || std::ranges::none_of(tensors, requiresGradient)) return segment(inputs);
  return CheckpointNode::apply(c10::make_intrusive<FirstRun>(std::move(segment), inputs.size()),
                               options.keepRandomNumbers, at::TensorList(tensors));
}

at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor& input)> segment, const at::Tensor& input,
                      const CheckpointOptions& options) {
  const auto one = [segment = std::move(segment)](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{segment(inputs.front())};
  };
  return checkpoint(CheckpointSegment(one), std::vector<at::Tensor>{input}, options).front();
}

}  // namespace treadle

namespace treadle::autograd {

bool isInSegment() { return segmentDepth > 0; }

}  // namespace treadle::autograd
