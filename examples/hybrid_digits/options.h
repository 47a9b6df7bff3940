#pragma once
// The command line of hybrid_digits. Every process of the job gets the same one.

#include <optional>
#include <string>

#include "examples/hybrid_digits/hybrid_model.h"

namespace hybrid {

struct Options {
  TrainOptions training;
  std::string dataPath;   // digits.csv; by default the one of the source tree
  std::string runFolder;  // empty: runs/hybrid_digits-<date>-<time>
  bool single = false;    // train in one process
};

// Reads and checks the command line into `options`. Returns nothing when the program should go on, else its
// exit code: 0 after --help, 2 after one line on standard error that says what is wrong.
std::optional<int> parseOptions(int argc, char** argv, Options& options);

}  // namespace hybrid
