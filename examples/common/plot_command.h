#pragma once
// How a run's metrics become a picture. Any thread.

#include <string>

#include "examples/common/run_folder.h"

namespace example {

// The command that draws metrics.jsonl of the folder as metrics.png, under `title`: plot_metrics.py, beside this file,
// in the Python that TREADLE_PYTHON names, else `python3`, which needs matplotlib.
std::string plotCommand(const RunFolder& folder, const std::string& title);

}  // namespace example
