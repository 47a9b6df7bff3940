#include "treadle/tensor/autograd/run_node.h"

#include <c10/util/Exception.h>
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
