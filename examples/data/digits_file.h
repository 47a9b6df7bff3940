#pragma once
// Reads the handwritten digits (README.md). Functions without state; any thread.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace digits {

inline constexpr int64_t kPixels = 64;  // 8 x 8, row by row
inline constexpr int64_t kLevels = 17;  // 0 to 16
inline constexpr int64_t kClasses = 10;
inline constexpr int64_t kDigits = 1797;

struct Digit {
  std::array<int64_t, kPixels> levels;
  int64_t label;
};

// The file of the source tree.
std::string defaultPath();

// All digits in the order of the file; every number is checked. Throws std::runtime_error with one sentence that names
// the file and, where there is one, the line.
std::vector<Digit> readFile(const std::string& path);

}  // namespace digits
