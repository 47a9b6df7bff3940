#pragma once
// A distributed optimizer's part on one worker: the optimizers of the parameters that live there, and the remote
// functions that make, step, save and load it. It belongs to the references to it, which the DistributedOptimizer
// holds; its functions run on the owner's pool.

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/bridge/tensor_codec.h"
#include "treadle/tensor/optim/parameter_optimizers.h"
#include "treadle/tensor/optim/state_fields.h"

namespace treadle::optim {

// Where a parameter stands in the whole optimizer: its number among all, in the order in which they were given, and
// its group.
struct Place {
  int64_t number = 0, group = 0;
};
TREADLE_FIELDS(Place, number, group)

// The locks of the worker's parameters.
ParameterLocks& locksOf(Worker& worker);
std::any makeWorkerState();

// The values of references to parameters of this worker. ArgumentError for one that is not a leaf with
// gradients, and for one that is there twice: it would be stepped twice.
std::vector<at::Tensor> localParameters(const std::vector<RRef<at::Tensor>>& references);

// Steps with the gradients that the context has on this worker; nothing happens when the context never came here.
// NotFoundError when it has ended.
void stepIn(Worker& worker, int64_t contextId, ParameterOptimizers& optimizers, ParameterOptimizers::Visit& beforeEach);

// The powers of the gradients that the context has of these parameters (gradient_power.h), by index; 0 where it has
// none. And: multiplies those gradients. Contexts as above.
std::vector<double> gradientPowersIn(Worker& worker, int64_t contextId, const std::vector<at::Tensor>& parameters,
                                     double normType);
void scaleGradientsIn(Worker& worker, int64_t contextId, const std::vector<at::Tensor>& parameters, double factor);
// Multiplies them and returns whether all are finite then. ArgumentError, before any is changed:
// optim::checkUnscalable.
bool unscaleGradientsIn(Worker& worker, int64_t contextId, const std::vector<at::Tensor>& parameters, double factor);

// DataError for places that cannot be meant: a peer sent them.
void checkPlaces(const std::vector<Place>& places, size_t parameters, size_t groups);
void checkGroups(size_t given, size_t groups);
Status withoutNames(const std::string& optimizer);

template <class Optimizer, class Options>
class Part {
 public:
  Part(std::shared_ptr<ParameterOptimizers> optimizers, std::vector<Place> places, size_t groups)
      : optimizers_(std::move(optimizers)), places_(std::move(places)), groups_(groups) {}

  // With these options of the groups. As a handler, and straight, for the worker that steps its own part.
  void step(CallContext& call, int64_t contextId, const std::vector<Options>& groups) {
    stepHere(call.worker(), contextId, groups);
  }
  void stepHere(Worker& worker, int64_t contextId, const std::vector<Options>& groups) {
    checkGroups(groups.size(), groups_);
    ParameterOptimizers::Visit setOptions = [&](size_t index, torch::optim::Optimizer& optimizer) {
      dynamic_cast<Options&>(optimizer.param_groups().at(0).options()) = groups[groupOf(index)];
    };
    stepIn(worker, contextId, *optimizers_, setOptions);
  }

  std::vector<at::Tensor> parameters() const { return optimizers_->parameters(); }

  // For clipping: the power of each parameter's gradient in the context, and a factor for all of them.
  std::vector<double> gradientPowers(CallContext& call, int64_t contextId, double normType) const {
    return gradientPowersIn(call.worker(), contextId, optimizers_->parameters(), normType);
  }
  void scaleGradients(CallContext& call, int64_t contextId, double factor) const {
    scaleGradientsIn(call.worker(), contextId, optimizers_->parameters(), factor);
  }
  // For a loss scale.
  bool unscaleGradients(CallContext& call, int64_t contextId, double factor) const {
    return unscaleGradientsIn(call.worker(), contextId, optimizers_->parameters(), factor);
  }

  // What is kept for each parameter, copied while it is not stepped: "state.NUMBER.FIELD".
  NamedTensors state() const {
    NamedTensors named;
    if constexpr (kCanBeSaved<Optimizer, Options>) {
      ParameterOptimizers::Visit save = [&](size_t index, torch::optim::Optimizer& optimizer) {
        saveState<Optimizer>(optimizer, statePrefix(places_[index].number), named);
      };
      optimizers_->each(save);
    } else {
      raise(withoutNames(demangled(typeid(Optimizer).name())));
    }
    return named;
  }

  // Begins anew with these options and this state, or stays as it is and throws.
  void load(const std::vector<Options>& groups, const NamedTensors& named) {
    checkGroups(groups.size(), groups_);
    if constexpr (kCanBeSaved<Optimizer, Options>) {
      ParameterOptimizers::Make make = [&](std::vector<at::Tensor> aliases, size_t index) {
        auto made = std::make_unique<Optimizer>(std::move(aliases), groups[groupOf(index)]);
        loadState<Optimizer>(*made, groups[groupOf(index)], statePrefix(places_[index].number), named);
        return made;
      };
      optimizers_->replace(make);
    } else {
      raise(withoutNames(demangled(typeid(Optimizer).name())));
    }
  }

 private:
  size_t groupOf(size_t index) const { return static_cast<size_t>(places_[index].group); }

  std::shared_ptr<ParameterOptimizers> optimizers_;
  std::vector<Place> places_;  // of each parameter here
  size_t groups_;
};

// The handler that makes a part. One optimizer object per parameter: each then steps under the lock of its
// own parameter, and one without a gradient costs nothing.
template <class Optimizer, class Options>
Part<Optimizer, Options> makePart(CallContext& call, const std::vector<RRef<at::Tensor>>& parameters,
                                  const std::vector<Place>& places, const std::vector<Options>& groups) {
  checkPlaces(places, parameters.size(), groups.size());
  ParameterOptimizers::Make make = [&](std::vector<at::Tensor> aliases, size_t index) {
    return std::make_unique<Optimizer>(std::move(aliases), groups[static_cast<size_t>(places[index].group)]);
  };
  auto made = std::make_shared<ParameterOptimizers>(locksOf(call.worker()), localParameters(parameters), make);
  return {std::move(made), places, groups.size()};
}

}  // namespace treadle::optim
