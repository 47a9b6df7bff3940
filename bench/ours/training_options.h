#pragma once
// The options that programs which measure training steps have in common.

#include <CLI/CLI.hpp>
#include <string>

namespace bench {

struct TrainingOptions {
  std::string model;
  int repetitions = 20;  // Case::kPairs timed pairs of steps each

  // Outlives the parsing.
  void addTo(CLI::App& app) {
    app.add_option("--model", model, "transformer or cnn")->required()->check(CLI::IsMember({"transformer", "cnn"}));
    app.add_option("--repetitions", repetitions, "2 timed steps of each kind, of the cnn 20")
        ->check(CLI::PositiveNumber);
  }
};

}  // namespace bench
