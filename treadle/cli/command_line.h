#pragma once
// What all commands share: how the command line is split, and how one that cannot go on ends.

#include <string>
#include <vector>

namespace treadle::cli {

// Exit codes of the command itself, as shells have them; those of workers are passed through.
inline constexpr int kExitCannotStart = 1, kExitUsage = 2, kExitNotExecutable = 126, kExitNotFound = 127;

// What stands before and behind the first `--` of a command line. The launcher's options and the program's
// can look alike, so the two never meet.
struct CommandLine {
  std::vector<std::string> options;
  std::vector<std::string> program;
  bool separated = false;  // there was a `--`
};
CommandLine split(int argc, char** argv);

// Writes "`command`: `message`" to stderr and returns `exitCode`. `command` as it was typed: "treadle run".
int complain(const std::string& command, const std::string& message, int exitCode);

}  // namespace treadle::cli
