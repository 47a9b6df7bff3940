#include "examples/common/run_folder.h"

#include <ctime>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace example {
namespace {

std::string timestamp() {
  std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  return text;
}

[[noreturn]] void cannotBeMade(const std::string& path, const std::error_code& error) {
  throw std::runtime_error(path + ": the run folder cannot be made: " + error.message() +
                           "; name another with --run-folder");
}

// A new folder under a name that is free: two runs of one second get "-2" and so on.
std::string makeDatedFolder(const std::string& program) {
  std::string wanted = "runs/" + program + "-" + timestamp();
  std::error_code error;
  std::filesystem::create_directories("runs", error);
  if (error) cannotBeMade("runs", error);
  std::string path = wanted;
  for (int number = 2; !std::filesystem::create_directory(path, error); ++number) {
    if (error) cannotBeMade(path, error);
    path = wanted + "-" + std::to_string(number);
  }
  return path;
}

}  // namespace

RunFolder RunFolder::make(const std::string& program, const std::string& named) {
  if (named.empty()) return RunFolder(makeDatedFolder(program));
  std::error_code error;
  std::filesystem::create_directories(named, error);
  if (error) cannotBeMade(named, error);
  RunFolder folder(named);
  const auto bytes = std::filesystem::file_size(folder.metricsPath(), error);
  if (!error && bytes > 0) {
    throw std::runtime_error(named +
                             ": this folder already holds a run (metrics.jsonl); name another with --run-folder");
  }
  return folder;
}

}  // namespace example
