#include "treadle/tensor/nn/module_functions.h"

namespace treadle::nn {

std::vector<RRef<at::Tensor>> parametersOf(Worker& worker, torch::nn::Module& module) {
  // `own` takes the tensor itself, which shares its implementation with the module's: a step is seen by
  // forward.
  std::vector<RRef<at::Tensor>> references;
  for (const at::Tensor& parameter : module.parameters()) references.push_back(worker.own(parameter));
  return references;
}

}  // namespace treadle::nn
