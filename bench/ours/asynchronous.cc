// Steps that a worker makes in a given time with AsynchronousParameters, beside other workers that may be slower. One
// of the workers of bench/asynchronous.py.

#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>

#include "bench/ours/ddp_models.h"
#include "treadle/ddp.h"

namespace {

constexpr int kWarmUp = 5;  // steps

struct Options {
  double seconds = 5;
  std::optional<uint64_t> staleness;
};

class Training {
 public:
  Training(treadle::Worker& worker, const Options& options)
      : rank_(worker.self().rank),
        ranks_(static_cast<int>(worker.peers().size())),
        model_(bench::firstModelOf(case_)),
        shared_(worker, *model_, {.staleness = options.staleness}) {}

  void step() {
    const auto batch = bench::batchOf(case_, step_++, rank_, ranks_);
    optimizer_.zero_grad();
    at::Tensor loss = bench::CnnCase::lossOf(*model_, batch);
    loss.backward();
    optimizer_.step();
    shared_.exchange();
    if (!std::isfinite(loss.item<double>())) throw std::runtime_error("the loss is not a number");
  }

 private:
  const int rank_, ranks_;
  bench::CnnCase case_;
  std::shared_ptr<bench::CnnCase::Model> model_;
  torch::optim::SGD optimizer_{model_->parameters(), torch::optim::SGDOptions(bench::CnnCase::kLearningRate / 4)};
  treadle::AsynchronousParameters shared_;
  int64_t step_ = 0;
};

double secondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Steps per second.
double rateOf(treadle::Worker& worker, const Options& options) {
  Training training(worker, options);
  for (int i = 0; i < kWarmUp; ++i) training.step();
  worker.barrier();
  const auto begin = std::chrono::steady_clock::now();
  int steps = 0;
  for (; secondsSince(begin) < options.seconds; ++steps) training.step();
  return steps / secondsSince(begin);
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Steps of asynchronous training in a time; start it with: treadle run -n 4 --servers 2 -- PROGRAM");
  Options options;
  app.add_option("--seconds", options.seconds)->check(CLI::PositiveNumber);
  app.add_option("--staleness", options.staleness, "how many steps it may be ahead of the slowest worker");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  auto worker = treadle::join({});
  std::printf("rate %g\n", rateOf(*worker, options));
  std::fflush(stdout);
  worker->shutdown();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench: %s\n", error.what());
  return 1;
}
