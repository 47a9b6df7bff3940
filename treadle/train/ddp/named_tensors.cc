#include "treadle/train/ddp/named_tensors.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace treadle::ddp {
namespace {

using TensorsByName = torch::OrderedDict<std::string, at::Tensor>;

std::string namesInWords(const std::vector<std::string>& names) {
  std::string words = "'" + names.front() + "'";
  for (size_t i = 1; i < names.size(); ++i) words += (i == 1 ? " (also '" : ", '") + names[i] + "'";
  return names.size() > 1 ? words + ")" : words;
}

std::vector<NamedTensor> eachOnce(const TensorsByName& tensors) {
  std::unordered_map<const c10::TensorImpl*, std::vector<std::string>> namesOf;
  for (const auto& entry : tensors) namesOf[entry.value().unsafeGetTensorImpl()].push_back(entry.key());
  std::vector<NamedTensor> once;
  for (const auto& entry : tensors)
    if (auto names = namesOf.extract(entry.value().unsafeGetTensorImpl()))
      once.push_back({entry.key(), namesInWords(names.mapped()), entry.value()});
  return once;
}

}  // namespace

std::vector<NamedTensor> parametersOf(const torch::nn::Module& module) { return eachOnce(module.named_parameters()); }

std::vector<NamedTensor> buffersOf(const torch::nn::Module& module) {
  std::unordered_set<const c10::TensorImpl*> parameters;
  for (const at::Tensor& parameter : module.parameters()) parameters.insert(parameter.unsafeGetTensorImpl());
  std::vector<NamedTensor> buffers = eachOnce(module.named_buffers());
  std::erase_if(buffers,
                [&](const NamedTensor& buffer) { return parameters.contains(buffer.tensor.unsafeGetTensorImpl()); });
  return buffers;
}

}  // namespace treadle::ddp
