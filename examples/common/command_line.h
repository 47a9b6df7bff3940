#pragma once
// The command line of an example. Functions without state.

#include <CLI/CLI.hpp>

#include <optional>
#include <string>

namespace example {

// Reads and checks the command line. Returns nothing when the program should go on, else its exit code: 0 after
// --help, 2 after one line on standard error that says what is wrong.
std::optional<int> parse(CLI::App& app, int argc, char** argv);

// A check for an option that is a finite number above 0: the error, or an empty string. CLI11's own PositiveNumber and
// Range let "nan" pass.
std::string checkAboveZero(const std::string& text);

}  // namespace example
