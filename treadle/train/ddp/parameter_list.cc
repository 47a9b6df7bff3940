#include "treadle/train/ddp/parameter_list.h"

#include <algorithm>
#include <utility>

#include "treadle/train/ddp/named_tensors.h"

namespace treadle::ddp {

ParameterList::ParameterList(const torch::nn::Module& module, std::string owner)
    : module_(module.weak_from_this()), owner_(std::move(owner)) {
  for (NamedTensor& parameter : parametersOf(module)) {
    const bool isTrained = parameter.tensor.requires_grad();
    if (isTrained) {
      firstNames_.push_back(parameter.name);
      names_.push_back(std::move(parameter.names));
      dtypes_.push_back(parameter.tensor.scalar_type());
      places_[parameter.tensor.unsafeGetTensorImpl()] = trained_.size();
    }
    (isTrained ? trained_ : frozen_).push_back(std::move(parameter.tensor));
  }
}

std::optional<size_t> ParameterList::placeOf(const at::Tensor& parameter) const {
  const auto found = places_.find(parameter.unsafeGetTensorImpl());
  return found == places_.end() ? std::nullopt : std::optional(found->second);
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
  TREADLE_RETURN_IF_ERROR(checkNoOtherIsTrained());
  for (size_t i = 0; i < trained_.size(); ++i)
    if (!trained_[i].requires_grad())
      return failedPrecondition("parameter " + names_[i] + " requires no gradient any more" + remedy());
  return checkDtypes();
}

std::string ParameterList::remedy() const {
  return ", unlike when " + owner_ + " was constructed: construct it again after parameters are frozen, unfrozen, " +
         "replaced or added";
}

Status ParameterList::checkNoOtherIsTrained() const {
  const auto module = module_.lock();
  const auto isOther = [&](const at::Tensor& parameter) { return parameter.requires_grad() && !placeOf(parameter); };
  if (std::ranges::none_of(module ? module->parameters() : frozen_, isOther)) return {};
  const std::vector<NamedTensor> named = module ? parametersOf(*module) : std::vector<NamedTensor>();
  const auto other = std::ranges::find_if(named, isOther, &NamedTensor::tensor);
  const std::string which = other == named.end() ? "that was frozen" : other->names;
  return failedPrecondition("parameter " + which + " requires a gradient now" + remedy());
}

Status ParameterList::checkPassIsNoticed() const {
  const auto requiresGrad = [](const at::Tensor& parameter) { return parameter.requires_grad(); };
  return std::ranges::any_of(trained_, requiresGrad) ? Status() : checkNoOtherIsTrained();
}

Status ParameterList::checkDtypes() const {
  for (size_t i = 0; i < trained_.size(); ++i)
    if (trained_[i].scalar_type() != dtypes_[i])
      return failedPrecondition("parameter " + names_[i] + " is of " + toString(trained_[i].scalar_type()) +
                                " now, and was of " + toString(dtypes_[i]) + " when " + owner_ +
                                " was constructed: construct it after the conversion");
  return {};
}

}  // namespace treadle::ddp
