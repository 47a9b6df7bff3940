#pragma once
// The interface of a local module that stands for a module on another worker. Functions over a module and all modules
// in it use it to find remote tensors. RemoteSubmodule implements it. Functions without state; the module must not
// change meanwhile. They wait for the owners, within the time limits of calls.

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

// The buffers of a local module and of all modules in it, as for parameterRefs.
std::vector<RRef<at::Tensor>> bufferRefs(Worker& worker, torch::nn::Module& module);

// The handler that the owner of these references runs: for each tensor among their values the place of the first
// reference to it, in order. StateError for a reference of another owner.
std::vector<int64_t> firstOfEachTensor(const std::vector<RRef<at::Tensor>>& references);
// Such an answer about so many references (at least one), or DataError: a peer sent it.
std::vector<int64_t> checkedFirsts(std::vector<int64_t> first, size_t references);
Functions moduleFunctions();  // that every worker with tensors offers: treadle.nn.*

}  // namespace nn

// References to the parameters of a local module and of all modules in it, in the order of Module::parameters(), for
// DistributedOptimizer. The parameters of a RemoteSubmodule appear in its place and belong to its owner; where the
// remote module itself has such submodules, theirs belong to their owners. Each parameter appears once, where it comes
// first, also when several remote modules hold it. Throws what calls throw.
std::vector<RRef<at::Tensor>> parameterRefs(Worker& worker, torch::nn::Module& module);

}  // namespace treadle
