#pragma once
// The parameter groups of a distributed optimizer with their options, as libtorch knows them: an optimizer that has no
// parameters. libtorch's schedulers take it, and what it says goes with each step to the owners. Belongs to the
// DistributedOptimizer; whoever changes options does so while no step begins.

#include <torch/optim/optimizer.h>

#include <optional>
#include <vector>

#include "treadle/core/base/error.h"
#include "treadle/core/rpc/rref.h"

namespace treadle {

// Parameters that are stepped with the same options, anywhere in the job. As in libtorch's groups, an option that
// differs from libtorch's default is the group's, and all others are the optimizer's; without options all are.
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

// ArgumentError for a group that there is not, or that has other options.
torch::optim::OptimizerOptions& optionsOf(torch::optim::Optimizer& groups, size_t group);
[[noreturn]] void raiseOtherOptions(const std::type_info& wanted, const torch::optim::OptimizerOptions& found);

template <class Options>
Options& optionsOf(torch::optim::Optimizer& groups, size_t group) {
  torch::optim::OptimizerOptions& found = optionsOf(groups, group);
  auto* options = dynamic_cast<Options*>(&found);
  if (options == nullptr) raiseOtherOptions(typeid(Options), found);
  return *options;
}

// Of all groups.
template <class Options>
std::vector<Options> optionsOf(const torch::optim::Optimizer& groups) {
  std::vector<Options> options;
  for (const torch::optim::OptimizerParamGroup& group : groups.param_groups())
    options.push_back(dynamic_cast<const Options&>(group.options()));
  return options;
}

}  // namespace optim

}  // namespace treadle
