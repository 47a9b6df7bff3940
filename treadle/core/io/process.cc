#include "treadle/core/io/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

#include "treadle/core/base/environment.h"
#include "treadle/core/io/socket.h"

namespace treadle::io {
namespace {

// Close-on-exec, as all descriptors of ours: a pipe's end that leaks into another child would keep it from
// ending.
struct Pipe {
  Fd read, write;
};

Result<Pipe> makePipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return errnoStatus(Code::kResourceExhausted, "no pipe can be made for a child process", errno);
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

// Everything the child needs, made before fork(): between fork and exec only async-signal-safe calls are
// allowed, because another thread of ours may hold malloc's lock at the moment of the fork.
struct ChildPlan {
  const char* program;
  std::vector<char*> argv, envp;
  const std::vector<int>* keepOpen;
  int input, output, error, report;
  pid_t parent;
};

[[noreturn]] void becomeProgram(const ChildPlan& plan) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the line above: then nobody would ever send that signal.
  if (::getppid() != plan.parent) ::_exit(127);
  sigset_t none;
  sigemptyset(&none);
  ::signal(SIGPIPE, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::dup2(plan.input, STDIN_FILENO);
  ::dup2(plan.output, STDOUT_FILENO);
  ::dup2(plan.error, STDERR_FILENO);
  for (int fd : *plan.keepOpen) ::fcntl(fd, F_SETFD, 0);
  ::execve(plan.program, plan.argv.data(), plan.envp.data());
  int error = errno;
  (void)!::write(plan.report, &error, sizeof error);
  ::_exit(127);
}

// Our environment with the additions in it, as "NAME=value". The one place besides base/environment.cc that
// touches `environ`: it hands the variables on and reads none of them.
std::vector<std::string> childEnvironment(const std::vector<std::pair<std::string, std::string>>& additions) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view text(*entry), name = text.substr(0, text.find('='));
    bool replaced = false;
    for (const auto& addition : additions) replaced = replaced || addition.first == name;
    if (!replaced) all.emplace_back(text);
  }
  for (const auto& [name, value] : additions) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointersTo(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

Status cannotRun(const std::string& program, int error) {
  Code code = error == ENOENT ? Code::kNotFound : Code::kFailedPrecondition;
  std::string why;
  if (error == ENOENT) why = " (or the interpreter that its first line names)";
  if (error == ENOEXEC) why = " (a script needs a first line like #!/bin/sh)";
  return errnoStatus(code, "cannot run '" + program + "'" + why, error);
}

// 0 once the program runs, or exec's error number. exec closes the pipe, or the child writes the number into it. A
// child that is stopped before its exec does neither: it counts as started, and its stop is told like any other.
int awaitExec(int report, pid_t child) {
  constexpr Duration kBetweenLooks = std::chrono::milliseconds(20);  // at a child that does not get on
  while (!waitFor(report, POLLIN, deadlineAfter(kBetweenLooks))) {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(child), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0)
      return 0;
  }
  int error = 0;
  return ::read(report, &error, sizeof error) == sizeof error ? error : 0;
}

bool isExecutableFile(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

Result<std::string> checkedPath(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return notFound("there is no program '" + path + "'");
    return errnoStatus(Code::kFailedPrecondition, "cannot run '" + path + "'", errno);
  }
  if (S_ISDIR(info.st_mode)) return failedPrecondition("'" + path + "' is a folder, not a program");
  if (!isExecutableFile(path))
    return failedPrecondition("'" + path + "' is not executable: chmod +x makes it so, if it is a program");
  return path;
}

}  // namespace

Process::Process(Process&& other) noexcept { *this = std::move(other); }

Process& Process::operator=(Process&& other) noexcept {
  if (this == &other) return *this;
  end();
  pid_ = std::exchange(other.pid_, -1);
  pidFd_ = std::move(other.pidFd_);
  out_ = std::move(other.out_);
  err_ = std::move(other.err_);
  end_ = std::exchange(other.end_, std::nullopt);
  return *this;
}

Process::~Process() { end(); }

Result<Process> Process::start(const ProcessOptions& options) {
  Result<Pipe> out = makePipe(), err = makePipe(), report = makePipe();
  for (const Result<Pipe>* pipe : {&out, &err, &report})
    if (!pipe->ok()) return pipe->status();
  Fd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!input.valid()) return errnoStatus(Code::kResourceExhausted, "cannot open /dev/null", errno);

  std::vector<std::string> arguments = options.arguments, environment = childEnvironment(options.environment);
  arguments.insert(arguments.begin(), options.program);
  ChildPlan plan{options.program.c_str(), pointersTo(arguments), pointersTo(environment),
                 &options.keepOpen,       input.get(),           out->write.get(),
                 err->write.get(),        report->write.get(),   ::getpid()};
  Process child;  // from here on its destructor cleans up
  child.pid_ = ::fork();
  if (child.pid_ == 0) becomeProgram(plan);
  if (child.pid_ < 0) return errnoStatus(Code::kResourceExhausted, "no process can be made", errno);
  ::setpgid(child.pid_, child.pid_);  // as the child does: a signal to the group may be sent before it gets there
  report->write.reset();
  if (int error = awaitExec(report->read.get(), child.pid_); error != 0) return cannotRun(options.program, error);
  // By number: glibc 2.36 declares the function without C linkage.
  child.pidFd_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid_, 0)));
  if (!child.pidFd_.valid())
    return errnoStatus(Code::kResourceExhausted, "no descriptor is left to watch a process", errno);
  child.out_ = std::move(out->read);
  child.err_ = std::move(err->read);
  ::fcntl(child.out_.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(child.err_.get(), F_SETFL, O_NONBLOCK);
  return child;
}

void Process::end() {
  if (pid_ < 0 || end_) return;
  signal(SIGKILL);
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0 && errno == EINTR) {}
  pid_ = -1;
}

std::optional<ProcessStop> Process::takeStop() {
  std::optional<ProcessStop> last;
  siginfo_t info{};
  while (pid_ > 0 && !end_ && ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 &&
         info.si_pid != 0) {
    last = ProcessStop{info.si_code != CLD_CONTINUED, info.si_status};
    info = {};
  }
  return last;
}

std::optional<ProcessEnd> Process::takeEnd() {
  siginfo_t info{};
  if (pid_ < 0 || end_) return end_;
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0) return {};
  end_ = ProcessEnd{info.si_code != CLD_EXITED, info.si_status, info.si_code == CLD_DUMPED};
  return end_;
}

void Process::signal(int number) {
  if (pid_ <= 0 || end_) return;
  const bool inItsGroup = ::getpgid(pid_) == pid_;
  ::kill(-pid_, number);
  if (!inItsGroup) ::kill(pid_, number);
}

Result<std::string> findProgram(const std::string& name) {
  if (name.empty()) return invalidArgument("the program's name is empty");
  if (name.find('/') != std::string::npos) return checkedPath(name);
  std::istringstream folders(base::environment("PATH").value_or("/usr/local/bin:/usr/bin:/bin"));
  std::optional<std::string> found;  // a file of that name that cannot be run: worth a better message than "none"
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (isExecutableFile(path)) return path;
    if (!found && ::access(path.c_str(), F_OK) == 0) found = path;
  }
  if (found) return checkedPath(*found);
  std::string advice = ::access(name.c_str(), F_OK) == 0 ? "; the one in this folder is ./" + name : "";
  return notFound("there is no program '" + name + "' in PATH" + advice);
}

std::string signalName(int number) {
  const char* name = ::sigabbrev_np(number);
  return name != nullptr ? "SIG" + std::string(name) : "signal " + std::to_string(number);
}

void adoptOrphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::vector<pid_t> childProcesses() {
  std::vector<pid_t> children;
  // One list per thread of ours; those who started children, and the first thread, which adopts, are the ones
  // asked.
  std::ifstream list("/proc/thread-self/children"),
      adopted("/proc/self/task/" + std::to_string(::getpid()) + "/children");
  for (pid_t child; adopted >> child;) children.push_back(child);
  if (::gettid() != ::getpid())
    for (pid_t child; list >> child;) children.push_back(child);
  return children;
}

}  // namespace treadle::io
