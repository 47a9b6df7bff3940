#pragma once
// The functions that owners of parameters run for distributed optimizers, by optimizer class: they make, step, save and
// load a Part. One thread fills the Functions before the worker joins.

#include <torch/optim/lbfgs.h>

#include "treadle/tensor/optim/part.h"

namespace treadle {

namespace optim {

// LBFGS evaluates the model several times in each step, through a closure. Here the model is spread over workers, and
// a step has the gradients of one context.
template <class Optimizer>
inline constexpr bool kNeedsClosure = std::derived_from<Optimizer, torch::optim::LBFGS>;
Status closureRefused();

// libtorch's optimizers except LBFGS.
Functions optimizerFunctions();

}  // namespace optim

// Makes an optimizer class usable on this worker's parameters, and declares its name for use on others: NAME makes one;
// NAME.step, NAME.gradientPowers, NAME.scaleGradients, NAME.unscaleGradients, NAME.state and NAME.load are its
// functions. `Optimizer` is a torch::optim::Optimizer that is made from (std::vector<at::Tensor>, Options) and whose
// step() needs no closure. `Options` is a torch::optim::OptimizerCloneableOptions with a codec (rpc/codec.h:
// TREADLE_FIELDS is enough). State can be saved where the fields have names: specialise optim::StateOf, and
// optim::Fields for the options and the state (state_fields.h; the options then need no other codec). ArgumentError
// when a name is taken.
template <class Optimizer, class Options>
Functions& addOptimizer(Functions& functions, const std::string& name) {
  static_assert(!optim::kNeedsClosure<Optimizer>, "LBFGS evaluates the model several times in each step");
  using Part = optim::Part<Optimizer, Options>;
  functions.add<&optim::makePart<Optimizer, Options>>(name);
  return functions.add<&Part::step>(name + ".step")
      .template add<&Part::gradientPowers>(name + ".gradientPowers")
      .template add<&Part::scaleGradients>(name + ".scaleGradients")
      .template add<&Part::unscaleGradients>(name + ".unscaleGradients")
      .template add<&Part::state>(name + ".state")
      .template add<&Part::load>(name + ".load");
}

}  // namespace treadle
