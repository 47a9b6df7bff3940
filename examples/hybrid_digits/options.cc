#include "examples/hybrid_digits/options.h"

#include <limits>

#include "examples/common/command_line.h"

namespace hybrid {
namespace {

constexpr const char* kDescription =
    "Trains an embedding bag and a linear layer on handwritten digits, over four processes:\n"
    "    treadle run -n 4 -- hybrid_digits [options]\n"
    "rank 0 is the master, rank 1 the parameter server with the bag, ranks 2 and 3 are the trainers.";

void addOptions(CLI::App& app, Options& options) {
  // Half of the training digits is a trainer's share: a larger batch would leave no step to take.
  constexpr int64_t kLargestBatch = kTrainDigits / 2;
  constexpr int64_t kLargestSeed = std::numeric_limits<int64_t>::max();
  TrainOptions& training = options.training;
  app.add_option("--data", options.dataPath, "the file of digits")->capture_default_str();
  app.add_option("--run-folder", options.runFolder, "where metrics, plot and model go [runs/hybrid_digits-DATE-TIME]");
  app.add_option("--epochs", training.epochs, "passes over the training data")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{10'000}));
  app.add_option("--batch", training.batchSize, "digits per step")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, kLargestBatch));
  app.add_option("--lr", training.learningRate, "learning rate of SGD")
      ->capture_default_str()
      ->check(example::checkAboveZero);
  app.add_option("--seed", training.seed, "of the split into training and test data and of the first weights")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, kLargestSeed));
  app.add_flag("--single", options.single, "train the same model in this one process, without a launcher");
}

}  // namespace

std::optional<int> parseOptions(int argc, char** argv, Options& options) {
  options.dataPath = digits::defaultPath();
  CLI::App app(kDescription, "hybrid_digits");
  addOptions(app, options);
  return example::parse(app, argc, argv);
}

}  // namespace hybrid
