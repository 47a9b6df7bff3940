#pragma once
// What both programs share: their command line, and the job of equal workers that they are.

#include <treadle/group.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>

namespace data_parallel {

// Steps and samples of a training; each program has its own defaults.
struct TrainOptions {
  int64_t steps;
  int64_t batch;  // samples per rank and step
  double learningRate;
  uint64_t seed = 0;  // of the first weights and of the order of the samples
};

void addOptions(CLI::App& app, TrainOptions& options);

// The main function of a program after its options were added to `app`. Joins the job and calls `train` with a group of
// all its workers. Returns the exit code: 0 when `train` returned true, 1 when it returned false or failed, which is
// printed.
int runJob(CLI::App& app, int argc, char** argv, const std::function<bool(const treadle::ProcessGroup& group)>& train);

}  // namespace data_parallel
