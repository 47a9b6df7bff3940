#pragma once
// A module of this worker that stands for one on another: how functions over a module and all modules in it find what
// is elsewhere. RemoteSubmodule is one. Functions without state, for a module that nobody changes meanwhile; they wait
// for the owners, with the time limits of calls.

#include <torch/nn/module.h>

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/bridge/tensor_codec.h"
#include "treadle/tensor/nn/module_state.h"

namespace treadle {

namespace nn {

class RemoteChild {
 public:
  virtual ~RemoteChild() = default;
  virtual std::vector<RRef<at::Tensor>> remoteParameters() const = 0;
  virtual std::vector<RRef<at::Tensor>> remoteBuffers() const = 0;
  virtual ModuleState state() const = 0;
  virtual void load(const ModuleState& state) = 0;
};

// The buffers of a module of this worker and of all modules in it, as parameterRefs.
std::vector<RRef<at::Tensor>> bufferRefs(Worker& worker, torch::nn::Module& module);

}  // namespace nn

// References to the parameters of a module of this worker and of all modules in it, in the order of
// Module::parameters(), for DistributedOptimizer. Those of a RemoteSubmodule come in its place and belong to its owner,
// or, where that module has such submodules itself, to theirs. Throws what calls throw.
std::vector<RRef<at::Tensor>> parameterRefs(Worker& worker, torch::nn::Module& module);

}  // namespace treadle
