#pragma once
// The one place where Treadle reads environment variables, so that what it listens to can be seen in one search.

#include <optional>
#include <string>

namespace treadle::base {

// The variable's value; nothing when it is unset or empty.
std::optional<std::string> environment(const char* name);

}  // namespace treadle::base
