#pragma once
// Draws metrics.png by running plot_metrics.py in a Python that has matplotlib. A picture is a convenience:
// whatever goes wrong is a sentence to print, never a reason for the training to fail. Any thread; blocks
// until the time limit at most.

#include <chrono>
#include <string>
#include <vector>

namespace hybrid {

struct CommandResult {
  int exitCode = -1;  // -1: it was killed, by us or others
  bool timedOut = false;
  std::string output;  // of both streams, its first 64 KB
};

// Runs a program found along PATH, without a shell, with nothing on its standard input. A program that is not
// done within `limit` is killed. Throws std::runtime_error when it cannot be started.
CommandResult runCommand(const std::vector<std::string>& arguments, std::chrono::milliseconds limit);

// The Python of this build's environment: the variable TREADLE_PYTHON, or python3.
std::string pythonProgram();

// Draws `metricsPath` as `plotPath` with `python` and the script. Empty on success, else one sentence that
// says why not.
std::string drawMetrics(const std::string& python, const std::string& script, const std::string& metricsPath,
                        const std::string& plotPath, std::chrono::milliseconds limit = std::chrono::seconds(60));

}  // namespace hybrid
