#pragma once
// Numbers of a command line as they were typed, and how they are shown. Pure.

#include <charconv>
#include <optional>
#include <string>

namespace treadle::cli {

// All of `text` as a number in that range; nothing otherwise.
template <class Number>
std::optional<Number> numberIn(const std::string& text, Number lowest, Number highest) {
  Number number{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && number >= lowest && number <= highest ? std::optional(number) : std::nullopt;
}

// "12.0 GiB", "512 KiB".
std::string bytesText(double bytes);
// "1 worker", "2 workers".
std::string countText(size_t count, const std::string& one);
// Of microseconds: "12.3 us", "4.56 ms", "1.20 s".
std::string timeText(double microseconds);
// With spaces behind it, at least `width` characters.
std::string padded(std::string text, size_t width);
// With so many digits behind the point.
std::string fixed(double number, int digits);

}  // namespace treadle::cli
