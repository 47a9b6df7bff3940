#include "treadle/train/ddp/optimizer_in_backward.h"

#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "treadle/core/base/error.h"

namespace treadle::ddp {
namespace {

using Parameters = std::vector<const c10::TensorImpl*>;

Parameters steppedBy(const torch::optim::Optimizer& optimizer) {
  Parameters stepped;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) stepped.push_back(parameter.unsafeGetTensorImpl());
  return stepped;
}

std::unordered_map<const c10::TensorImpl*, size_t> placesOfTrained(const ParameterList& list) {
  std::unordered_map<const c10::TensorImpl*, size_t> places;
  for (size_t i = 0; i < list.trained().size(); ++i) places[list.trained()[i].unsafeGetTensorImpl()] = i;
  return places;
}

// Marks of those trained. Frozen ones may be among them: clearGradients() leaves none a gradient.
std::vector<bool> marksOf(const Parameters& stepped, const ParameterList& list) {
  const auto places = placesOfTrained(list);
  std::unordered_set<const c10::TensorImpl*> frozen;
  for (const at::Tensor& parameter : list.frozen()) frozen.insert(parameter.unsafeGetTensorImpl());
  std::vector<bool> marks(list.trained().size());
  for (const c10::TensorImpl* parameter : stepped) {
    if (frozen.contains(parameter)) continue;
    const auto found = places.find(parameter);
    if (found == places.end())
      raise(invalidArgument(
          "DdpOptions::optimizerInBackward has a parameter that is none of the module: give it those of the module "
          "alone, as it makes several steps in each pass"));
    if (marks[found->second])
      raise(invalidArgument("DdpOptions::optimizerInBackward has parameter " + list.nameOf(found->second) +
                            " twice, and would step it twice: Module::parameters() has a shared one once for each "
                            "module, so give each tensor once"));
    marks[found->second] = true;
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
  parameters_ = steppedBy(*optimizer_);
  isStepped_ = marksOf(parameters_, list_);
}

std::vector<std::string> OptimizerInBackward::linesOf(const torch::optim::Optimizer* optimizer,
                                                      const ParameterList& list) {
  if (optimizer == nullptr) return {"optimizerInBackward none"};
  std::vector<std::string> lines = {"optimizerInBackward " + demangled(typeid(*optimizer).name())};
  const auto places = placesOfTrained(list);
  for (const c10::TensorImpl* parameter : steppedBy(*optimizer))
    if (const auto found = places.find(parameter); found != places.end())
      lines.push_back("optimizerInBackward with '" + list.trainedNames()[found->second] + "' next");
  return lines;
}

Status OptimizerInBackward::checkMayStep(bool isDistributed) const {
  if (!exists()) return {};
  if (isDistributed)
    return failedPrecondition(
        "a distributed backward pass leaves gradients in its context, so DdpOptions::optimizerInBackward cannot step: "
        "call loss.backward(), or use a DistributedOptimizer after the pass");
  if (steppedBy(*optimizer_) == parameters_) return {};
  return failedPrecondition(
      "DdpOptions::optimizerInBackward has other parameters than when DistributedDataParallel was constructed: "
      "construct it again after parameter groups are added");
}

void OptimizerInBackward::clearGradients() {
  for (const torch::optim::OptimizerParamGroup& group : optimizer_->param_groups())
    for (const at::Tensor& parameter : group.params()) parameter.mutable_grad() = at::Tensor();
}

bool OptimizerInBackward::steps(const std::vector<size_t>& parameters) const {
  return std::any_of(parameters.begin(), parameters.end(), [this](size_t one) { return isStepped_[one]; });
}

Status OptimizerInBackward::step(const std::vector<size_t>& parameters) try {
  optimizer_->step();
  for (const size_t parameter : parameters)
    if (isStepped_[parameter]) list_.trained()[parameter].mutable_grad() = at::Tensor();
  return {};
} catch (...) {
  constexpr const char* kWhat = "DdpOptions::optimizerInBackward";
  return statusOfCurrentException(kWhat).withContext(kWhat);
}

}  // namespace treadle::ddp
