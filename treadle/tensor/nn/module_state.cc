#include "treadle/tensor/nn/module_state.h"

#include <torch/utils.h>

#include <sstream>

#include "treadle/core/base/error.h"
#include "treadle/tensor/nn/remote_child.h"

namespace treadle {
namespace {

std::string shapeOf(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

std::string layoutOf(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.layout() << (tensor.is_meta() ? " without values" : "");
  return text.str();
}

Status check(const ModuleState& own, const ModuleState& state) {
  for (const auto& [name, tensor] : own) {
    auto found = state.find(name);
    if (found == state.end()) return invalidArgument("the state has no '" + name + "', which the module has");
    if (!found->second.defined() || found->second.sizes() != tensor.sizes())
      return invalidArgument("'" + name + "' of the state is " +
                             (found->second.defined() ? "of shape " + shapeOf(found->second) : "no tensor") +
                             ", and of the module of shape " + shapeOf(tensor));
    if (found->second.layout() != tensor.layout() || found->second.is_meta())
      return invalidArgument("'" + name + "' of the state is of layout " + layoutOf(found->second) +
                             ", and of the module of layout " + layoutOf(tensor));
  }
  for (const auto& [name, tensor] : state)
    if (!own.contains(name)) return invalidArgument("the module has no '" + name + "', which the state has");
  return {};
}

// The prefix is the path to `module`, with a dot at its end.
void collect(const torch::nn::Module& module, const std::string& prefix, ModuleState& state) {
  for (const auto& tensors : {module.named_parameters(false), module.named_buffers(false)})
    for (const auto& one : tensors)
      if (one.value().defined()) state[prefix + one.key()] = one.value().detach();
  if (const auto* remote = dynamic_cast<const nn::RemoteChild*>(&module))
    for (auto& [name, tensor] : remote->state()) state[prefix + name] = tensor;
  for (const auto& child : module.named_children()) collect(*child.value(), prefix + child.key() + ".", state);
}

ModuleState below(const std::string& prefix, const ModuleState& state) {
  ModuleState part;
  for (auto one = state.lower_bound(prefix); one != state.end() && one->first.starts_with(prefix); ++one)
    part.emplace(one->first.substr(prefix.size()), one->second);
  return part;
}

void put(torch::nn::Module& module, const std::string& prefix, const ModuleState& state) {
  for (const auto& tensors : {module.named_parameters(false), module.named_buffers(false)})
    for (const auto& one : tensors)
      if (one.value().defined()) one.value().detach().copy_(state.at(prefix + one.key()));
  if (auto* remote = dynamic_cast<nn::RemoteChild*>(&module)) remote->load(below(prefix, state));
  for (const auto& child : module.named_children()) put(*child.value(), prefix + child.key() + ".", state);
}

}  // namespace

ModuleState stateOf(const torch::nn::Module& module) {
  ModuleState state;
  collect(module, "", state);
  return state;
}

void loadState(torch::nn::Module& module, const ModuleState& state) {
  throwIfError(check(stateOf(module), state));
  torch::NoGradGuard untracked;
  put(module, "", state);
}

}  // namespace treadle
