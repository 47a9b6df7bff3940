#include "treadle/cli/numbers.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace treadle::cli {

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

std::string fixed(double number, int digits) {
  std::array<char, 64> text;
  int size = std::snprintf(text.data(), text.size(), "%.*f", digits, number);
  return {text.data(), static_cast<size_t>(size)};
}

std::string bytesText(double bytes) {
  constexpr std::array<const char*, 4> kUnits = {"bytes", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  bool whole = bytes == static_cast<double>(static_cast<int64_t>(bytes));
  return fixed(bytes, whole ? 0 : 1) + " " + kUnits[unit];
}

std::string countText(size_t count, const std::string& one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

std::string timeText(double microseconds) {
  if (microseconds < 1e3) return fixed(microseconds, 1) + " us";
  if (microseconds < 1e6) return fixed(microseconds / 1e3, 2) + " ms";
  return fixed(microseconds / 1e6, 2) + " s";
}

}  // namespace treadle::cli
