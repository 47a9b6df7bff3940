#include "treadle/train/ddp/optimizer_in_backward.h"

#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "treadle/core/base/error.h"

namespace treadle::ddp {
namespace {

std::vector<const c10::TensorImpl*> steppedBy(const torch::optim::Optimizer& optimizer) {
  std::vector<const c10::TensorImpl*> stepped;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) stepped.push_back(parameter.unsafeGetTensorImpl());
  return stepped;
}

// By trained parameter. InvalidArgument: the optimizer has another one, or one twice.
Result<std::vector<bool>> marksOf(const torch::optim::Optimizer& optimizer, const ParameterList& list) {
  std::unordered_map<const c10::TensorImpl*, size_t> left;
  for (size_t i = 0; i < list.trained().size(); ++i) left[list.trained()[i].unsafeGetTensorImpl()] = i;
  std::vector<bool> marks(list.trained().size());
  for (const c10::TensorImpl* parameter : steppedBy(optimizer)) {
    const auto found = left.extract(parameter);
    if (!found)
      return invalidArgument(
          "DdpOptions::optimizerInBackward has a parameter that is no trained parameter of the module, or has one "
          "twice: give it those of the module alone, as it makes several steps in each pass");
    marks[found.mapped()] = true;
  }
  return marks;
}

}  // namespace

OptimizerInBackward::OptimizerInBackward(std::shared_ptr<torch::optim::Optimizer> optimizer, const ParameterList& list)
    : optimizer_(std::move(optimizer)), list_(list), isStepped_(list.trained().size()) {
  if (!exists()) return;
  if (dynamic_cast<const torch::optim::LBFGS*>(optimizer_.get()) != nullptr)
    raise(invalidArgument(
        "DdpOptions::optimizerInBackward cannot be LBFGS, whose step evaluates the model several times"));
  isStepped_ = valueOrThrow(marksOf(*optimizer_, list_));
}

std::vector<std::string> OptimizerInBackward::linesOf(const torch::optim::Optimizer* optimizer,
                                                      const ParameterList& list) {
  if (optimizer == nullptr) return {"optimizerInBackward none"};
  std::vector<std::string> lines = {"optimizerInBackward " + demangled(typeid(*optimizer).name())};
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (size_t i = 0; i < list.trained().size(); ++i)
    names[list.trained()[i].unsafeGetTensorImpl()] = list.trainedNames()[i];
  for (const c10::TensorImpl* parameter : steppedBy(*optimizer))
    lines.push_back("optimizerInBackward with '" + names[parameter] + "' next");
  return lines;
}

Status OptimizerInBackward::checkMayStep(bool isDistributed) const {
  if (!exists()) return {};
  if (isDistributed)
    return failedPrecondition(
        "a distributed backward pass leaves gradients in its context, so DdpOptions::optimizerInBackward cannot step: "
        "call loss.backward(), or use a DistributedOptimizer after the pass");
  const Result<std::vector<bool>> marks = marksOf(*optimizer_, list_);
  if (marks.ok() && *marks == isStepped_) return {};
  return failedPrecondition(
      "DdpOptions::optimizerInBackward has other parameters than when DistributedDataParallel was constructed: "
      "construct it again after parameter groups are added");
}

void OptimizerInBackward::clearGradients() {
  for (size_t i = 0; i < isStepped_.size(); ++i)
    if (isStepped_[i]) list_.trained()[i].mutable_grad() = at::Tensor();
}

Status OptimizerInBackward::step(const std::vector<size_t>& parameters) try {
  if (std::none_of(parameters.begin(), parameters.end(), [this](size_t one) { return isStepped_[one]; })) return {};
  optimizer_->step();
  for (const size_t parameter : parameters)
    if (isStepped_[parameter]) list_.trained()[parameter].mutable_grad() = at::Tensor();
  return {};
} catch (...) {
  return statusOfCurrentException("DdpOptions::optimizerInBackward");
}

}  // namespace treadle::ddp
