#include "treadle/train/ddp/parameter_list.h"

#include <unordered_map>
#include <utility>

#include "treadle/train/ddp/named_tensors.h"

namespace treadle::ddp {

ParameterList::ParameterList(const torch::nn::Module& module) {
  for (NamedTensor& parameter : parametersOf(module)) {
    const bool isTrained = parameter.tensor.requires_grad();
    if (isTrained) {
      firstNames_.push_back(parameter.name);
      dtypes_.push_back(parameter.tensor.scalar_type());
    }
    (isTrained ? names_ : frozenNames_).push_back(std::move(parameter.names));
    (isTrained ? trained_ : frozen_).push_back(std::move(parameter.tensor));
  }
}

Result<std::vector<size_t>> ParameterList::placesOf(const std::vector<std::string>& firstNames) const {
  std::unordered_map<std::string, size_t> left;
  for (size_t i = 0; i < firstNames_.size(); ++i) left[firstNames_[i]] = i;
  std::vector<size_t> places;
  for (const std::string& name : firstNames) {
    const auto found = left.extract(name);
    if (!found) return invalidArgument("'" + name + "' is no trained parameter, or is named twice");
    places.push_back(found.mapped());
  }
  if (!left.empty()) return invalidArgument("parameter '" + left.begin()->first + "' is not named");
  return places;
}

Status ParameterList::checkUnchanged() const {
  static const std::string kRemedy =
      ", unlike when DistributedDataParallel was constructed: construct it again after parameters are frozen or "
      "unfrozen";
  for (size_t i = 0; i < frozen_.size(); ++i)
    if (frozen_[i].requires_grad())
      return failedPrecondition("parameter " + frozenNames_[i] + " requires a gradient now" + kRemedy);
  for (size_t i = 0; i < trained_.size(); ++i)
    if (!trained_[i].requires_grad())
      return failedPrecondition("parameter " + names_[i] + " requires no gradient any more" + kRemedy);
  return checkDtypes();
}

Status ParameterList::checkDtypes() const {
  for (size_t i = 0; i < trained_.size(); ++i)
    if (trained_[i].scalar_type() != dtypes_[i])
      return failedPrecondition("parameter " + names_[i] + " is of " + toString(trained_[i].scalar_type()) +
                                " now, and was of " + toString(dtypes_[i]) +
                                " when DistributedDataParallel was constructed: construct it after the conversion");
  return {};
}

}  // namespace treadle::ddp
