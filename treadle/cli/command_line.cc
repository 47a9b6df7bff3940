#include "treadle/cli/command_line.h"

#include <iostream>
#include <string_view>

namespace treadle::cli {

CommandLine split(int argc, char** argv) {
  CommandLine line;
  for (int i = 1; i < argc; ++i) {
    std::string_view argument = argv[i];
    if (!line.separated && argument == "--")
      line.separated = true;
    else
      (line.separated ? line.program : line.options).emplace_back(argument);
  }
  return line;
}

int complain(const std::string& command, const std::string& message, int exitCode) {
  std::cerr << command << ": " << message << "\n";
  return exitCode;
}

}  // namespace treadle::cli
