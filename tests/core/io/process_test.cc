#include "treadle/core/io/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/readable.h"
#include "treadle/core/io/socket.h"

namespace treadle::io::process_test {
namespace {

using namespace std::chrono_literals;
using test::readToEnd;

Process shell(const std::string& script, std::vector<std::pair<std::string, std::string>> environment = {}) {
  auto process = Process::start({"/bin/sh", {"-c", script}, std::move(environment), {}});
  if (!process.ok()) throw std::runtime_error(process.status().toString());
  return std::move(*process);
}

ProcessEnd endOf(Process& process) {
  EXPECT_TRUE(test::readable(process.endFd(), "the process's end"));
  return process.takeEnd().value_or(ProcessEnd{false, -1, false});
}

TEST(Process, hasItsOutputInPipes) {
  Process process = shell("echo out; echo err >&2; cat");
  EXPECT_EQ("out\n", readToEnd(process.standardOutput().get()));
  EXPECT_EQ("err\n", readToEnd(process.standardError().get()));
  EXPECT_TRUE(endOf(process).good());
}

TEST(Process, tellsHowItEndedAndGoesOnTellingIt) {
  Process exits = shell("exit 7"), dies = shell("kill -9 $$");
  for (int i = 0; i < 2; ++i) {
    ProcessEnd exit = endOf(exits), death = endOf(dies);
    EXPECT_FALSE(exit.killed);
    EXPECT_EQ(7, exit.value);
    EXPECT_TRUE(death.killed);
    EXPECT_EQ(SIGKILL, death.value);
  }
}

TEST(Process, hasNotEndedWhileItRuns) {
  Process process = shell("read x < /dev/tty; exec sleep 1000");
  EXPECT_FALSE(process.takeEnd());
  process.signal(SIGTERM);
  EXPECT_EQ(SIGTERM, endOf(process).value);
}

TEST(Process, getsOurEnvironmentWithChanges) {
  ::setenv("TREADLE_TEST_KEPT", "kept", 1);
  ::setenv("TREADLE_TEST_REPLACED", "old", 1);
  Process process = shell("echo $TREADLE_TEST_KEPT $TREADLE_TEST_REPLACED $TREADLE_TEST_NEW",
                          {{"TREADLE_TEST_REPLACED", "new value"}, {"TREADLE_TEST_NEW", "a=b"}});
  EXPECT_EQ("kept new value a=b\n", readToEnd(process.standardOutput().get()));
}

TEST(Process, inheritsOnlyTheDescriptorsItIsGiven) {
  Fd given(::dup3(1, 100, O_CLOEXEC)), kept(::dup3(1, 101, O_CLOEXEC));
  auto process = Process::start({"/bin/sh", {"-c", "ls /proc/$$/fd"}, {}, {given.get()}});
  ASSERT_TRUE(process.ok());
  std::string open = readToEnd(process->standardOutput().get());
  EXPECT_NE(std::string::npos, open.find("100\n")) << open;
  EXPECT_EQ(std::string::npos, open.find("101\n")) << open;
}

TEST(Process, startsWithCleanSignals) {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  Process process = shell("grep -E '^Sig(Blk|Ign)' /proc/self/status");
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  std::string status = readToEnd(process.standardOutput().get());
  EXPECT_NE(std::string::npos, status.find("SigBlk:\t0000000000000000")) << status;
  size_t ignored = std::stoul(status.substr(status.find("SigIgn:") + 8), nullptr, 16);
  EXPECT_EQ(0u, ignored & (1u << (SIGPIPE - 1))) << status;
}

TEST(Process, leadsAGroupThatSignalsReachAsAWhole) {
  Process process = shell("sleep 1000 & echo $!; wait");
  std::array<char, 64> bytes{};
  ASSERT_TRUE(test::readable(process.standardOutput().get(), "the output"));
  ASSERT_GT(::read(process.standardOutput().get(), bytes.data(), bytes.size() - 1), 0);
  EXPECT_EQ(process.pid(), ::getpgid(std::atoi(bytes.data())));
  process.signal(SIGKILL);
  // The pipe ends only when the grandchild, which holds it too, is dead.
  EXPECT_EQ("", readToEnd(process.standardOutput().get()));
}

TEST(Process, tellsOfStopsAndContinuations) {
  Process process = shell("kill -STOP $$; exit 5");
  std::optional<ProcessStop> stop;
  for (const TimePoint deadline = test::patience(); !stop;) {
    ASSERT_TRUE(test::isInTime(deadline)) << "it does not stop";
    siginfo_t info{};  // waits for the stop without taking it
    ::waitid(P_PID, static_cast<id_t>(process.pid()), &info, WSTOPPED | WNOWAIT);
    stop = process.takeStop();
  }
  EXPECT_TRUE(stop->stopped);
  EXPECT_EQ(SIGSTOP, stop->number);
  EXPECT_FALSE(process.takeStop()) << "told once";
  EXPECT_FALSE(process.takeEnd());
  process.signal(SIGCONT);
  EXPECT_EQ(5, endOf(process).value);
}

// Whoever stops children as soon as they exist often hits them between fork and exec, where nothing tells of it.
TEST(Process, thatIsStoppedBeforeItsProgramRunsHoldsNobodyUp) {
  std::string children = "/proc/self/task/" + std::to_string(::gettid()) + "/children";
  std::atomic<bool> over = false;
  std::thread stopper([&] {
    while (!over.load()) {
      std::ifstream list(children);
      for (pid_t child; list >> child;) ::kill(child, SIGSTOP);
    }
  });
  for (int i = 0; i < 50; ++i) {
    Process process = shell("sleep 1000");
    process.signal(SIGKILL);
    EXPECT_TRUE(endOf(process).killed);
  }
  over.store(true);
  stopper.join();
}

TEST(Process, isGoneWithItsOwner) {
  pid_t pid = -1;
  {
    Process process = shell("trap '' TERM; exec sleep 1000");
    pid = process.pid();
    Process moved = std::move(process);
    EXPECT_EQ(pid, moved.pid());
    EXPECT_EQ(0, ::kill(pid, 0));
  }
  EXPECT_EQ(-1, ::kill(pid, 0));
}

TEST(Process, isReachedByASignalInAnotherGroupToo) {
  Process process = shell("exec perl -e '$| = 1; setpgrp(0, getpgrp(getppid())); print \"out\\n\"; sleep 1000'");
  std::array<char, 8> said;
  ASSERT_TRUE(test::readable(process.standardOutput().get(), "the output"));
  EXPECT_EQ(4, ::read(process.standardOutput().get(), said.data(), said.size()));
  EXPECT_NE(process.pid(), ::getpgid(process.pid()));
  process.signal(SIGTERM);
  EXPECT_EQ(SIGTERM, endOf(process).value);
}

TEST(Process, diesWithTheProcessThatStartedIt) {
  // A child of ours starts a grandchild, hands out its number and is killed.
  std::array<int, 2> ends{};
  ASSERT_EQ(0, ::pipe(ends.data()));
  pid_t child = ::fork();
  if (child == 0) {
    auto started = Process::start({"/bin/sleep", {"1000"}, {}, {}});
    pid_t pid = started.ok() ? started->pid() : -1;
    (void)!::write(ends[1], &pid, sizeof pid);
    for (;;) ::pause();
  }
  pid_t grandchild = -1;
  ASSERT_EQ(static_cast<ssize_t>(sizeof grandchild), ::read(ends[0], &grandchild, sizeof grandchild));
  ASSERT_GT(grandchild, 0);
  Fd end(static_cast<int>(::syscall(SYS_pidfd_open, grandchild, 0)));
  ASSERT_TRUE(end.valid());
  ::kill(child, SIGKILL);
  EXPECT_TRUE(test::readable(end.get(), "the grandchild's end"));
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

class Programs : public testing::Test {
 protected:
  Programs() { std::filesystem::create_directories(folder_); }
  ~Programs() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text, bool executable) {
    std::ofstream(folder_ / name) << text;
    if (executable) std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
    return folder_ / name;
  }
  std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("treadle programs " + std::to_string(::getpid()));
};

TEST_F(Programs, areFoundByPathOrName) {
  std::string script = write("a script", "#!/bin/sh\nexit 3\n", true);
  EXPECT_EQ(script, findProgram(script).value());
  auto found = findProgram("sh");
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->ends_with("/sh"));
  auto process = Process::start({script, {}, {}, {}});
  ASSERT_TRUE(process.ok()) << process.status().toString();
  EXPECT_EQ(3, endOf(*process).value);
}

TEST_F(Programs, thatCannotRunAreToldApart) {
  std::string text = write("text", "no program\n", false), plain = write("plain", "no first line\n", true);
  std::string orphan = write("orphan", "#!/no/such/interpreter\n", true);
  EXPECT_EQ(Code::kNotFound, findProgram("no-such-program-anywhere").status().code());
  EXPECT_EQ(Code::kNotFound, findProgram(folder_ / "missing").status().code());
  EXPECT_EQ(Code::kFailedPrecondition, findProgram(text).status().code());
  EXPECT_EQ(Code::kFailedPrecondition, findProgram(folder_).status().code());
  EXPECT_EQ(Code::kInvalidArgument, findProgram("").status().code());
  EXPECT_EQ(Code::kFailedPrecondition, Process::start({plain, {}, {}, {}}).status().code());
  EXPECT_EQ(Code::kNotFound, Process::start({orphan, {}, {}, {}}).status().code());
}

TEST_F(Programs, ofTheFolderWeAreInAreHintedAt) {
  write("only-here", "#!/bin/sh\n", true);
  std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  Status status = findProgram("only-here").status();
  std::filesystem::current_path(before);
  EXPECT_EQ("there is no program 'only-here' in PATH; the one in this folder is ./only-here", status.message());
}

TEST(SignalName, isTheUsualOne) {
  EXPECT_EQ("SIGKILL", signalName(SIGKILL));
  EXPECT_EQ("signal 40", signalName(40));
}

}  // namespace
}  // namespace treadle::io::process_test
