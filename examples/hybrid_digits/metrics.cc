#include "examples/hybrid_digits/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

namespace hybrid {
namespace {

std::string timestamp() {
  std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  return text;
}

[[noreturn]] void fail(const std::string& path, const std::string& what, const std::error_code& error) {
  throw std::runtime_error(path + ": " + what + ": " + error.message());
}

// A folder of one's own under a name nobody has: two runs of one second get "-2" and so on.
std::string makeDatedFolder() {
  std::string wanted = "runs/hybrid_digits-" + timestamp();
  std::error_code error;
  std::filesystem::create_directories("runs", error);
  if (error) fail("runs", "the folder of runs cannot be made", error);
  std::string path = wanted;
  for (int number = 2; !std::filesystem::create_directory(path, error); ++number) {
    if (error) fail(path, "the run folder cannot be made", error);
    path = wanted + "-" + std::to_string(number);
  }
  return path;
}

}  // namespace

std::string jsonOf(const EpochMetrics& metrics) {
  nlohmann::ordered_json line = {
      {"epoch", metrics.epoch},       {"trainer", metrics.trainer},       {"loss", metrics.loss},
      {"accuracy", metrics.accuracy}, {"steps_per_s", metrics.stepsPerS}, {"seconds", metrics.seconds}};
  return line.dump();
}

RunFolder RunFolder::make(const std::string& named) {
  if (named.empty()) return RunFolder(makeDatedFolder());
  std::error_code error;
  std::filesystem::create_directories(named, error);
  if (error) fail(named, "the run folder cannot be made; name another with --run-folder", error);
  RunFolder folder(named);
  if (std::filesystem::exists(folder.metricsPath(), error)) {
    throw std::runtime_error(named +
                             ": this folder already holds a run (metrics.jsonl); name another with --run-folder");
  }
  return folder;
}

MetricsWriter::MetricsWriter(std::string path) : path_(std::move(path)) {
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) fail(path_, "cannot be written", std::error_code(errno, std::generic_category()));
}

MetricsWriter::~MetricsWriter() { close(fd_); }

void MetricsWriter::write(const EpochMetrics& metrics) {
  std::string line = jsonOf(metrics) + "\n";
  ssize_t written = ::write(fd_, line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return;
  std::error_code error = written < 0 ? std::error_code(errno, std::generic_category())
                                      : std::make_error_code(std::errc::no_space_on_device);
  fail(path_, "cannot be written", error);
}

}  // namespace hybrid
