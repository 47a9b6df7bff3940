#pragma once
// What of this machine, and of this process's limits, decides how fast a job is. Reads files below /proc and /sys and
// asks the system; where something is not known, says so. Any thread; `idleCores` takes a tenth of a second.

#include <string>
#include <vector>

#include "treadle/core/rpc/codec.h"

namespace treadle::cli {

struct Fact {
  std::string name, text;
  std::string advice;  // what to do when this is worse than it could be; empty otherwise
};
TREADLE_FIELDS(Fact, name, text, advice)

// `memoryLimitBytes`: of the worker's tensors (Metrics).
std::vector<Fact> factsOfMachine(size_t memoryLimitBytes);
Fact idleFact();  // of this moment

std::string kernelText();     // "Linux 6.1.0 x86_64"
std::string processorText();  // its model
int usableCores();            // that this process may run on
// How many of those had nothing to do, measured now; negative when the system does not tell.
double idleCores();

}  // namespace treadle::cli
