#pragma once
// A clone of a module, or another module that was made like it: which tensor of it stands for which of the module's.
// Functions without state; the modules must not change meanwhile.

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace treadle::ddp {

// A parameter or a buffer of a module.
struct ClonedTensor {
  std::string names;  // as in NamedTensor
  at::Tensor tensor;
  // By clone: one, or several where the clone has several tensors for the names of one of the module.
  std::vector<std::vector<at::Tensor>> ofClones = {};
  int64_t version = 0;  // of `tensor`, when the clones' tensors were last made like it
};

struct ModulePair {
  std::shared_ptr<torch::nn::Module> original, clone;
};

using MakeModule = std::function<std::shared_ptr<torch::nn::Module>()>;

// What `make` returns or, if it is empty, module.clone(). ArgumentError: the module cannot be cloned, or what was made
// is nothing or of another class.
std::shared_ptr<torch::nn::Module> cloneOf(const torch::nn::Module& module, const MakeModule& make);

// The module with its clone, then each submodule with its own, those in it after it. ArgumentError: the clone has other
// submodules.
std::vector<ModulePair> pairsOf(const std::shared_ptr<torch::nn::Module>& module,
                                const std::shared_ptr<torch::nn::Module>& clone);

// Adds the clone's tensors to all of `parameters` and `buffers`, which are those of the module. ArgumentError: the
// clone has other ones, or has one tensor where the module has two; or several where the module has one buffer.
void addClone(const std::vector<ModulePair>& pairs, std::vector<ClonedTensor>& parameters,
              std::vector<ClonedTensor>& buffers);

// ArgumentError: a tensor of a clone is one of the module, or of another clone.
void refuseSharedTensors(const std::vector<ClonedTensor>& tensors);

}  // namespace treadle::ddp
