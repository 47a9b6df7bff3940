#include "treadle/tensor/optim/distributed_optimizer.h"

#include <torch/nn/module.h>

#include "treadle/tensor/autograd/interceptor.h"

namespace treadle {

std::map<int, std::vector<RRef<at::Tensor>>> DistributedOptimizer::byOwner(
    const std::vector<RRef<at::Tensor>>& parameters) {
  if (parameters.empty()) raise(invalidArgument("an optimizer needs at least one parameter"));
  std::map<int, std::vector<RRef<at::Tensor>>> groups;
  for (const RRef<at::Tensor>& parameter : parameters) groups[parameter.owner().rank].push_back(parameter);
  return groups;
}

// The references are there at once; a failure at an owner should show here and not at the first step.
void DistributedOptimizer::checkMade() const {
  for (const RRef<optim::Part>& part : parts_) part.waitUntilMade();
}

std::vector<Future<void>> DistributedOptimizer::startSteps(const AutogradContext& context) {
  // A step is not part of the graph, even while the context is current on this thread.
  autograd::CurrentContext none(autograd::interceptorOf(*worker_), nullptr);
  std::vector<Future<void>> steps;
  for (const RRef<optim::Part>& part : parts_)
    if (!part.isOwner()) steps.push_back(part.async<&optim::Part::step>(context.id()));
  // This worker's own part needs no message; it steps while the others do.
  for (const RRef<optim::Part>& part : parts_)
    if (part.isOwner()) steps.push_back(stepHere(part, context));
  return steps;
}

// A failure is told like that of the others, which step all the same.
Future<void> DistributedOptimizer::stepHere(const RRef<optim::Part>& part, const AutogradContext& context) {
  Promise<void> promise;
  Future<void> done = promise.future();
  try {
    part.local().stepHere(*worker_, context.id());
    promise.set();
  } catch (...) {
    promise.fail(statusOfCurrentException("a step of the optimizer"));
  }
  return done;
}

// Each future is waited for by itself: the waiting thread then reads the answer from the socket.
void DistributedOptimizer::step(const AutogradContext& context) {
  Status failure;
  for (Future<void>& step : startSteps(context)) {
    try {
      step.wait();
    } catch (const Error& error) {
      if (failure.ok()) failure = error.status();
    }
  }
  throwIfError(std::move(failure));
}

std::vector<RRef<at::Tensor>> parameterRefs(Worker& worker, torch::nn::Module& module) {
  std::vector<RRef<at::Tensor>> references;
  for (const at::Tensor& parameter : module.parameters()) references.push_back(worker.own(parameter));
  return references;
}

}  // namespace treadle

namespace treadle::optim {

void Part::step(Call& call, int64_t contextId) { stepHere(call.worker(), contextId); }

void Part::stepHere(Worker& worker, int64_t contextId) {
  autograd::Contexts& contexts = autograd::interceptorOf(worker).contexts();
  Result<autograd::ContextPtr> found = contexts.find(contextId);
  // A pass that never came to this worker has no gradients for its parameters.
  if (!found.ok() && !contexts.wasReleased(contextId)) return;
  autograd::ContextPtr context = valueOrThrow(std::move(found));
  ParameterOptimizers::GradientOf gradientOf = [&](const at::Tensor& leaf) { return context->graph->gradient(leaf); };
  // Gradients are taken from the context one by one, when their parameter's turn comes. A pass that adds to
  // them meanwhile does no harm: what the context hands out keeps its values.
  optimizers_->step(gradientOf);
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
  for (const RRef<at::Tensor>& reference : references) {
    const at::Tensor& parameter = reference.local();
    if (!parameter.is_leaf() || !parameter.requires_grad())
      raise(invalidArgument("an optimizer steps leaves that require gradients; this tensor is none"));
    parameters.push_back(parameter);
  }
  return parameters;
}

Functions optimizerFunctions() {
  Functions functions;
  functions.add<&Part::step>("treadle.optim.step");
  addOptimizer<torch::optim::SGD, torch::optim::SGDOptions>(functions, "treadle.optim.SGD");
  addOptimizer<torch::optim::Adam, torch::optim::AdamOptions>(functions, "treadle.optim.Adam");
  return functions;
}

}  // namespace treadle::optim
