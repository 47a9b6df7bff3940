#include "examples/common/train_options.h"

#include "examples/common/command_line.h"

namespace example {

void addOptions(CLI::App& app, TrainOptions& options) {
  app.add_option("--steps", options.steps, "steps of the optimizer")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 40));
  app.add_option("--batch", options.batch, "samples per rank and step")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--lr", options.learningRate, "learning rate")->capture_default_str()->check(checkAboveZero);
  app.add_option("--seed", options.seed, "of the first weights and of the order of the samples")->capture_default_str();
}

}  // namespace example
