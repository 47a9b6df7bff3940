#pragma once
// The parts of one distributed optimizer on all owners, as the worker sees them that made it. They live as long as the
// DistributedOptimizer does. Any thread, one call at a time.

#include <algorithm>
#include <functional>

#include "treadle/tensor/optim/parameter_groups.h"
#include "treadle/tensor/optim/part.h"

namespace treadle::optim {

// What one owner has of the parameters.
struct Share {
  std::vector<RRef<at::Tensor>> parameters;
  std::vector<Place> places;
};
// By the owners' ranks. ArgumentError when there is no parameter at all.
std::map<int, Share> sharesOf(const std::vector<std::vector<RRef<at::Tensor>>>& groups);

class Parts {
 public:
  virtual ~Parts() = default;
  // With the options that `groups` have now.
  virtual std::vector<Future<void>> startSteps(int64_t contextId, const torch::optim::Optimizer& groups) = 0;
  virtual size_t size() const = 0;                                      // parameters
  virtual std::vector<std::pair<at::Tensor, size_t>> here() const = 0;  // those of this worker, with their numbers
  // By the number of the parameter, 0 where the context has no gradient.
  virtual std::vector<double> gradientPowers(int64_t contextId, double normType) = 0;
  virtual void scaleGradients(int64_t contextId, double factor) = 0;
  virtual bool unscaleGradients(int64_t contextId, double factor) = 0;
  virtual NamedTensors state(const torch::optim::Optimizer& groups) = 0;
  // Sets the options of `groups` too, when all owners have loaded.
  virtual void load(const NamedTensors& state, torch::optim::Optimizer& groups) = 0;
};

// The powers of one owner's gradients, in the order of its places.
struct PowersOfOwner {
  std::vector<Place> places;
  std::vector<double> powers;
};
// Those of all owners. DataError when an owner has answered with another number of them.
std::vector<double> byNumber(const std::vector<PowersOfOwner>& answers);

// Waits for each by itself: the waiting thread then reads the answer from the socket. Throws the first failure when all
// have ended.
void waitForAll(const std::vector<Future<void>>& futures);

// The same for calls that return something.
template <class T>
std::vector<T> waitForValues(std::vector<Future<T>>& futures) {
  std::vector<T> values;
  Status failure;
  for (Future<T>& future : futures) {
    try {
      values.push_back(future.wait());
    } catch (const Error& error) {
      if (failure.ok()) failure = error.status();
    }
  }
  throwIfError(std::move(failure));
  return values;
}

template <class Optimizer, class Options>
class PartsOf final : public Parts {
 public:
  using OnOwner = Part<Optimizer, Options>;

  // Returns when all owners have made theirs: a failure should show here and not at the first step.
  PartsOf(Worker& worker, const std::map<int, Share>& shares, const torch::optim::Optimizer& groups) : worker_(worker) {
    const std::vector<Options> options = optionsOf<Options>(groups);
    for (const auto& [rank, share] : shares)
      parts_.push_back(
          {worker.remote<&makePart<Optimizer, Options>>(rank, share.parameters, share.places, options), share.places});
    for (const OfOwner& one : parts_) one.part.waitUntilReady();
  }

  std::vector<Future<void>> startSteps(int64_t contextId, const torch::optim::Optimizer& groups) override {
    const std::vector<Options> options = optionsOf<Options>(groups);
    std::vector<Future<void>> steps;
    for (const OfOwner& one : parts_)
      if (!one.part.isOwner()) steps.push_back(one.part.template async<&OnOwner::step>(contextId, options));
    // This worker's own part needs no message; it steps while the others do.
    for (const OfOwner& one : parts_)
      if (one.part.isOwner()) steps.push_back(stepHere(one.part, contextId, options));
    return steps;
  }

  size_t size() const override {
    size_t parameters = 0;
    for (const OfOwner& one : parts_) parameters += one.places.size();
    return parameters;
  }

  std::vector<std::pair<at::Tensor, size_t>> here() const override {
    std::vector<std::pair<at::Tensor, size_t>> here;
    for (const OfOwner& one : parts_) {
      if (!one.part.isOwner()) continue;
      const std::vector<at::Tensor> parameters = one.part.localValue().parameters();
      for (size_t index = 0; index < parameters.size(); ++index)
        here.emplace_back(parameters[index], static_cast<size_t>(one.places[index].number));
    }
    return here;
  }

  std::vector<double> gradientPowers(int64_t contextId, double normType) override {
    std::vector<Future<std::vector<double>>> asked;
    for (const OfOwner& one : parts_)
      asked.push_back(one.part.template async<&OnOwner::gradientPowers>(contextId, normType));
    const std::vector<std::vector<double>> powers = waitForValues(asked);
    std::vector<PowersOfOwner> answers;
    for (size_t i = 0; i < parts_.size(); ++i) answers.push_back({parts_[i].places, powers[i]});
    return byNumber(answers);
  }

  void scaleGradients(int64_t contextId, double factor) override {
    std::vector<Future<void>> scaled;
    for (const OfOwner& one : parts_)
      scaled.push_back(one.part.template async<&OnOwner::scaleGradients>(contextId, factor));
    waitForAll(scaled);
  }

  bool unscaleGradients(int64_t contextId, double factor) override {
    std::vector<Future<bool>> unscaled;
    for (const OfOwner& one : parts_)
      unscaled.push_back(one.part.template async<&OnOwner::unscaleGradients>(contextId, factor));
    const std::vector<bool> finite = waitForValues(unscaled);
    return std::ranges::all_of(finite, std::identity());
  }

  NamedTensors state(const torch::optim::Optimizer& groups) override {
    NamedTensors named;
    if constexpr (kCanBeSaved<Optimizer, Options>) {
      const std::vector<Options> options = optionsOf<Options>(groups);
      for (size_t group = 0; group < options.size(); ++group) saveOptions(options[group], groupPrefix(group), named);
      std::vector<Future<NamedTensors>> states;
      for (const OfOwner& one : parts_) states.push_back(one.part.template async<&OnOwner::state>());
      for (Future<NamedTensors>& state : states) named.merge(state.wait());
    } else {
      raise(withoutNames(demangled(typeid(Optimizer).name())));
    }
    return named;
  }

  void load(const NamedTensors& state, torch::optim::Optimizer& groups) override {
    if constexpr (kCanBeSaved<Optimizer, Options>) {
      NamedTensors rest = state;
      std::vector<Options> options;
      for (size_t group = 0; group < groups.param_groups().size(); ++group)
        options.push_back(takeOptions<Options>(groupPrefix(group), rest));
      std::vector<NamedTensors> shares;
      for (const OfOwner& one : parts_) shares.push_back(takeShare(one.places, rest));
      refuseRest(rest);
      std::vector<Future<void>> loads;
      for (size_t i = 0; i < parts_.size(); ++i)
        loads.push_back(parts_[i].part.template async<&OnOwner::load>(options, shares[i]));
      waitForAll(loads);
      for (size_t group = 0; group < options.size(); ++group)
        dynamic_cast<Options&>(groups.param_groups()[group].options()) = options[group];
    } else {
      raise(withoutNames(demangled(typeid(Optimizer).name())));
    }
  }

 private:
  struct OfOwner {
    RRef<OnOwner> part;
    std::vector<Place> places;
  };

  // A failure is told like that of the others, which step all the same.
  Future<void> stepHere(const RRef<OnOwner>& part, int64_t contextId, const std::vector<Options>& options) {
    Promise<void> promise;
    Future<void> done = promise.future();
    try {
      part.localValue().stepHere(worker_, contextId, options);
      promise.set();
    } catch (...) {
      promise.fail(statusOfCurrentException("a step of the optimizer"));
    }
    return done;
  }

  static NamedTensors takeShare(const std::vector<Place>& places, NamedTensors& rest) {
    NamedTensors share;
    for (const Place& place : places)
      for (auto& [name, tensor] : withPrefix(rest, statePrefix(place.number))) {
        rest.erase(name);
        share.emplace(name, tensor);
      }
    return share;
  }

  Worker& worker_;
  std::vector<OfOwner> parts_;
};

}  // namespace treadle::optim
