#include "treadle/tensor/optim/distributed_optimizer.h"

#include <algorithm>

#include "treadle/tensor/autograd/interceptor.h"
#include "treadle/tensor/optim/gradient_power.h"

namespace treadle {
namespace {

// What an optimizer does is not part of the graph, even while a context is current on this thread.
autograd::CurrentContext outOfGraph(Worker& worker) { return {autograd::interceptorOf(worker), nullptr}; }

// For what the owners are asked about a context. Throws what this worker knows of one that has ended or failed, before
// any owner is asked.
autograd::CurrentContext outOfGraph(Worker& worker, int64_t contextId) {
  autograd::partIn(worker, contextId);
  return outOfGraph(worker);
}

}  // namespace

int64_t DistributedOptimizer::currentContext() const {
  autograd::ContextPtr current = autograd::interceptorOf(*worker_).current();
  if (!current)
    raise(failedPrecondition("no autograd context of worker '" + worker_->self().name +
                             "' is current on this thread; step while one lives, or give it to step()"));
  return current->id;
}

std::vector<Future<void>> DistributedOptimizer::startSteps(int64_t contextId) {
  const autograd::CurrentContext none = outOfGraph(*worker_, contextId);
  return parts_->startSteps(contextId, *groups_);
}

double DistributedOptimizer::clipGradNorm(const AutogradContext& context, double maxNorm, const ClipOptions& options) {
  optim::checkClip(maxNorm, options, parts_->size());
  const double power = optim::countedPower(gradientPowers(context, options.normType), options);
  const double norm = optim::normOfPower(power, options.normType);
  const double factor = optim::clipFactor(norm, maxNorm, options);
  if (factor < 1) scaleGradients(context, factor);
  return norm;
}

std::vector<double> DistributedOptimizer::gradientPowers(const AutogradContext& context, double normType) const {
  optim::checkNormType(normType);
  const autograd::CurrentContext none = outOfGraph(*worker_, context.id());
  return parts_->gradientPowers(context.id(), normType);
}

void DistributedOptimizer::scaleGradients(const AutogradContext& context, double factor) {
  const autograd::CurrentContext none = outOfGraph(*worker_, context.id());
  parts_->scaleGradients(context.id(), factor);
}

bool DistributedOptimizer::unscaleGradients(const AutogradContext& context, double factor) {
  const autograd::CurrentContext none = outOfGraph(*worker_, context.id());
  return parts_->unscaleGradients(context.id(), factor);
}

std::vector<size_t> DistributedOptimizer::numbersOf(const std::vector<at::Tensor>& tensors) const {
  std::vector<size_t> numbers;
  for (const auto& [parameter, number] : parts_->here())
    if (std::ranges::any_of(tensors, [&](const at::Tensor& tensor) { return tensor.is_same(parameter); }))
      numbers.push_back(number);
  return numbers;
}

void DistributedOptimizer::setLearningRate(double rate) {
  for (torch::optim::OptimizerParamGroup& group : groups_->param_groups()) group.options().set_lr(rate);
}

OptimizerState DistributedOptimizer::state() const {
  const autograd::CurrentContext none = outOfGraph(*worker_);
  return parts_->state(*groups_);
}

void DistributedOptimizer::load(const OptimizerState& state) {
  const autograd::CurrentContext none = outOfGraph(*worker_);
  parts_->load(state, *groups_);
}

}  // namespace treadle
