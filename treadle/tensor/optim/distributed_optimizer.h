#pragma once
// Steps parameters wherever they live, each on its owner, with the gradients of an autograd context. It keeps
// one optimizer object per parameter at the owners; two DistributedOptimizers over one parameter have a state
// each (momentum, Adam's moments) and their steps exclude each other. Any thread, one step at a time.
//
// The arithmetic is libtorch's, with all its options: torch::optim::SGD, Adam, AdamW, Adagrad and RMSprop. The options
// of each parameter group are kept here and go with each step to the owners, so that a learning rate changes without a
// message of its own.
//
// A handle: copies mean the same optimizer, whose parts at the owners live as long as the last of them. The worker must
// outlive it.

#include "treadle/tensor/autograd/autograd_context.h"
#include "treadle/tensor/optim/optimizer_functions.h"
#include "treadle/tensor/optim/parts.h"

namespace treadle {

// What an optimizer keeps, by names like those of PyTorch's state_dict: "state.3.exp_avg" of parameter 3,
// "param_groups.0.lr" of group 0. A value that travels and that saveSafetensors writes; numbers are tensors of one
// element. Parameters are numbered in the order in which `make` was given them.
using OptimizerState = optim::NamedTensors;

class DistributedOptimizer {
 public:
  // `Optimizer` was added on the owners; libtorch's come with treadle::join. `parameters` are leaves that
  // require gradients, on any workers; all get the same `options`. Returns when every owner has made its
  // part. Throws ArgumentError without parameters, NotFoundError when an owner lacks the optimizer,
  // ArgumentError for a tensor that is no such leaf, and for LBFGS, whose step evaluates the model several
  // times, PeerLostError, or RemoteError with what making it threw.
  template <class Optimizer, class Options>
  static DistributedOptimizer make(Worker& worker, std::vector<RRef<at::Tensor>> parameters, Options options) {
    return makeOf<Optimizer, Options>(worker, {{std::move(parameters), {}}}, options);
  }
  // The same with options by group: {{first, SGDOptions(0.1)}, {second}}. What a group does not say is as in
  // `defaults`.
  template <class Optimizer, class Options>
  static DistributedOptimizer make(Worker& worker,
                                   const std::type_identity_t<std::vector<ParameterGroup<Options>>>& groups,
                                   Options defaults) {
    return makeOf<Optimizer, Options>(worker, groups, defaults);
  }

  // Steps all parameters that have a gradient in `context`; returns when all owners have. A parameter without
  // one stays as it is, its state too. The gradients stay in the context: a second step takes the same ones
  // again. Throws the first failure, after which some owners may have stepped and others not; NotFoundError
  // when the context has ended, StateError when Module::to gave a parameter other memory meanwhile.
  void step(const AutogradContext& context) { optim::waitForAll(startSteps(context.id())); }
  Future<void> stepAsync(const AutogradContext& context) { return whenAll(startSteps(context.id())); }
  // With the worker's context that is current on this thread, also in a handler that was called within one.
  // StateError when there is none.
  void step() { optim::waitForAll(startSteps(currentContext())); }
  Future<void> stepAsync() { return whenAll(startSteps(currentContext())); }

  // The options of the groups; whatever is set holds from the next step on. As a libtorch optimizer without
  // parameters, for schedulers: torch::optim::StepLR schedule(optimizer.groups(), 10, 0.5).
  torch::optim::Optimizer& groups() { return *groups_; }
  // Those of one group: optimizer.options<torch::optim::SGDOptions>().momentum(0.5). ArgumentError for a group that
  // there is not, and for options of another optimizer.
  template <class Options>
  Options& options(size_t group = 0) {
    return optim::optionsOf<Options>(*groups_, group);
  }
  double learningRate(size_t group = 0) const { return optim::optionsOf(*groups_, group).get_lr(); }
  void setLearningRate(double rate);  // of all groups

  // A copy of what is kept for all parameters, and of the options. One that goes on with it steps as this one would.
  // Throws what calls throw; StateError for an optimizer whose fields have no names (addOptimizer).
  OptimizerState state() const;
  // Goes on from `state`, of an optimizer of the same class over as many parameters in as many groups; its options come
  // with it. ArgumentError for a name that is missing or unknown, and for another shape. An owner that refuses its part
  // keeps what it has, and then this one its options; other owners may have taken theirs.
  void load(const OptimizerState& state);

 private:
  explicit DistributedOptimizer(Worker& worker) : worker_(&worker) {}
  template <class Optimizer, class Options>
  static DistributedOptimizer makeOf(Worker& worker, const std::vector<ParameterGroup<Options>>& groups,
                                     const Options& defaults) {
    DistributedOptimizer made(worker);
    if constexpr (optim::kNeedsClosure<Optimizer>) {
      raise(optim::closureRefused());
    } else {
      std::vector<std::vector<RRef<at::Tensor>>> parameters;
      for (const ParameterGroup<Options>& group : groups) parameters.push_back(group.parameters);
      auto shares = optim::sharesOf(parameters);
      made.groups_ = std::make_shared<optim::ParameterGroups>(groups, defaults);
      made.parts_ = std::make_shared<optim::PartsOf<Optimizer, Options>>(worker, shares, *made.groups_);
    }
    return made;
  }
  int64_t currentContext() const;
  std::vector<Future<void>> startSteps(int64_t contextId);

  Worker* worker_;
  std::shared_ptr<torch::optim::Optimizer> groups_;
  std::shared_ptr<optim::Parts> parts_;
};

}  // namespace treadle
