#pragma once
// Steps parameters wherever they live, each on its owner, with the gradients of an autograd context. It keeps
// one optimizer object per parameter at the owners; two DistributedOptimizers over one parameter have a state
// each (momentum, Adam's moments) and their steps exclude each other. Any thread, one step at a time.
//
// The arithmetic is libtorch's: torch::optim::SGD, and torch::optim::Adam (Kingma & Ba 2015, Algorithm 1,
// with weight decay added to the gradient and the AMSGrad variant as options). `make` keeps the owners' part
// alive as long as the DistributedOptimizer lives; the worker must outlive it.

#include "treadle/tensor/autograd/autograd_context.h"
#include "treadle/tensor/optim/optimizer_functions.h"

namespace treadle {

class DistributedOptimizer {
 public:
  // `Optimizer` was added on the owners; SGD and Adam come with treadle::join. `parameters` are leaves that
  // require gradients, on any workers; all get the same `options`. Returns when every owner has made its
  // part. Throws ArgumentError without parameters, NotFoundError when an owner lacks the optimizer,
  // ArgumentError for a tensor that is no such leaf, PeerLostError, or RemoteError with what making it threw.
  template <class Optimizer, class Options>
  static DistributedOptimizer make(Worker& worker, std::vector<RRef<at::Tensor>> parameters, Options options) {
    DistributedOptimizer made(worker);
    for (auto& [rank, group] : byOwner(parameters))
      made.parts_.push_back(worker.remote<&optim::makePart<Optimizer, Options>>(rank, group, options));
    made.checkMade();
    return made;
  }

  // Steps all parameters that have a gradient in `context`; returns when all owners have. A parameter without
  // one stays as it is, its state too. The gradients stay in the context: a second step takes the same ones
  // again. Throws the first failure, after which some owners may have stepped and others not; NotFoundError
  // when the context has ended.
  void step(const AutogradContext& context);
  Future<void> stepAsync(const AutogradContext& context) { return whenAll(startSteps(context)); }

 private:
  explicit DistributedOptimizer(Worker& worker) : worker_(&worker) {}
  static std::map<int, std::vector<RRef<at::Tensor>>> byOwner(const std::vector<RRef<at::Tensor>>& parameters);
  void checkMade() const;
  std::vector<Future<void>> startSteps(const AutogradContext& context);
  Future<void> stepHere(const RRef<optim::Part>& part, const AutogradContext& context);

  Worker* worker_;
  std::vector<RRef<optim::Part>> parts_;  // one per owner
};

// References to the parameters of a module of this worker, in the order of Module::parameters(), for
// DistributedOptimizer. Submodules that are RemoteModules are not among them: add their remoteParameters().
std::vector<RRef<at::Tensor>> parameterRefs(Worker& worker, torch::nn::Module& module);

}  // namespace treadle
