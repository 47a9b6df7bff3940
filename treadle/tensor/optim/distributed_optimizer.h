#pragma once
// Steps parameters on their owners, on any worker, with the gradients of an autograd context. The owners keep one
// optimizer object per parameter. Two DistributedOptimizers over one parameter have separate states (momentum, Adam's
// moments), and their steps exclude each other. Any thread, one step at a time.
//
// The arithmetic is libtorch's, with all its options: torch::optim::SGD, Adam, AdamW, Adagrad and RMSprop. This object
// holds the options of each parameter group and sends them with each step, so a new learning rate needs no message of
// its own.
//
// It is a handle: copies mean the same optimizer, and its parts on the owners live as long as the last copy. The worker
// must outlive it.

#include "treadle/tensor/autograd/autograd_context.h"
#include "treadle/tensor/optim/clip_grad_norm.h"
#include "treadle/tensor/optim/optimizer_functions.h"
#include "treadle/tensor/optim/parts.h"

namespace treadle {

// The state and options of an optimizer, by names like those of PyTorch's state_dict: "state.3.exp_avg" of parameter 3,
// "param_groups.0.lr" of group 0. The value travels, and saveSafetensors writes it; numbers are tensors of one element.
// Parameters are numbered in the order in which `make` got them.
using OptimizerState = optim::NamedTensors;

class DistributedOptimizer {
 public:
  // `Optimizer` must be added on the owners; treadle::join adds libtorch's. `parameters` are leaves that require
  // gradients, on any workers; all get the same `options`. Returns when every owner has made its part. Throws
  // ArgumentError without parameters, for a tensor that is no such leaf, and for LBFGS, whose step evaluates the model
  // several times; NotFoundError when an owner lacks the optimizer; PeerLostError; RemoteError when making it threw.
  template <class Optimizer, class Options>
  static DistributedOptimizer make(Worker& worker, std::vector<RRef<at::Tensor>> parameters, Options options) {
    return makeOf<Optimizer, Options>(worker, {{std::move(parameters), {}}}, options);
  }
  // The same with options by group: {{first, SGDOptions(0.1)}, {second}}. Options that a group does not set are those
  // of `defaults`.
  template <class Optimizer, class Options>
  static DistributedOptimizer make(Worker& worker,
                                   const std::type_identity_t<std::vector<ParameterGroup<Options>>>& groups,
                                   Options defaults) {
    return makeOf<Optimizer, Options>(worker, groups, defaults);
  }

  // Steps all parameters that have a gradient in `context`; returns when all owners have. A parameter without a
  // gradient keeps its value and its state. The gradients stay in the context: a second step uses them again. Throws
  // the first failure, after which some owners may have stepped and others not; before any steps, NotFoundError when
  // the context has ended, and the failure of its pass when one has failed; StateError when Module::to has moved a
  // parameter to other memory.
  // stepAsync throws at once what was there before any step.
  void step(const AutogradContext& context) { optim::waitForAll(startSteps(context.id())); }
  Future<void> stepAsync(const AutogradContext& context) { return whenAll(startSteps(context.id())); }
  // Steps with the worker's context that is current on this thread, also in a handler called within one with
  // gradients on. StateError when there is none.
  void step() { optim::waitForAll(startSteps(currentContext())); }
  Future<void> stepAsync() { return whenAll(startSteps(currentContext())); }

  // Clips the gradients that `context` has of these parameters, on all workers, by the norm of all together, as the
  // function clipGradNorm does those in `.grad` (clip_grad_norm.h, which also says what is thrown). Returns the norm
  // before. Call it between `backward` and `step`. Each owner sends a float64 per parameter; they are added in the
  // order of the parameters' numbers, so the norm has the same bits wherever they live. Gradients of other parameters
  // in the context are neither counted nor scaled. Also throws what `step` throws. If an owner fails before anything is
  // scaled, nothing changes; after that, the gradients of some owners may be scaled and others not.
  //
  // Where each rank of a DistributedDataParallel has a context of its own, ranks would get different factors and the
  // replicas would drift apart: call the function clipGradNorm of <treadle/ddp.h>. In one context over several
  // replicas, each gradient is there once per replica: name all but one in ClipOptions::notCounted.
  double clipGradNorm(const AutogradContext& context, double maxNorm, const ClipOptions& options = {});
  // The two halves of clipping. `gradientPowers`: of the gradient of each parameter, by number, the sum of |x| (norm
  // 1), the sum of x^2 (norm 2) or the largest |x| (norm infinity), in float64; 0 without a gradient. `scaleGradients`
  // multiplies all of them.
  std::vector<double> gradientPowers(const AutogradContext& context, double normType) const;
  void scaleGradients(const AutogradContext& context, double factor);
  // For a loss scale (GradScaler of <treadle/amp.h>): multiplies all of them and returns whether all are finite then.
  // ArgumentError for gradients of float16; no gradient of their owner changes.
  bool unscaleGradients(const AutogradContext& context, double factor);
  // The numbers of those of these tensors that are parameters of this optimizer on this worker.
  std::vector<size_t> numbersOf(const std::vector<at::Tensor>& tensors) const;

  // The options of the groups; changes apply from the next step on. They have the form of a libtorch optimizer without
  // parameters, for schedulers: torch::optim::StepLR schedule(optimizer.groups(), 10, 0.5).
  torch::optim::Optimizer& groups() { return *groups_; }
  // The options of one group: optimizer.options<torch::optim::SGDOptions>().momentum(0.5). ArgumentError for a group
  // that does not exist, and for options of another optimizer.
  template <class Options>
  Options& options(size_t group = 0) {
    return optim::optionsOf<Options>(*groups_, group);
  }
  double learningRate(size_t group = 0) const { return optim::optionsOf(*groups_, group).get_lr(); }
  void setLearningRate(double rate);  // of all groups

  // A copy of the state of all parameters, and of the options. An optimizer that loads it steps as this one would.
  // Throws what calls throw; StateError for an optimizer whose fields have no names (addOptimizer).
  OptimizerState state() const;
  // Continues from `state` of an optimizer of the same class, with the same number of parameters and groups; loads its
  // options too. ArgumentError for a missing or unknown name, and for another shape; StateError for an optimizer whose
  // fields have no names (addOptimizer). An owner that rejects its part keeps its old state, and this object keeps its
  // old options; other owners may have loaded their parts.
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
