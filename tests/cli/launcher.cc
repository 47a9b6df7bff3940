#include "tests/cli/launcher.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "tests/support/places.h"
#include "tests/support/readable.h"

namespace treadle::cli {
namespace {

io::Process startTreadle(std::vector<std::string> arguments,
                         std::vector<std::pair<std::string, std::string>> environment) {
  // Whoever runs the tests in the background may have made us ignore these, which children inherit.
  for (int number : {SIGINT, SIGHUP, SIGQUIT}) ::signal(number, SIG_DFL);
  auto process = io::Process::start({test::treadleCommand(), std::move(arguments), std::move(environment), {}});
  if (!process.ok()) throw std::runtime_error(process.status().toString());
  return std::move(*process);
}

}  // namespace

Launcher::Launcher(std::vector<std::string> arguments, std::vector<std::pair<std::string, std::string>> environment)
    : process_(startTreadle(std::move(arguments), std::move(environment))) {}

Launcher Launcher::shell(int workers, const std::string& script, std::vector<std::string> options) {
  std::vector<std::string> all = {"run", "-n", std::to_string(workers)};
  all.insert(all.end(), options.begin(), options.end());
  all.insert(all.end(), {"--", "/bin/sh", "-c", script});
  return Launcher(all);
}

Launcher Launcher::withWorkers(int workers, std::vector<std::string> options, std::vector<std::string> arguments) {
  std::vector<std::string> all = {"run", "-n", std::to_string(workers)};
  all.insert(all.end(), options.begin(), options.end());
  all.insert(all.end(), {"--", test::testProgram("cli_worker_program")});
  all.insert(all.end(), arguments.begin(), arguments.end());
  Launcher launcher(all);
  for (int rank = 0; rank < workers; ++rank) {
    std::string ready = "[" + std::to_string(rank) + "] ready " + std::to_string(rank) + " ";
    launcher.waitForOut(ready);
    launcher.workers_[rank] = std::stoi(launcher.out_.substr(launcher.out_.find(ready) + ready.size()));
  }
  return launcher;
}

void Launcher::waitFor(const std::string& in, const std::string& text) {
  TimePoint deadline = test::patience();
  // A whole line, so that a number at its end is complete.
  auto found = [&] {
    size_t at = in.find(text);
    return at != std::string::npos && in.find('\n', at) != std::string::npos;
  };
  while (!found()) {
    ASSERT_TRUE(test::isInTime(deadline)) << "no '" << text << "' in:\n" << out_ << err_;
    ASSERT_TRUE(readSome()) << "the end came before '" << text << "' in:\n" << out_ << err_;
  }
}

void Launcher::waitForErrOnly(const std::string& text) {
  TimePoint deadline = test::patience();
  while (err_.find(text) == std::string::npos) {
    ASSERT_TRUE(test::isInTime(deadline)) << "no '" << text << "' in:\n" << err_;
    ASSERT_TRUE(readSome(false)) << "the end came before '" << text << "' in:\n" << err_;
  }
}

void Launcher::waitUntilOutIsFull() {
  TimePoint deadline = test::patience();
  int capacity = ::fcntl(process_.standardOutput().get(), F_GETPIPE_SZ), queued = 0;
  // There is no event for "full". A page may be given up half empty, so the last few do not count.
  while (queued < capacity * 3 / 4) {
    ASSERT_TRUE(test::isInTime(deadline)) << queued << " bytes of " << capacity << " are in the pipe";
    ASSERT_EQ(0, ::ioctl(process_.standardOutput().get(), FIONREAD, &queued));
    ::sched_yield();
  }
}

// One round of both pipes; false at the end of both.
bool Launcher::readSome(bool outToo) {
  std::array<pollfd, 2> fds = {pollfd{outToo ? process_.standardOutput().get() : -1, POLLIN, 0},
                               pollfd{process_.standardError().get(), POLLIN, 0}};
  if (fds[0].fd < 0 && fds[1].fd < 0) return false;
  if (::poll(fds.data(), fds.size(), 1000) <= 0) return true;
  for (io::Fd* fd : {&process_.standardOutput(), &process_.standardError()}) {
    if (!outToo && fd == &process_.standardOutput()) continue;
    std::array<char, 65536> bytes;
    ssize_t size = fd->valid() ? ::read(fd->get(), bytes.data(), bytes.size()) : -1;
    if (size > 0) (fd == &process_.standardOutput() ? out_ : err_).append(bytes.data(), static_cast<size_t>(size));
    if (size == 0) fd->reset();
  }
  return true;
}

int Launcher::finish() {
  TimePoint deadline = test::patience();
  while (Clock::now() < deadline && readSome()) {}
  EXPECT_TRUE(test::readable(process_.endFd(), "the launcher's end")) << out_ << err_;
  auto end = process_.takeEnd();
  if (!end) return -1;
  return end->killed ? 1000 + end->value : end->value;
}

std::string Launcher::lastErrLine() const {
  std::vector<std::string> lines;
  std::istringstream text(err_);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines.empty() ? "" : lines.back();
}

std::vector<std::string> sortedLines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

bool isGone(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

io::Fd watchProcess(pid_t pid) { return io::Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

}  // namespace treadle::cli
