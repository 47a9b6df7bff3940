#include "examples/common/command_line.h"

#include <cmath>
#include <cstdlib>
#include <iostream>

namespace example {

std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help() << std::flush;
    return 0;
  } catch (const CLI::ParseError& error) {
    const std::string name = app.get_name();
    std::cerr << name + ": " + error.what() + " (" + name + " --help lists the options)\n";
    return 2;
  }
}

std::string checkAboveZero(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool number = end != text.c_str() && *end == '\0';
  return number && std::isfinite(value) && value > 0 ? "" : "must be a number above 0, not " + text;
}

}  // namespace example
