#pragma once
// The one place where Treadle reads environment variables, so that what it listens to can be seen in one search.

#include <optional>
#include <string>

namespace treadle::base {

// The variable's value; nothing when it is unset or empty. As getenv(3) is: not beside a thread that calls setenv, so
// read what you need when the program starts.
std::optional<std::string> environment(const char* name);

}  // namespace treadle::base
