// Trains a small model that is spread over four processes, on real data: see README.md beside this file.

#include <ATen/Parallel.h>

#include <cstdio>
#include <exception>

#include "examples/hybrid_digits/options.h"
#include "examples/hybrid_digits/roles.h"
#include "examples/hybrid_digits/single.h"

namespace {

void run(const hybrid::Options& options) {
  // The four processes share one machine as a rule, and the tensors are small: more threads would only be in
  // the way.
  at::set_num_threads(1);
  options.single ? hybrid::runSingle(options) : hybrid::runRole(options);
}

}  // namespace

int main(int argc, char** argv) {
  hybrid::Options options;
  if (std::optional<int> exitCode = hybrid::parseOptions(argc, argv, options)) return *exitCode;
  try {
    run(options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hybrid_digits: %s\n", error.what());
    return 1;
  }
}
