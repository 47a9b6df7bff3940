#pragma once
// Options on the command line of the programs that train replicas. Functions without state.

#include <CLI/CLI.hpp>
#include <cstdint>

namespace example {

// Steps and samples of a training; each program has its own defaults.
struct TrainOptions {
  int64_t steps = 0;
  int64_t batch = 0;  // samples per rank and step
  double learningRate = 0;
  uint64_t seed = 0;  // of the first weights and of the order of the samples
};

// --steps, --batch, --lr, --seed.
void addOptions(CLI::App& app, TrainOptions& options);

}  // namespace example
