#include "treadle/tensor/autograd/run_node.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>

#include <typeinfo>

#include "treadle/core/base/error.h"

namespace treadle::autograd {
namespace {

std::vector<at::Tensor> applyPostHooks(Node& node, std::vector<at::Tensor> outputs,
                                       const std::vector<at::Tensor>& inputs) {
  // A node that gains hooks while they run (a hook that adds a hook) must not move the list under the loop.
  for (size_t i = 0; i < node.post_hooks().size(); ++i) outputs = (*node.post_hooks()[i])(outputs, inputs);
  return outputs;
}

// As libtorch's engine in anomaly mode.
void checkForNans(const Node& node, const std::vector<at::Tensor>& outputs) {
  if (!torch::autograd::AnomalyMode::is_enabled() || !torch::autograd::AnomalyMode::should_check_nan()) return;
  at::AutoDispatchBelowADInplaceOrView unrecorded;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || outputs[i].is_sparse() || !outputs[i].isnan().any().item<bool>()) continue;
    throw std::runtime_error("anomaly mode: its gradient for input " + std::to_string(i) + " of " + node.name() +
                             " has a NaN");
  }
}

// With the type of the exception, so that it arrives as a RemoteError on the worker that called backward.
Status nodeFailure(const std::string& what, const std::string& message, const char* type) {
  return internalError(what + " failed: " + message).withRemoteType(demangled(type));
}

}  // namespace

std::vector<at::Tensor> applyPreHooks(Node& node, std::vector<at::Tensor> gradients) {
  for (const auto& hook : node.tensor_pre_hooks()) gradients = (*hook)(gradients);
  for (const auto& [output, hook] : node.retains_grad_hooks()) gradients = (*hook)(gradients);
  for (const auto& hook : node.pre_hooks()) gradients = (*hook)(gradients);
  return gradients;
}

void applyReceiveHooks(Node& node, std::vector<MaybeGradient>& gradients) {
  std::vector<at::Tensor> tensors;
  for (const MaybeGradient& gradient : gradients) tensors.push_back(gradient.value_or(at::Tensor()));
  for (const auto& hook : node.tensor_pre_hooks()) {
    std::optional<size_t> of = hookedOutput(*hook);
    if (!of || gradients.at(*of)) tensors = (*hook)(tensors);
  }
  for (const auto& [output, hook] : node.retains_grad_hooks())
    if (gradients.at(output)) tensors = (*hook)(tensors);
  for (const auto& hook : node.pre_hooks()) tensors = (*hook)(tensors);
  applyPostHooks(node, {}, tensors);
  for (size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i]) gradients[i] = std::move(tensors.at(i));
}

std::vector<at::Tensor> runNode(Node& node, std::vector<at::Tensor> gradients, bool retainGraph) {
  gradients = applyPreHooks(node, std::move(gradients));
  // As libtorch's engine does before and after: saved tensors go as soon as the node has run.
  if (!retainGraph) node.will_release_variables();
  // Post-hooks see the inputs too. Only then a copy is kept, because AccumulateGrad takes over an input that
  // nobody else holds, and allows for exactly this copy.
  std::vector<at::Tensor> seenByHooks;
  bool hasPostHooks = !node.post_hooks().empty();
  if (hasPostHooks) seenByHooks = gradients;
  std::vector<at::Tensor> outputs = node(std::move(gradients));
  // This also sums a broadcast gradient down to the shape of what was broadcast.
  torch::autograd::validate_outputs(node.next_edges(), outputs, [&](const std::string& message) {
    return "node " + node.name() + " returned an " + message;
  });
  checkForNans(node, outputs);
  if (hasPostHooks) outputs = applyPostHooks(node, std::move(outputs), seenByHooks);
  if (!retainGraph) node.release_variables();
  if (outputs.size() != node.num_outputs()) {
    throw std::logic_error("its hooks left " + std::to_string(outputs.size()) + " gradients for " +
                           std::to_string(node.num_outputs()) + " edges");
  }
  return outputs;
}

Status failureOf(const std::string& what) {
  try {
    throw;
  } catch (const Error& error) {
    return error.status().withContext(what);
  } catch (const c10::Error& error) {
    return nodeFailure(what, error.what_without_backtrace(), typeid(error).name());
  } catch (const std::exception& error) {
    return nodeFailure(what, error.what(), typeid(error).name());
  } catch (...) {
    return nodeFailure(what, "an exception that is not a std::exception", "unknown");
  }
}

}  // namespace treadle::autograd
