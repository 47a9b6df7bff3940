#pragma once
// The tensors of a module and of all modules in it, by name: a value that travels like any map, is saved by
// treadle::saveSafetensors, and has the names of PyTorch's state_dict ("encoder.layer0.weight"). Functions without
// state, for a module that nobody changes meanwhile.
//
// What a RemoteSubmodule stands for is among them: it is fetched from its owner, and loaded there. Then both functions
// wait, and throw what calls throw.

#include <torch/nn/module.h>

#include <map>
#include <string>

namespace treadle {

// Parameters and buffers; one that is not defined (a bias that a layer was told not to have) is left out.
using ModuleState = std::map<std::string, at::Tensor>;

// The module's own tensors, detached and not copied: they follow its changes until they are sent. Those of other
// workers are copies.
ModuleState stateOf(const torch::nn::Module& module);

// Copies `state` into the module's tensors, whose shapes it must have; elements are converted to their types.
// ArgumentError for a name that is missing or unknown or another shape, naming it: then nothing is changed. An owner
// that is lost meanwhile may leave it half loaded.
void loadState(torch::nn::Module& module, const ModuleState& state);

}  // namespace treadle
