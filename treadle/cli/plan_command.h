#pragma once
// The command line of `treadle plan`.

#include <CLI/CLI.hpp>

#include "treadle/cli/command_line.h"

namespace treadle::cli {

// Adds the subcommand to `app`. When the app parses it, `*exitCode` is set to what the process shall return.
void addPlanCommand(CLI::App& app, const CommandLine& line, int* exitCode);

}  // namespace treadle::cli
