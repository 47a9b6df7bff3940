#include "examples/common/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace example {
namespace {

[[noreturn]] void cannotBeWritten(const std::string& path, const std::error_code& error) {
  throw std::runtime_error(path + ": cannot be written: " + error.message() +
                           "; name another folder with --run-folder");
}

}  // namespace

MetricsFile::MetricsFile(std::string path) : path_(std::move(path)) {
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) cannotBeWritten(path_, std::error_code(errno, std::generic_category()));
}

MetricsFile::~MetricsFile() { close(fd_); }

void MetricsFile::write(const std::string& line) {
  const std::string bytes = line + "\n";
  const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
  if (written == static_cast<ssize_t>(bytes.size())) return;
  cannotBeWritten(path_, written < 0 ? std::error_code(errno, std::generic_category())
                                     : std::make_error_code(std::errc::no_space_on_device));
}

}  // namespace example
