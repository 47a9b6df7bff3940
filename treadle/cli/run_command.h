#pragma once
// The command line of `treadle run`: reads it and starts the job.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace treadle::cli {

// What stands before and behind the first `--` of a command line. The launcher's options and the program's
// can look alike, so the two never meet.
struct CommandLine {
  std::vector<std::string> options;
  std::vector<std::string> program;
  bool separated = false;  // there was a `--`
};
CommandLine split(int argc, char** argv);

// Adds the subcommand `run` to `app`. When the app parses it, `*exitCode` is set to what the process shall
// return.
void addRunCommand(CLI::App& app, const CommandLine& line, int* exitCode);

}  // namespace treadle::cli
