#pragma once
// Steps parameters wherever they live, each on its owner, with the gradients of an autograd context. It keeps one
// optimizer object per parameter at the owners; two DistributedOptimizers over one parameter have a state each
// (momentum, Adam's moments) and their steps exclude each other. Any thread, one step at a time.

#include "treadle/tensor/autograd/autograd_context.h"
#include "treadle/tensor/optim/optimizer_functions.h"

namespace treadle {

class DistributedOptimizer {
 public:
  // `Optimizer` was added on the owners; SGD and Adam come with treadle::join. Throws ArgumentError without
  // parameters, NotFoundError when an owner lacks the optimizer, or what making it threw.
  template <class Optimizer, class Options>
  static DistributedOptimizer make(Worker& worker, std::vector<RRef<at::Tensor>> parameters, Options options) {
    DistributedOptimizer made(worker);
    for (auto& [rank, group] : byOwner(parameters))
      made.parts_.push_back(worker.remote<&optim::makePart<Optimizer, Options>>(rank, group, options));
    made.checkMade();
    return made;
  }

  // Steps all parameters that have a gradient in `context`; returns when all owners have. Throws the first failure.
  void step(const AutogradContext& context);
  Future<void> stepAsync(const AutogradContext& context) { return whenAll(startSteps(context)); }

 private:
  explicit DistributedOptimizer(Worker& worker) : worker_(&worker) {}
  static std::map<int, std::vector<RRef<at::Tensor>>> byOwner(const std::vector<RRef<at::Tensor>>& parameters);
  void checkMade() const;
  std::vector<Future<void>> startSteps(const AutogradContext& context);

  Worker* worker_;
  std::vector<RRef<optim::Part>> parts_;  // one per owner
};

// References to the parameters of a module of this worker, for DistributedOptimizer.
std::vector<RRef<at::Tensor>> parameterRefs(Worker& worker, torch::nn::Module& module);

}  // namespace treadle
