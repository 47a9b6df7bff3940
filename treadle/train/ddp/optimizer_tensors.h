#pragma once
// What an optimizer keeps for each of its parameters (momentum, Adam's moments, numbers of steps), for code that
// averages it over ranks. Owned by a ReplicaMean; used while nobody steps the optimizer, which outlives it.

#include <memory>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "treadle/core/base/error.h"
#include "treadle/tensor/optim/state_fields.h"

namespace treadle::ddp {

class OptimizerTensors {
 public:
  // Of one parameter, field by field. There are as many for each parameter.
  struct Kept {
    std::vector<at::Tensor> tensors;  // of the parameter's shape; undefined: none
    std::vector<int64_t> counts;      // 0: none
  };

  virtual ~OptimizerTensors() = default;

  // The class of the optimizer.
  virtual std::string name() const = 0;
  virtual Kept kept(size_t parameter) const = 0;
  // Takes the tensors over.
  virtual void keep(size_t parameter, Kept kept) = 0;

  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 protected:
  // Those of `all` that are among `averaged`, in the order of the optimizer.
  OptimizerTensors(const std::vector<torch::optim::OptimizerParamGroup>& all, const std::vector<at::Tensor>& averaged) {
    std::unordered_set<const c10::TensorImpl*> isAveraged;
    for (const at::Tensor& one : averaged) isAveraged.insert(one.unsafeGetTensorImpl());
    for (const torch::optim::OptimizerParamGroup& group : all)
      for (const at::Tensor& parameter : group.params())
        if (isAveraged.contains(parameter.unsafeGetTensorImpl())) parameters_.push_back(parameter);
  }

 private:
  std::vector<at::Tensor> parameters_;
};

// Of an optimizer whose fields have names (state_fields.h).
template <class Optimizer>
class OptimizerTensorsOf final : public OptimizerTensors {
 public:
  OptimizerTensorsOf(Optimizer& optimizer, const std::vector<at::Tensor>& averaged)
      : OptimizerTensors(optimizer.param_groups(), averaged), optimizer_(optimizer) {}

  std::string name() const override { return demangled(typeid(Optimizer).name()); }

  Kept kept(size_t parameter) const override {
    Kept kept;
    State blank;
    const auto found = optimizer_.state().find(keyOf(parameter));
    State& state = found == optimizer_.state().end() ? blank : dynamic_cast<State&>(*found->second);
    optim::Fields<State>::each(state, [&](const char*, auto& field, auto...) {
      if constexpr (std::is_same_v<std::decay_t<decltype(field)>, at::Tensor>) {
        kept.tensors.push_back(field);
      } else {
        kept.counts.push_back(field);
      }
    });
    return kept;
  }

  void keep(size_t parameter, Kept kept) override {
    std::unique_ptr<torch::optim::OptimizerParamState>& place = optimizer_.state()[keyOf(parameter)];
    if (!place) place = std::make_unique<State>();
    auto tensor = kept.tensors.begin();
    auto count = kept.counts.begin();
    optim::Fields<State>::each(dynamic_cast<State&>(*place), [&](const char*, auto& field, auto...) {
      if constexpr (std::is_same_v<std::decay_t<decltype(field)>, at::Tensor>) {
        field = std::move(*tensor++);
      } else {
        field = *count++;
      }
    });
  }

 private:
  using State = typename optim::StateOf<Optimizer>::type;

  void* keyOf(size_t parameter) const { return parameters()[parameter].unsafeGetTensorImpl(); }

  Optimizer& optimizer_;
};

}  // namespace treadle::ddp
