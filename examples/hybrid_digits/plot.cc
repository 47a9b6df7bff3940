#include "examples/hybrid_digits/plot.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <system_error>

extern char** environ;

namespace hybrid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostOutput = 64 * 1024;

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::runtime_error(what + ": " + std::generic_category().message(error));
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { reset(); }
  void reset() {
    if (number_ >= 0) close(number_);
    number_ = -1;
  }
  int number() const { return number_; }

 private:
  int number_;
};

// posix_spawn rather than fork: the caller may have threads, and may be large.
pid_t spawn(const std::vector<std::string>& arguments, int output) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  pid_t pid = 0;
  int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail(arguments[0] + " cannot be started", error);
  return pid;
}

// Waits until `fd` has something to tell; false when the deadline came first.
bool waitFor(int fd, Clock::time_point deadline) {
  for (;;) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd watched{.fd = fd, .events = POLLIN, .revents = 0};
    int ready = poll(&watched, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000)));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

// Everything the program says, until all ends of the pipe are closed or the deadline.
std::string readOutput(int fd, Clock::time_point deadline) {
  std::string output;
  char chunk[4096];
  while (waitFor(fd, deadline)) {
    ssize_t got = read(fd, chunk, sizeof chunk);
    if (got <= 0) break;
    output.append(chunk, std::min(static_cast<size_t>(got), kMostOutput - output.size()));
  }
  return output;
}

std::string lastLine(const std::string& text) {
  size_t end = text.find_last_not_of(" \n\r");
  if (end == std::string::npos) return "it said nothing";
  size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

}  // namespace

CommandResult runCommand(const std::vector<std::string>& arguments, std::chrono::milliseconds limit) {
  Clock::time_point deadline = Clock::now() + limit;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail("no pipe for " + arguments[0], errno);
  Descriptor reading(ends[0]), writing(ends[1]);
  pid_t pid = spawn(arguments, writing.number());
  writing.reset();
  // By number: the header of this name in Debian 12 cannot be used from C++ (no extern "C").
  Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  CommandResult result;
  result.output = readOutput(reading.number(), deadline);
  // A program may close its output and go on: the end of the output is not its end.
  result.timedOut = process.number() < 0 || !waitFor(process.number(), deadline);
  if (result.timedOut) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  if (WIFEXITED(status)) result.exitCode = WEXITSTATUS(status);
  return result;
}

std::string pythonProgram() {
  const char* named = std::getenv("TREADLE_PYTHON");
  return named != nullptr && *named != '\0' ? named : "python3";
}

std::string drawMetrics(const std::string& python, const std::string& script, const std::string& metricsPath,
                        const std::string& plotPath, std::chrono::milliseconds limit) {
  try {
    CommandResult result = runCommand({python, script, metricsPath, plotPath}, limit);
    if (result.exitCode == 0) return {};
    if (result.timedOut)
      return "no " + plotPath + ": drawing it took longer than " + std::to_string(limit.count() / 1000) + " s";
    return "no " + plotPath + ": " + lastLine(result.output);
  } catch (const std::runtime_error& error) {
    return "no " + plotPath + ": " + error.what() + " (TREADLE_PYTHON names the Python to use)";
  }
}

}  // namespace hybrid
