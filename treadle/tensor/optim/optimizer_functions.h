#pragma once
// What owners of parameters run for distributed optimizers, as remote functions.

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/bridge/tensor_codec.h"
#include "treadle/tensor/optim/option_codecs.h"
#include "treadle/tensor/optim/parameter_optimizers.h"

namespace treadle {

namespace optim {

// A distributed optimizer's part on one worker.
class Part {
 public:
  explicit Part(std::shared_ptr<ParameterOptimizers> optimizers) : optimizers_(std::move(optimizers)) {}
  // With the gradients that the context has on this worker.
  void step(Call& call, int64_t contextId);
  void stepHere(Worker& worker, int64_t contextId);

 private:
  std::shared_ptr<ParameterOptimizers> optimizers_;
};

// The locks of the worker's parameters.
ParameterLocks& locksOf(Worker& worker);
std::any makeWorkerState();

// The values of references to parameters of this worker. ArgumentError for one that is not a leaf with gradients.
std::vector<at::Tensor> localParameters(const std::vector<RRef<at::Tensor>>& references);

template <class Optimizer, class Options>
Part makePart(Call& call, const std::vector<RRef<at::Tensor>>& parameters, const Options& options) {
  ParameterOptimizers::Make make = [&](std::vector<at::Tensor> aliases) {
    return std::make_unique<Optimizer>(std::move(aliases), options);
  };
  return Part(
      std::make_shared<ParameterOptimizers>(locksOf(call.worker()), localParameters(parameters), make));
}

// libtorch's SGD and Adam, and the step.
Functions optimizerFunctions();

}  // namespace optim

// Makes an optimizer class usable on this worker's parameters; Options needs a codec.
template <class Optimizer, class Options>
Functions& addOptimizer(Functions& functions, std::string name) {
  return functions.add<&optim::makePart<Optimizer, Options>>(std::move(name));
}

}  // namespace treadle
