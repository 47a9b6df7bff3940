#include "treadle/tensor/nn/module_functions.h"

namespace treadle::nn {

std::vector<RRef<at::Tensor>> parametersOf(Worker& worker, torch::nn::Module& module) {
  std::vector<RRef<at::Tensor>> references;
  for (const at::Tensor& parameter : module.parameters()) references.push_back(worker.own(parameter));
  return references;
}

}  // namespace treadle::nn
