#pragma once
// hybrid_digits --single: the whole job in this process. Called once, by main's thread.

#include "examples/common/run_folder.h"
#include "examples/hybrid_digits/options.h"

namespace hybrid {

// Trains, shows progress, fills the run folder and prints the last line. Throws what its parts throw.
void runSingle(const Options& options);

inline constexpr const char* kModelFile = "model.safetensors";  // in the run folder

// The folder that the options name, new.
example::RunFolder makeRunFolder(const Options& options);

// The end of every job after its training: prints where metrics and model are, and the command that draws the metrics.
void finishRun(const example::RunFolder& folder);

}  // namespace hybrid
