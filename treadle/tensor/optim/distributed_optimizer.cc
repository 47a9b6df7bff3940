#include "treadle/tensor/optim/distributed_optimizer.h"

#include "treadle/tensor/autograd/interceptor.h"

namespace treadle {
namespace {

// What an optimizer does is not part of the graph, even while a context is current on this thread.
autograd::CurrentContext outOfGraph(Worker& worker) { return {autograd::interceptorOf(worker), nullptr}; }

}  // namespace

int64_t DistributedOptimizer::currentContext() const {
  autograd::ContextPtr current = autograd::interceptorOf(*worker_).current();
  if (!current)
    raise(failedPrecondition("no autograd context of worker '" + worker_->self().name +
                             "' is current on this thread; step while one lives, or give it to step()"));
  return current->id;
}

std::vector<Future<void>> DistributedOptimizer::startSteps(int64_t contextId) {
  const autograd::CurrentContext none = outOfGraph(*worker_);
  return parts_->startSteps(contextId, *groups_);
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
