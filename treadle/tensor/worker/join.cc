#include "treadle/tensor/worker/join.h"

#include "treadle/tensor/autograd/backward.h"
#include "treadle/tensor/autograd/interceptor.h"
#include "treadle/tensor/autograd/pass_end.h"
#include "treadle/tensor/bridge/operators.h"
#include "treadle/tensor/bridge/tensor_memory.h"
#include "treadle/tensor/nn/remote_child.h"
#include "treadle/tensor/optim/optimizer_functions.h"

namespace treadle {
namespace {

constexpr size_t kPrefaultBytes = 64U << 20;

}  // namespace

std::shared_ptr<Worker> join(JoinOptions options, AutogradOptions defaults) {
  if (!options.prefaultBytes) options.prefaultBytes = kPrefaultBytes;
  if (!options.warmMemory) options.warmMemory = true;
  const bool warmMemory = *options.warmMemory;
  WorkerExtensions extensions;
  const AutogradMode usual = defaults.mode.value_or(AutogradMode::kSmart);
  extensions.interceptor = [usual](Worker& worker) {
    return std::make_unique<autograd::AutogradInterceptor>(worker.self().rank, usual, autograd::networkOf(worker));
  };
  // What peers call for backward passes, modules and optimizers is offered like any function, under names of ours, and
  // checked by the same signatures: two versions of Treadle that differ here say so at the first call.
  extensions.functions = autograd::backwardFunctions();
  extensions.functions.merge(optim::optimizerFunctions());
  extensions.functions.merge(nn::moduleFunctions());
  extensions.functions.merge(bridge::operatorFunctions());
  extensions.state = optim::makeWorkerState();
  auto worker = Worker::join(std::move(options), std::move(extensions));
  if (warmMemory) bridge::useWarmAllocator();
  return worker;
}

}  // namespace treadle
