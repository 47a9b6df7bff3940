// Two servers hold the parameters of a model; any number of trainers step them at the same time, without waiting for
// each other: see README.md.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <treadle/optim.h>

#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using Parameters = std::vector<treadle::RRef<at::Tensor>>;

constexpr int kServers = 2;
constexpr int kSteps = 600;  // of each trainer
constexpr double kWantedLoss = 0.15;

// Runs on a server: the parameters of a new layer, which stay there as long as anybody has references to them.
Parameters makeLayer(treadle::CallContext& call, int64_t inputs, int64_t outputs) {
  torch::nn::Linear layer(inputs, outputs);
  return treadle::parameterRefs(call.worker(), *layer);
}

// Draws points of a square, and computes how badly the model tells which of them lie within a circle.
at::Tensor lossOnNewPoints(const Parameters& parameters, int64_t count) {
  std::vector<treadle::Future<at::Tensor>> coming;  // from both servers at a time
  for (auto& parameter : parameters) coming.push_back(parameter.toHereAsync());
  std::vector<at::Tensor> now = treadle::whenAll(coming).wait();

  at::Tensor points = at::rand({count, 2}) * 2 - 1, within = (points.square().sum(1) < 0.5).to(at::kLong);
  at::Tensor hidden = torch::nn::functional::linear(points, now[0], now[1]).tanh();
  return torch::nn::functional::cross_entropy(torch::nn::functional::linear(hidden, now[2], now[3]), within);
}

// Runs on each trainer. Between its fetching the parameters and its step, others step them too: its gradients are those
// of slightly older parameters, which does no harm as long as the steps are small (Hogwild training).
void train(treadle::CallContext& call, const Parameters& parameters) {
  treadle::Worker& worker = call.worker();
  auto optimizer =
      treadle::DistributedOptimizer::make<torch::optim::SGD>(worker, parameters, torch::optim::SGDOptions(0.5));
  for (int step = 1; step <= kSteps; ++step) {
    treadle::AutogradContext context(worker);
    at::Tensor loss = lossOnNewPoints(parameters, 64);
    context.backward({loss});  // computed here; the gradients go to the servers,
    optimizer.step(context);   // which step with them
    if (step % 200 == 0) std::cout << "step " << step << ": loss " << loss.item<double>() << std::endl;
  }
}

// Has the servers make the model and all trainers train it. Returns the loss on new points.
double runMaster(treadle::Worker& worker) {
  Parameters parameters = worker.call<&makeLayer>("server0", 2, 32);
  for (auto& parameter : worker.call<&makeLayer>("server1", 32, 2)) parameters.push_back(parameter);

  treadle::CallProxy whileTheyLive = worker.with({.timeout = treadle::kNoTimeout});  // however long it takes
  std::vector<treadle::Future<void>> trainers;
  for (const treadle::WorkerInfo& peer : worker.peers())
    if (peer.rank > kServers) trainers.push_back(whileTheyLive.async<&train>(peer, parameters));
  treadle::whenAll(trainers).wait();
  return lossOnNewPoints(parameters, 4096).item<double>();
}

std::string nameOf(int rank) {
  if (rank == 0) return "master";
  return rank <= kServers ? "server" + std::to_string(rank - 1) : "trainer" + std::to_string(rank - 1 - kServers);
}

// Whether the job reached its loss.
bool run() {
  treadle::JoinOptions options;
  options.launch = treadle::valueOrThrow(treadle::Launch::detect());
  const int rank = options.launch->rank;
  if (options.launch->worldSize < 2 + kServers)
    throw std::runtime_error("this job needs a master, two servers and a trainer: treadle run -n 4, or more");

  at::set_num_threads(1);                        // all workers share one machine as a rule
  at::manual_seed(static_cast<uint64_t>(rank));  // each trainer draws points of its own

  options.name = nameOf(rank);
  options.functions.add<&makeLayer>("makeLayer").add<&train>("train");
  auto worker = treadle::join(std::move(options));

  double loss = rank == 0 ? runMaster(*worker) : 0;
  worker->shutdown();  // serves the others until all have come here
  if (rank != 0) return true;
  const bool below = loss < kWantedLoss;
  std::cout << "parameter_server: loss " << loss << (below ? ", below " : ", not below ") << kWantedLoss << std::endl;
  return below;
}

}  // namespace

int main() {
  try {
    return run() ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "parameter_server: " << error.what() << std::endl;
    return 1;
  }
}
