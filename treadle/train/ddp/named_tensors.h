#pragma once
// The tensors of a module with all their names. A tensor that several modules share has several names and is listed
// once. Functions without state; the module must not change meanwhile.

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace treadle::ddp {

struct NamedTensor {
  std::string name;   // the first one
  std::string names;  // "'output.weight'", or "'embedding.weight' (also 'output.weight')" if it is shared
  at::Tensor tensor;
};

// Those of `module` and its submodules, in the order of their first names.
std::vector<NamedTensor> parametersOf(const torch::nn::Module& module);
// Likewise, without those that are parameters too.
std::vector<NamedTensor> buffersOf(const torch::nn::Module& module);

}  // namespace treadle::ddp
