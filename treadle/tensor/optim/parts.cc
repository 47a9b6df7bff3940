#include "treadle/tensor/optim/parts.h"

namespace treadle::optim {

std::map<int, Share> sharesOf(const std::vector<std::vector<RRef<at::Tensor>>>& groups) {
  std::map<int, Share> shares;
  int64_t number = 0;
  for (size_t group = 0; group < groups.size(); ++group)
    for (const RRef<at::Tensor>& parameter : groups[group]) {
      Share& share = shares[parameter.owner().rank];
      share.parameters.push_back(parameter);
      share.places.push_back({number++, static_cast<int64_t>(group)});
    }
  if (shares.empty()) raise(invalidArgument("an optimizer needs at least one parameter"));
  return shares;
}

std::vector<double> byNumber(const std::vector<PowersOfOwner>& answers) {
  size_t parameters = 0;
  for (const PowersOfOwner& answer : answers) parameters += answer.places.size();
  std::vector<double> powers(parameters);
  for (const PowersOfOwner& answer : answers) {
    if (answer.powers.size() != answer.places.size())
      raise(dataLoss("an owner of parameters has not sent one power for each"));
    for (size_t index = 0; index < answer.places.size(); ++index)
      powers[static_cast<size_t>(answer.places[index].number)] = answer.powers[index];
  }
  return powers;
}

void waitForAll(const std::vector<Future<void>>& futures) {
  Status failure;
  for (Future<void> future : futures) {
    try {
      future.wait();
    } catch (const Error& error) {
      if (failure.ok()) failure = error.status();
    }
  }
  throwIfError(std::move(failure));
}

torch::optim::OptimizerOptions& optionsOf(torch::optim::Optimizer& groups, size_t group) {
  if (group >= groups.param_groups().size())
    raise(invalidArgument("this optimizer has no parameter group " + std::to_string(group) + ", but " +
                          std::to_string(groups.param_groups().size()) + " groups, from 0"));
  return groups.param_groups()[group].options();
}

void raiseOtherOptions(const std::type_info& wanted, const torch::optim::OptimizerOptions& found) {
  raise(invalidArgument("the options of this optimizer are " + demangled(typeid(found).name()) + ", not " +
                        demangled(wanted.name())));
}

}  // namespace treadle::optim
