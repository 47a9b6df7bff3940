#include "treadle/tensor/optim/part.h"

#include <set>

#include "treadle/tensor/autograd/interceptor.h"
#include "treadle/tensor/optim/gradient_power.h"
#include "treadle/tensor/optim/unscale.h"

namespace treadle::optim {

void stepIn(Worker& worker, int64_t contextId, ParameterOptimizers& optimizers,
            ParameterOptimizers::Visit& beforeEach) {
  const autograd::ContextPtr context = autograd::partIn(worker, contextId);
  if (!context) return;
  ParameterOptimizers::GradientOf gradientOf = [&](const at::Tensor& leaf) { return context->graph->gradient(leaf); };
  // Gradients are taken from the context one by one, when their parameter's turn comes. A pass that adds to
  // them meanwhile does no harm: what the context hands out keeps its values.
  optimizers.step(gradientOf, beforeEach);
}

std::vector<double> gradientPowersIn(Worker& worker, int64_t contextId, const std::vector<at::Tensor>& parameters,
                                     double normType) {
  checkNormType(normType);
  std::vector<double> powers(parameters.size());
  const autograd::ContextPtr context = autograd::partIn(worker, contextId);
  for (size_t index = 0; context && index < parameters.size(); ++index)
    powers[index] = gradientPower(context->graph->gradient(parameters[index]), normType);
  return powers;
}

void scaleGradientsIn(Worker& worker, int64_t contextId, const std::vector<at::Tensor>& parameters, double factor) {
  const autograd::ContextPtr context = autograd::partIn(worker, contextId);
  if (!context) return;
  for (const at::Tensor& parameter : parameters) context->graph->gradients().scale(parameter, factor);
}

bool unscaleGradientsIn(Worker& worker, int64_t contextId, const std::vector<at::Tensor>& parameters, double factor) {
  const autograd::ContextPtr context = autograd::partIn(worker, contextId);
  if (!context) return true;
  for (const at::Tensor& parameter : parameters) checkUnscalable(context->graph->gradient(parameter));
  bool allFinite = true;
  for (const at::Tensor& parameter : parameters) {
    context->graph->gradients().scale(parameter, factor);
    allFinite = isFinite(context->graph->gradient(parameter)) && allFinite;
  }
  return allFinite;
}

// Kept as the worker's extension state: the locks belong to a worker, not to the process.
ParameterLocks& locksOf(Worker& worker) {
  auto* locks = std::any_cast<std::shared_ptr<ParameterLocks>>(&worker.extensionState());
  if (locks == nullptr)
    raise(failedPrecondition("this worker was joined without tensors; join with treadle::join of <treadle/rpc.h>"));
  return **locks;
}

std::any makeWorkerState() { return std::make_shared<ParameterLocks>(); }

// Checked when the optimizer is made: at a step it would be too late to refuse.
std::vector<at::Tensor> localParameters(const std::vector<RRef<at::Tensor>>& references) {
  std::vector<at::Tensor> parameters;
  std::set<const c10::TensorImpl*> known;
  for (const RRef<at::Tensor>& reference : references) {
    const at::Tensor& parameter = reference.localValue();
    if (!parameter.is_leaf() || !parameter.requires_grad())
      raise(invalidArgument("an optimizer steps leaves that require gradients; this tensor is none"));
    if (!known.insert(parameter.unsafeGetTensorImpl()).second)
      raise(invalidArgument("a parameter was given to an optimizer twice"));
    parameters.push_back(parameter);
  }
  return parameters;
}

void checkPlaces(const std::vector<Place>& places, size_t parameters, size_t groups) {
  if (places.size() != parameters) raise(dataLoss("an optimizer's part has not one place for each parameter"));
  for (const Place& place : places)
    if (place.group < 0 || static_cast<size_t>(place.group) >= groups)
      raise(dataLoss("an optimizer's part has a parameter in a group that there is not"));
}

void checkGroups(size_t given, size_t groups) {
  if (given != groups)
    raise(invalidArgument("this optimizer was made with " + std::to_string(groups) + " parameter groups, and now has " +
                          std::to_string(given)));
}

Status withoutNames(const std::string& optimizer) {
  return failedPrecondition("the fields of " + optimizer +
                            " have no names, so that its state cannot be saved or loaded; specialise "
                            "treadle::optim::StateOf for it and treadle::optim::Fields for its options and state");
}

}  // namespace treadle::optim
