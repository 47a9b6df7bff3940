#pragma once
// Child processes: one is started with its output in pipes, heads a process group of its own and is killed by
// the kernel when the thread that started it ends, whatever way (PR_SET_PDEATHSIG), so start it from a thread
// that lives as long as it shall. Owned by whoever started it; one thread at a time.
//
// A group of its own means that a Ctrl-C at the terminal reaches the parent alone, who passes it on once, and
// that `signal` reaches what the child started too. Descriptors 0, 1 and 2 of the parent must be open.

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/core/io/fd.h"

namespace treadle::io {

struct ProcessOptions {
  std::string program;                 // a path; `findProgram` turns a bare name into one
  std::vector<std::string> arguments;  // without the program's own name
  // On top of our environment; replaces what has the same name.
  std::vector<std::pair<std::string, std::string>> environment;
  // Descriptors of ours that it inherits under their numbers. All others should be close-on-exec.
  std::vector<int> keepOpen;
};

struct ProcessEnd {
  bool killed = false;  // by the signal `value`; otherwise it exited with the code `value`
  int value = 0;
  bool coreDumped = false;

  bool good() const { return !killed && value == 0; }
};

struct ProcessStop {
  bool stopped = false;  // by the signal `number`; otherwise it goes on again
  int number = 0;
};

class Process {
 public:
  // Returns once the program runs, or is stopped before it could. Standard input is /dev/null, signals have their
  // default mask. NotFound or FailedPrecondition when the program cannot be run, ResourceExhausted when the machine has
  // no room for it.
  static Result<Process> start(const ProcessOptions& options);
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  // A child that has not ended is killed, with its group, and waited for.
  ~Process();

  pid_t pid() const { return pid_; }
  int endFd() const { return pidFd_.get(); }  // becomes readable when the process has ended (a pidfd)
  Fd& standardOutput() { return out_; }       // read ends, non-blocking
  Fd& standardError() { return err_; }

  // The last stop or continuation since the previous call, if any. Does not wait.
  std::optional<ProcessStop> takeStop();
  // How it ended; nothing while it runs. The same answer again afterwards. Does not wait.
  std::optional<ProcessEnd> takeEnd();
  // To the whole group, and to the child should it have left it. Does nothing once takeEnd() has told the end: the
  // number may belong to a stranger by then.
  void signal(int number);

 private:
  Process() = default;
  void end();

  pid_t pid_ = -1;
  Fd pidFd_, out_, err_;
  std::optional<ProcessEnd> end_;
};

// The path of `name`: itself when it holds a slash, otherwise the first executable of that name in PATH.
// NotFound, or FailedPrecondition for a folder or a file that may not be executed; the sentences say what to
// do.
Result<std::string> findProgram(const std::string& name);

// "SIGKILL"; "signal 40" for one without a name.
std::string signalName(int number);

// From now on, orphans among our descendants become our children (PR_SET_CHILD_SUBREAPER). For programs only:
// it is a property of the process.
void adoptOrphans();

// Our children right now, adopted ones included; empty where the kernel does not tell.
std::vector<pid_t> childProcesses();

}  // namespace treadle::io
