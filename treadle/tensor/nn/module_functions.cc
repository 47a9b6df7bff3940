#include "treadle/tensor/nn/module_functions.h"

namespace treadle::nn {

// Of integers none could require a gradient; and the type comes from a peer.
void convertModule(torch::nn::Module& module, at::ScalarType type) {
  if (!at::isFloatingType(type) && !at::isComplexType(type))
    raise(invalidArgument("a module can be converted to floating and complex types only"));
  module.to(type);
}

}  // namespace treadle::nn
