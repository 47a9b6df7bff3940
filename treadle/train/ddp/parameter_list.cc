#include "treadle/train/ddp/parameter_list.h"

#include <unordered_map>
#include <unordered_set>

namespace treadle::ddp {
namespace {

std::string inWords(const std::vector<std::string>& names) {
  std::string words = "'" + names.front() + "'";
  for (size_t i = 1; i < names.size(); ++i) words += (i == 1 ? " (also '" : ", '") + names[i] + "'";
  return names.size() > 1 ? words + ")" : words;
}

}  // namespace

std::vector<at::Tensor> eachOnce(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> once;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& tensor : tensors)
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) once.push_back(tensor);
  return once;
}

ParameterList::ParameterList(const torch::nn::Module& module) {
  std::unordered_map<const c10::TensorImpl*, std::vector<std::string>> namesOf;
  for (const auto& entry : module.named_parameters())
    namesOf[entry.value().unsafeGetTensorImpl()].push_back(entry.key());
  for (const at::Tensor& parameter : eachOnce(module.parameters())) {
    const bool isTrained = parameter.requires_grad();
    (isTrained ? trained_ : frozen_).push_back(parameter);
    (isTrained ? names_ : frozenNames_).push_back(inWords(namesOf[parameter.unsafeGetTensorImpl()]));
  }
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
  return {};
}

}  // namespace treadle::ddp
