#include "examples/common/text_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace example {
namespace {

[[noreturn]] void askForAnother(const std::string& path, const std::string& what) {
  throw std::runtime_error(path + ": " + what + "; name a text with --text");
}

}  // namespace

std::string readText(const std::string& path) {
  if (std::filesystem::is_directory(path)) askForAnother(path, "is a folder");
  std::ifstream file(path, std::ios::binary);
  if (file.peek() == std::ifstream::traits_type::eof()) askForAnother(path, file.eof() ? "is empty" : "cannot be read");
  std::ostringstream read;
  if (!(read << file.rdbuf())) askForAnother(path, "cannot be read");
  return read.str();
}

}  // namespace example
