#pragma once
// The command line of `treadle run`: reads it and starts the job.

#include <CLI/CLI.hpp>

#include "treadle/cli/command_line.h"

namespace treadle::cli {

// Adds the subcommand `run` to `app`. When the app parses it, `*exitCode` is set to what the process shall
// return.
void addRunCommand(CLI::App& app, const CommandLine& line, int* exitCode);

}  // namespace treadle::cli
