#pragma once
// Reads texts. Functions without state; any thread.

#include <string>

namespace example {

// A text that every Debian has.
inline constexpr const char* kDefaultText = "/usr/share/common-licenses/GPL-3";

// The bytes of a file. Throws std::runtime_error with one sentence that names the file: it cannot be read, or is empty.
std::string readText(const std::string& path);

}  // namespace example
