#pragma once
// What owners of parameters run for distributed optimizers, as remote functions: one that makes a Part, per
// optimizer class, and the step of a Part. A Part belongs to the references to it, which the
// DistributedOptimizer holds; its functions run on the owner's pool.

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
  // With the gradients that the context has on this worker; nothing happens when the context never came here.
  // As a handler, and straight, for the worker that steps its own part. NotFoundError when the context has
  // ended.
  void step(Call& call, int64_t contextId);
  void stepHere(Worker& worker, int64_t contextId);

 private:
  std::shared_ptr<ParameterOptimizers> optimizers_;
};

// The locks of the worker's parameters.
ParameterLocks& locksOf(Worker& worker);
std::any makeWorkerState();

// The values of references to parameters of this worker. ArgumentError for one that is not a leaf with
// gradients.
std::vector<at::Tensor> localParameters(const std::vector<RRef<at::Tensor>>& references);

// The handler that makes a part. One optimizer object per parameter: each then steps under the lock of its
// own parameter, and one without a gradient costs nothing.
template <class Optimizer, class Options>
Part makePart(Call& call, const std::vector<RRef<at::Tensor>>& parameters, const Options& options) {
  ParameterOptimizers::Make make = [&](std::vector<at::Tensor> aliases) {
    return std::make_unique<Optimizer>(std::move(aliases), options);
  };
  return Part(std::make_shared<ParameterOptimizers>(locksOf(call.worker()), localParameters(parameters), make));
}

// libtorch's SGD and Adam, and the step.
Functions optimizerFunctions();

}  // namespace optim

// Makes an optimizer class usable on this worker's parameters, and its name known for use on others.
// `Optimizer` is made from (std::vector<at::Tensor>, Options) and is a torch::optim::Optimizer whose step()
// needs no closure; `Options` needs a codec (rpc/codec.h: TREADLE_FIELDS will do). ArgumentError when the
// name is taken.
template <class Optimizer, class Options>
Functions& addOptimizer(Functions& functions, std::string name) {
  return functions.add<&optim::makePart<Optimizer, Options>>(std::move(name));
}

}  // namespace treadle
