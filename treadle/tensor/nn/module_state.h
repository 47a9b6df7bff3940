#pragma once
// The tensors of a module and of all modules in it, by name. This value travels like any map, treadle::saveSafetensors
// saves it, and its names are those of PyTorch's state_dict ("encoder.layer0.weight"). Functions without state; the
// module must not change meanwhile.
//
// The tensors behind a RemoteSubmodule are included: they are fetched from their owner, and loaded there. Then both
// functions wait, and throw what calls throw.

#include <torch/nn/module.h>

#include <map>
#include <string>

namespace treadle {

// Parameters and buffers. Undefined ones, such as the bias of a layer without bias, are left out.
using ModuleState = std::map<std::string, at::Tensor>;

// The module's own tensors are detached and not copied: they follow its changes until they are sent. Tensors of other
// workers are copies.
ModuleState stateOf(const torch::nn::Module& module);

// Copies `state` into the module's tensors and converts elements to their types. ArgumentError for a missing or unknown
// name and for another shape or layout; it gives the name, and nothing is changed. If an owner is lost meanwhile, the
// module may be half loaded.
void loadState(torch::nn::Module& module, const ModuleState& state);

}  // namespace treadle
