#pragma once
// What is measured: each case is a function of the calling worker, which calls rank 1, and yields the times of its
// repetitions. Run by main.cc in one of two processes.

#include <map>
#include <string>
#include <vector>

#include "treadle/rpc.h"

namespace bench {

// What the other worker offers.
treadle::Functions served();

struct Case {
  const char* unit;
  std::vector<double> (*run)(treadle::Worker& worker, int repetitions);
};

// By name.
const std::map<std::string, Case>& cases();

}  // namespace bench
