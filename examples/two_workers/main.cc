// A model with one layer on each of two workers, trained by backward passes that run through both: see README.md.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <treadle/nn.h>
#include <treadle/optim.h>

#include <exception>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kSteps = 300;
constexpr double kWantedLoss = 0.001;

// Learns the sine from 128 points of it, on worker0. Returns the last loss.
double train(treadle::Worker& worker) {
  torch::nn::Linear first(1, 32);                                             // here
  treadle::RemoteModule<torch::nn::Linear> second(worker, "worker1", 32, 1);  // there, and this is a handle

  std::vector<treadle::RRef<at::Tensor>> parameters = treadle::parameterRefs(worker, *first);
  for (auto& parameter : second.remoteParameters()) parameters.push_back(parameter);
  auto optimizer = treadle::DistributedOptimizer::make<torch::optim::SGD>(worker, parameters,
                                                                          torch::optim::SGDOptions(0.1).momentum(0.9));

  at::Tensor x = at::rand({128, 1}) * 6 - 3, y = x.sin();
  double last = 0;
  for (int step = 1; step <= kSteps; ++step) {
    treadle::AutogradContext context(worker);  // one forward and backward pass
    at::Tensor output = second.forward(first(x).tanh());
    at::Tensor loss = torch::nn::functional::mse_loss(output, y);
    context.backward({loss});  // to worker1 and back again
    optimizer.step(context);   // each parameter where it lives
    last = loss.item<double>();
    if (step % 50 == 0) std::cout << "step " << step << ": loss " << last << std::endl;
  }
  return last;
}

// Whether the job reached its loss.
bool run() {
  at::set_num_threads(1);  // both workers share one machine as a rule
  at::manual_seed(0);

  treadle::JoinOptions options;
  options.launch = treadle::valueOrThrow(treadle::Launch::detect());
  const int rank = options.launch->rank;
  options.name = "worker" + std::to_string(rank);
  treadle::addModule<torch::nn::Linear, int64_t, int64_t>(options.functions, "Linear");
  auto worker = treadle::join(std::move(options));

  double loss = rank == 0 ? train(*worker) : 0;
  worker->shutdown();  // serves the other until both have come here
  if (rank != 0) return true;
  const bool below = loss < kWantedLoss;
  std::cout << "two_workers: loss " << loss << (below ? ", below " : ", not below ") << kWantedLoss << std::endl;
  return below;
}

}  // namespace

int main() {
  try {
    return run() ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "two_workers: " << error.what() << std::endl;
    return 1;
  }
}
