#pragma once
// The parameter groups of a distributed optimizer with their options, as a libtorch optimizer without parameters.
// libtorch's schedulers accept it, and each step sends its options to the owners. The DistributedOptimizer owns it;
// change options only while no step begins.

#include <torch/optim/optimizer.h>

#include <optional>
#include <vector>

#include "treadle/core/base/error.h"
#include "treadle/core/rpc/rref.h"

namespace treadle {

// Parameters that are stepped with the same options, on any workers. As in libtorch's groups, an option that differs
// from libtorch's default is the group's, and all others are the optimizer's. A group without options uses the
// optimizer's.
template <class Options>
struct ParameterGroup {
  ParameterGroup(std::vector<RRef<at::Tensor>> parameters, std::optional<Options> options = {})
      : parameters(std::move(parameters)), options(std::move(options)) {}

  std::vector<RRef<at::Tensor>> parameters;
  std::optional<Options> options;
};

namespace optim {

class ParameterGroups final : public torch::optim::Optimizer {
 public:
  // libtorch merges the groups' options with `defaults`.
  template <class Options>
  ParameterGroups(const std::vector<ParameterGroup<Options>>& groups, const Options& defaults)
      : Optimizer(std::vector<torch::optim::OptimizerParamGroup>(), std::make_unique<Options>(defaults)) {
    for (const ParameterGroup<Options>& group : groups) {
      torch::optim::OptimizerParamGroup empty({});
      if (group.options) empty.set_options(std::make_unique<Options>(*group.options));
      add_param_group(empty);
    }
  }
  at::Tensor step(LossClosure) override {
    raise(failedPrecondition("these are only the options of a DistributedOptimizer; step that"));
  }
};

// ArgumentError for a group that does not exist, or that has other options.
torch::optim::OptimizerOptions& optionsOf(torch::optim::Optimizer& groups, size_t group);
[[noreturn]] void raiseOtherOptions(const std::type_info& wanted, const torch::optim::OptimizerOptions& found);

template <class Options>
Options& optionsOf(torch::optim::Optimizer& groups, size_t group) {
  torch::optim::OptimizerOptions& found = optionsOf(groups, group);
  auto* options = dynamic_cast<Options*>(&found);
  if (options == nullptr) raiseOtherOptions(typeid(Options), found);
  return *options;
}

// The options of all groups.
template <class Options>
std::vector<Options> optionsOf(const torch::optim::Optimizer& groups) {
  std::vector<Options> options;
  for (const torch::optim::OptimizerParamGroup& group : groups.param_groups())
    options.push_back(dynamic_cast<const Options&>(group.options()));
  return options;
}

}  // namespace optim

}  // namespace treadle
