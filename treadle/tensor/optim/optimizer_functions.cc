#include "treadle/tensor/optim/optimizer_functions.h"

namespace treadle::optim {

Status closureRefused() {
  return invalidArgument(
      "LBFGS cannot be a distributed optimizer: each of its steps evaluates the whole model several times through a "
      "closure, and a distributed step has the gradients of one context; take SGD, Adam, AdamW, Adagrad or RMSprop");
}

Functions optimizerFunctions() {
  Functions functions;
  addOptimizer<torch::optim::SGD, torch::optim::SGDOptions>(functions, "treadle.optim.SGD");
  addOptimizer<torch::optim::Adam, torch::optim::AdamOptions>(functions, "treadle.optim.Adam");
  addOptimizer<torch::optim::AdamW, torch::optim::AdamWOptions>(functions, "treadle.optim.AdamW");
  addOptimizer<torch::optim::Adagrad, torch::optim::AdagradOptions>(functions, "treadle.optim.Adagrad");
  addOptimizer<torch::optim::RMSprop, torch::optim::RMSpropOptions>(functions, "treadle.optim.RMSprop");
  return functions;
}

}  // namespace treadle::optim
