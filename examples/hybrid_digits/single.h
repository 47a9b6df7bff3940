#pragma once
// hybrid_digits --single: the whole job in this process. Called once, by main's thread.

#include "examples/hybrid_digits/options.h"

namespace hybrid {

// Trains, shows progress, fills the run folder and prints the last line. Throws what its parts throw.
void runSingle(const Options& options);

// What every job does when its training is over: draws the metrics of the folder and prints where things are,
// or why there is no picture.
void finishRun(const RunFolder& folder);

}  // namespace hybrid
