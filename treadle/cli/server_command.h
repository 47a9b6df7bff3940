#pragma once
// `treadle server` on the command line.

#include <CLI/CLI.hpp>

#include "treadle/cli/command_line.h"

namespace treadle::cli {

// `line` and `exitCode` have to outlive the parse.
void addServerCommand(CLI::App& app, const CommandLine& line, int* exitCode);

}  // namespace treadle::cli
