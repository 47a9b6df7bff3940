#pragma once
// What `treadle doctor` found out, and how it is told: as a table or as JSON. Plain values and pure functions.

#include <string>
#include <vector>

#include "treadle/cli/machine.h"

namespace treadle::cli {

// Of one channel between two ranks.
struct Finding {
  std::string channel;
  int first = 0, second = 0;  // ranks
  bool works = false;
  std::string text;         // in a few words, or why it does not work
  double microseconds = 0;  // of the probe there and back; 0: not measured
};

// How tensors and messages go between two ranks in this very job.
struct Route {
  int first = 0, second = 0;
  bool works = false;
  std::string text;  // "messages over unix, large tensors over shm"; or why none go
};

struct Findings {
  int workers = 0;
  std::string trouble;  // why nothing, or not all, could be tried; empty otherwise
  std::vector<Finding> channels;
  std::vector<Route> routes;
  std::vector<std::vector<Fact>> facts;  // by rank; empty of a rank that did not tell

  // Whether every two workers can talk.
  bool good() const;
};

std::string tableOf(const Findings& findings);
std::string jsonOf(const Findings& findings);

}  // namespace treadle::cli
