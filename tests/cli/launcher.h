#pragma once
// The `treadle` command as a test sees it: started with its output in pipes, read until something appears,
// waited for. Every wait has a deadline far above what it takes.

#include <signal.h>
#include <sys/syscall.h>

#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "treadle/core/io/process.h"
#include "treadle/core/io/socket.h"

namespace treadle::cli {

class Launcher {
 public:
  // `arguments` are those of `treadle`.
  explicit Launcher(std::vector<std::string> arguments,
                    std::vector<std::pair<std::string, std::string>> environment = {});

  // `treadle run -n workers options... -- /bin/sh -c script`.
  static Launcher shell(int workers, const std::string& script, std::vector<std::string> options = {});
  // `treadle run -n workers options... -- worker_program`, all workers ready.
  static Launcher withWorkers(int workers, std::vector<std::string> options = {},
                              std::vector<std::string> arguments = {});

  // Reads on until standard output or error holds `text`; fails the test when it never does.
  void waitForOut(const std::string& text) { waitFor(out_, text); }
  void waitForErr(const std::string& text) { waitFor(err_, text); }
  // Likewise, while standard output is not read: as with a pager that waits for a key.
  void waitForErrOnly(const std::string& text);
  // Until the pipe from the launcher's standard output takes no more.
  void waitUntilOutIsFull();
  // Reads to the end and returns the exit code, or 1000 + the signal that killed the command.
  int finish();
  void closeOut() { process_.standardOutput().reset(); }

  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }
  std::string lastErrLine() const;
  pid_t pid() const { return process_.pid(); }
  int endFd() const { return process_.endFd(); }
  pid_t worker(int rank) const { return workers_.at(rank); }
  void signalWorker(int rank, int signal) const { ASSERT_EQ(0, ::kill(worker(rank), signal)); }

 private:
  void waitFor(const std::string& in, const std::string& text);
  bool readSome(bool outToo = true);

  io::Process process_;
  std::string out_, err_;
  std::map<int, pid_t> workers_;
};

// Lines of `text` in sorted order: of what several workers wrote, only the order within one is promised.
std::vector<std::string> sortedLines(const std::string& text);

bool isGone(pid_t pid);

// Becomes readable when that process has ended, be it our child or not.
io::Fd watchProcess(pid_t pid);

}  // namespace treadle::cli
