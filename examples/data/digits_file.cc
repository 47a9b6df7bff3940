#include "examples/data/digits_file.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string_view>

namespace digits {
namespace {

constexpr size_t kColumns = kPixels + 1;     // the label is the last one
constexpr uintmax_t kLargestFile = 4 << 20;  // the real one has 265 KB

[[noreturn]] void fail(const std::string& path, size_t line, const std::string& what) {
  throw std::runtime_error(path + ":" + std::to_string(line) + ": " + what);
}

std::string readText(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw std::runtime_error(path + ": there is no such file; name the digits with --data");
  }
  if (!std::filesystem::is_regular_file(path, error)) throw std::runtime_error(path + ": this is not a regular file");
  uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) throw std::runtime_error(path + ": cannot be read: " + error.message());
  if (bytes > kLargestFile)
    throw std::runtime_error(path + ": is too large for the file of digits: " + std::to_string(bytes) + " bytes");
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(bytes))) throw std::runtime_error(path + ": cannot be read");
  return text;
}

std::string columnNames() {
  std::string names;
  for (int64_t pixel = 0; pixel < kPixels; ++pixel)
    names += "pixel_" + std::to_string(pixel / 8) + "_" + std::to_string(pixel % 8) + ",";
  return names + "label";
}

// The next line without its end. A last line without one is how a file that was cut short looks.
std::string_view takeLine(std::string_view& rest, const std::string& path, size_t line) {
  size_t end = rest.find('\n');
  if (end == std::string_view::npos) fail(path, line, "the file is cut short in this line");
  std::string_view taken = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return taken;
}

int64_t takeNumber(std::string_view& rest, const std::string& path, size_t line, size_t column) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  bool last = column + 1 == kColumns;
  bool ended = end == rest.data() + rest.size();
  if (error != std::errc() || (!ended && *end != ',')) {
    fail(path, line, "column " + std::to_string(column + 1) + " is not a whole number");
  }
  if (ended != last) {
    fail(path, line,
         ended ? "the line has " + std::to_string(column + 1) + " numbers instead of " + std::to_string(kColumns)
               : "the line has more than " + std::to_string(kColumns) + " numbers");
  }
  rest.remove_prefix(static_cast<size_t>(end - rest.data()) + (ended ? 0 : 1));
  int64_t highest = last ? kClasses - 1 : kLevels - 1;
  if (value < 0 || value > highest) {
    fail(path, line,
         (last ? "the label" : "the level of column " + std::to_string(column + 1)) + std::string(" is ") +
             std::to_string(value) + " and must be 0 to " + std::to_string(highest));
  }
  return value;
}

}  // namespace

std::string defaultPath() { return EXAMPLE_DIGITS; }

std::vector<Digit> readFile(const std::string& path) {
  std::string text = readText(path);
  std::string_view rest = text;
  size_t line = 1;
  if (takeLine(rest, path, line) != columnNames())
    fail(path, line, "these are not the column names of the file of digits");
  std::vector<Digit> found;
  while (!rest.empty()) {
    std::string_view numbers = takeLine(rest, path, ++line);
    Digit& digit = found.emplace_back();
    for (size_t pixel = 0; pixel < kPixels; ++pixel) digit.levels[pixel] = takeNumber(numbers, path, line, pixel);
    digit.label = takeNumber(numbers, path, line, kPixels);
  }
  if (found.size() != kDigits) {
    fail(path, line,
         "the file ends after " + std::to_string(found.size()) + " digits instead of " + std::to_string(kDigits));
  }
  return found;
}

}  // namespace digits
