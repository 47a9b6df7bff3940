#include "treadle/tensor/worker/join.h"

#include "treadle/tensor/autograd/backward.h"
#include "treadle/tensor/autograd/interceptor.h"
#include "treadle/tensor/optim/optimizer_functions.h"

namespace treadle {

std::shared_ptr<Worker> join(JoinOptions options, AutogradOptions defaults) {
  autograd::checkMode(defaults.mode);
  WorkerExtensions extensions;
  extensions.interceptor = [](Worker& worker) {
    return std::make_unique<autograd::AutogradInterceptor>(worker.self().rank);
  };
  extensions.functions = autograd::backwardFunctions();
  extensions.functions.merge(optim::optimizerFunctions());
  extensions.state = optim::makeWorkerState();
  return Worker::join(std::move(options), std::move(extensions));
}

}  // namespace treadle
