#include "treadle/tensor/autograd/autograd_context.h"

#include <ATen/core/grad_mode.h>

#include "treadle/core/base/log.h"
#include "treadle/tensor/autograd/backward.h"
#include "treadle/tensor/autograd/interceptor.h"
#include "treadle/tensor/autograd/pass_end.h"

namespace treadle {
namespace {

autograd::ContextPtr newContext(Worker& worker, const AutogradOptions& options) {
  return autograd::interceptorOf(worker).contexts().create(options.mode);
}

}  // namespace

AutogradContext::AutogradContext(Worker& worker, AutogradOptions options)
    : worker_(worker),
      context_(newContext(worker, options)),
      current_(std::make_unique<autograd::CurrentContext>(autograd::interceptorOf(worker), context_)) {}

// `current_` goes after this body: the releases are sent while the context is still current, and so must not
// be part of it (releaseEverywhere sees to that).
AutogradContext::~AutogradContext() {
  try {
    autograd::releaseEverywhere(worker_, context_->id);
  } catch (const Error& error) {
    // The job is over or broken for this worker, and the context with it.
    logDebug(worker_.self().name, std::string("an autograd context was not released: ") + error.what());
  }
}

int64_t AutogradContext::id() const { return context_->id; }

void AutogradContext::backward(const std::vector<at::Tensor>& roots, BackwardOptions options) {
  const TimePoint deadline = deadlineAfter(options.timeout);
  std::vector<autograd::Root> from;
  // An undefined gradient stands for 1: each root has one element.
  for (const at::Tensor& root : roots) from.push_back({root, {}});
  autograd::runBackward(worker_, context_, std::move(from), options, deadline);
}

// Fetched within the context even if another one, or none, is current here.
void AutogradContext::backward(const RRef<at::Tensor>& root, BackwardOptions options) {
  const TimePoint deadline = deadlineAfter(options.timeout);
  at::Tensor value;
  {
    autograd::CurrentContext current(autograd::interceptorOf(worker_), context_);
    const at::AutoGradMode gradients(true);  // whatever the caller's is: the value is to be part of the graph
    value = root.toHere(options.timeout);
  }
  autograd::runBackward(worker_, context_, {{value, {}}}, options, deadline);
}

at::Tensor AutogradContext::gradient(const at::Tensor& leaf) const {
  throwIfError(context_->usable());
  return context_->graph->gradient(leaf);
}

std::vector<std::pair<at::Tensor, at::Tensor>> AutogradContext::gradients() const {
  throwIfError(context_->usable());
  return context_->graph->gradients().all();
}

at::Tensor gradient(Worker& worker, int64_t contextId, const at::Tensor& leaf) {
  const autograd::ContextPtr context = autograd::partIn(worker, contextId);
  return context ? context->graph->gradient(leaf) : at::Tensor();
}

std::vector<std::pair<at::Tensor, at::Tensor>> gradients(Worker& worker, int64_t contextId) {
  const autograd::ContextPtr context = autograd::partIn(worker, contextId);
  return context ? context->graph->gradients().all() : std::vector<std::pair<at::Tensor, at::Tensor>>();
}

}  // namespace treadle
