#pragma once
// The command line of char_gpt. Every process of the job gets the same one.

#include <treadle/ddp.h>

#include <string>
#include <vector>

#include "examples/common/train_options.h"
#include "examples/common/transformer_options.h"

namespace char_gpt {

struct Options {
  example::TrainOptions training{.steps = 500, .batch = 32, .learningRate = 4e-3};
  // The vocabulary comes from the text.
  example::TransformerOptions model{.length = 32, .layers = 3, .width = 128, .heads = 4};
  std::vector<std::string> texts;  // by default the common licences of Debian
  std::string runFolder;           // empty: runs/char_gpt-<date>-<time>
  int64_t sample = 400;            // characters that the model writes at the end
  bool float64 = false;
  bool overlapForward = false;
  treadle::AverageBy averageBy = treadle::AverageBy::kAutomatic;
};

void addOptions(CLI::App& app, Options& options);

}  // namespace char_gpt
