// `treadle doctor` as a user meets it: what it finds on a machine where all works, and what it says where something
// does not, made so by limits, by namespaces and by a worker that dies.

#include <nlohmann/json.hpp>

#include "tests/cli/launcher.h"
#include "tests/support/free_port.h"
#include "tests/support/places.h"
#include "tests/support/reads_memory.h"
#include "tests/support/sanitizer.h"
#include "treadle/cli/examination.h"

namespace treadle::cli::doctor_test {
namespace {

using test::readsMemory;
using Environment = std::vector<std::pair<std::string, std::string>>;

// Far more than it takes, as machines that run tests are busy.
const std::string kTime = "50";
const std::string kTreadle = test::treadleCommand();
// As a shell reads them.
const std::string kQuoted = "'" + kTreadle + "'", kDoctor = kQuoted + " doctor --timeout " + kTime;

// The rest of the row of that channel and these ranks; the whole output when there is none.
std::string row(const std::string& out, const std::string& channel, const std::string& ranks) {
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    while (line.starts_with("[") && line.find("] ") != std::string::npos) line = line.substr(line.find("] ") + 2);
    std::istringstream words(line);
    std::string first;
    words >> first;
    size_t at = line.find(ranks + "  ");
    if (first == channel && at != std::string::npos) return line.substr(line.find_first_not_of(' ', at + ranks.size()));
  }
  return "no row in:\n" + out;
}

void expectStart(const std::string& text, const std::string& start) {
  EXPECT_TRUE(text.starts_with(start)) << "'" << text << "' does not begin with '" << start << "'";
}

void expectWorks(const Launcher& launcher, const std::string& channel, const std::string& ranks = "0-1") {
  bool works = channel != "cma" || readsMemory();
  expectStart(row(launcher.out(), channel, ranks),
              works ? "works: 1 MiB there and back in " : "does not work: the peer cannot read it: Yama forbids it");
}

Launcher shell(const std::string& script, Environment environment = {}) {
  return Launcher({"run", "-n", "1", "--", "/bin/sh", "-c",
                   "unset TREADLE_RANK TREADLE_WORLD_SIZE TREADLE_MASTER RANK WORLD_SIZE; " + script},
                  std::move(environment));
}

TEST(Doctor, findsThatAllChannelsWorkHere) {
  Launcher launcher({"doctor", "--timeout", kTime});
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  for (const char* channel : {"unix", "tcp", "lanes", "shm", "cma"}) expectWorks(launcher, channel);
  for (const char* fact : {"kernel ", "cores ", "idle cores ", "memory for tensors ", "huge pages, shared ",
                           "open files (ulimit -n) ", "locked memory (ulimit -l) ", "TREADLE_CHANNELS "})
    EXPECT_NE(std::string::npos, launcher.out().find(fact)) << fact;
  EXPECT_NE(std::string::npos, launcher.out().find("messages over unix, large tensors over shm")) << launcher.out();
}

TEST(Doctor, triesEveryPairOfAJob) {
  Launcher launcher({"run", "-n", "4", "--", kTreadle, "doctor", "--timeout", kTime});
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  for (const char* channel : {"unix", "tcp", "lanes", "shm"}) expectWorks(launcher, channel, "all pairs");
}

TEST(Doctor, saysWhatItWasToldNotToUse) {
  Launcher launcher({"doctor", "--timeout", kTime}, {{"TREADLE_CHANNELS", "tcp"}});
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  expectWorks(launcher, "tcp");
  for (std::string channel : {"unix", "lanes", "shm"})
    EXPECT_EQ("told not to: TREADLE_CHANNELS of rank 0 is without " + channel, row(launcher.out(), channel, "0-1"));
  EXPECT_NE(std::string::npos, launcher.out().find("messages over tcp, large tensors over tcp")) << launcher.out();
}

TEST(Doctor, namesWhoWasToldNotTo) {
  Launcher launcher(
      {"run", "-n", "3", "--", "/bin/sh", "-c", "[ $RANK = 2 ] && export TREADLE_CHANNELS=unix,tcp; exec " + kDoctor});
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  expectWorks(launcher, "shm");
  EXPECT_EQ("told not to: TREADLE_CHANNELS of rank 2 is without shm", row(launcher.out(), "shm", "0-2, 1-2"));
}

TEST(Doctor, saysWhichLimitForbidsSharedMemory) {
  Launcher files = shell("ulimit -f 1000; exec " + kDoctor);
  EXPECT_EQ(0, files.finish()) << files.err();
  EXPECT_EQ("does not work: the limit of a file's size is too low for shared memory; start with `ulimit -f unlimited`",
            row(files.out(), "shm", "0-1"));
  expectStart(row(files.out(), "unix", "0-1"), "works: ");
  std::string way = readsMemory() ? "cma" : "lanes";
  EXPECT_NE(std::string::npos, files.out().find("messages over unix, large tensors over " + way)) << files.out();
}

TEST(Doctor, tellsWhenAPeerDoesNotTakeSharedMemory) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers need more address space than the test leaves";
  // Rank 1 has address space for itself, but not to map the other's memory too.
  Launcher launcher({"run", "-n", "2", "--", "/bin/sh", "-c", "[ $RANK = 1 ] && ulimit -v 1000000; exec " + kDoctor});
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  std::string shm = row(launcher.out(), "shm", "0-1");
  expectStart(shm, "does not work: ");
  EXPECT_NE(std::string::npos, shm.find("ulimit -v unlimited")) << shm;
}

// Who is not root makes a user namespace first, where the system lets them.
const std::string kUnshare = ::geteuid() == 0 ? "unshare " : "unshare -U -r ";

bool mayMakeNamespaces(const std::string& option) {
  Launcher launcher = shell(kUnshare + option + " true");
  return launcher.finish() == 0;
}

// The limit is in the error: no clock of the test has to prove that it was obeyed. The default is 10 s.
TEST(Doctor, waitsForAWorkerThatNeverComesAsLongAsItsTimeout) {
  auto doctorOfTwo = [](const std::string& timeout) {
    return Launcher({"doctor", "--timeout", timeout}, {{"RANK", "0"},
                                                       {"WORLD_SIZE", "2"},
                                                       {"MASTER_ADDR", "127.0.0.1"},
                                                       {"MASTER_PORT", std::to_string(test::freePort())},
                                                       {"TREADLE_JOB_KEY", "0123456789abcdef"}});
  };
  Launcher patient = doctorOfTwo("3600"), launcher = doctorOfTwo("2");
  EXPECT_EQ(1, launcher.finish());
  const std::string said = "rank 1 of 2 did not arrive within the join timeout of 2 s";
  EXPECT_NE(std::string::npos, launcher.out().find(said)) << launcher.out() << launcher.err();
  EXPECT_FALSE(io::waitFor(patient.endFd(), POLLIN, Clock::now())) << "it does not wait as long as it was told to";
  ASSERT_EQ(0, ::kill(patient.pid(), SIGKILL));
  EXPECT_EQ(1000 + SIGKILL, patient.finish());
}

TEST(Doctor, endsWhenWorkersDoNotSeeEachOther) {
  if (!mayMakeNamespaces("-n")) GTEST_SKIP() << "no network namespace may be made here";
  Launcher launcher({"run", "-n", "2", "--", "/bin/sh", "-c",
                     "[ $RANK = 1 ] && exec " + kUnshare + "-n " + kQuoted + " doctor --timeout 2; exec " + kQuoted +
                         " doctor --timeout 2"});
  EXPECT_EQ(1, launcher.finish());
  for (const std::string* text : {&launcher.out(), &launcher.err()}) {
    EXPECT_NE(std::string::npos, text->find("the workers cannot talk to each other: ")) << *text;
    EXPECT_NE(std::string::npos, text->find("this process is in network namespace ")) << *text;
  }
}

TEST(Doctor, saysWhyMemoryCannotBeReadAcrossPidNamespaces) {
  if (!mayMakeNamespaces("-p -f")) GTEST_SKIP() << "no PID namespace may be made here";
  Launcher launcher({"run", "-n", "2", "--", "/bin/sh", "-c",
                     "[ $RANK = 1 ] && exec " + kUnshare + "-p -f " + kDoctor + "; exec " + kDoctor});
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  expectStart(row(launcher.out(), "cma", "0-1"),
              "does not work: the peer cannot read it: the processes are in different PID namespaces");
  expectWorks(launcher, "shm");
}

// What containers forbid.
const std::string kWithout = "'" + test::testProgram("cli_without_program") + "' ";

TEST(Doctor, goesOnWithoutSharedMemoryWhereItIsForbidden) {
  Launcher launcher = shell("exec " + kWithout + "memfd_create EPERM " + kDoctor);
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  expectStart(row(launcher.out(), "shm", "0-1"),
              "does not work: no shared memory can be made; have the container or its seccomp profile allow "
              "memfd_create(2)");
  expectWorks(launcher, "cma");
  std::string way = readsMemory() ? "cma" : "lanes";
  EXPECT_NE(std::string::npos, launcher.out().find("large tensors over " + way)) << launcher.out();
}

TEST(Doctor, goesOnWithoutReadingMemoryWhereItIsForbidden) {
  for (const auto& [error, why] : {std::pair<std::string, std::string>{"EPERM", "a seccomp profile forbids"},
                                   {"ENOSYS", "the kernel or a seccomp profile is without process_vm_readv(2)"}}) {
    Launcher launcher = shell("exec " + kWithout + "process_vm_readv " + error + " " + kDoctor);
    EXPECT_EQ(0, launcher.finish()) << launcher.err();
    std::string cma = row(launcher.out(), "cma", "0-1");
    expectStart(cma, "does not work: the peer cannot read it: ");
    bool yama = error == "EPERM" && !readsMemory();
    EXPECT_NE(std::string::npos, cma.find(yama ? "Yama forbids it" : why)) << cma;
    expectWorks(launcher, "shm");
  }
}

TEST(Doctor, goesOnWithSocketsWhereBothAreForbidden) {
  Launcher launcher =
      shell("exec " + kWithout + "process_vm_readv EPERM " + kWithout + "memfd_create ENOSYS " + kDoctor);
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  for (const char* channel : {"shm", "cma"}) expectStart(row(launcher.out(), channel, "0-1"), "does not work: ");
  for (const char* channel : {"unix", "lanes"}) expectWorks(launcher, channel);
  EXPECT_NE(std::string::npos, launcher.out().find("large tensors over lanes")) << launcher.out();
}

// Shared memory is neither a file of /dev/shm, nor System V's, nor locked.
TEST(Doctor, needsNoRoomInDevShmNoCommonIpcNamespaceAndNoLockedMemory) {
  if (!mayMakeNamespaces("-m -i")) GTEST_SKIP() << "no mount and IPC namespaces may be made here";
  // Each worker has an IPC namespace of its own.
  Launcher launcher = shell("exec " + kUnshare + "-m " + kQuoted +
                            " run -n 2 -- unshare -i /bin/sh -c 'ulimit -l 0 && mount -t tmpfs -o size=4096 none "
                            "/dev/shm && exec \"$0\" doctor --timeout " +
                            kTime + "' " + kQuoted);
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  for (const char* channel : {"unix", "tcp", "lanes", "shm"}) expectWorks(launcher, channel);
}

TEST(Doctor, namesAWorkerThatDiesMeanwhile) {
  Launcher launcher({"run", "-n", "3", "--grace", kTime, "--", "/bin/sh", "-c",
                     "[ $RANK = 2 ] && exec '" + test::testProgram("cli_lost_doctor_program") + "'; exec " + kDoctor});
  EXPECT_EQ(3, launcher.finish()) << "that of the worker that failed first";
  EXPECT_NE(std::string::npos, launcher.out().find("'doctor2'")) << launcher.out();
  expectWorks(launcher, "tcp");
  expectStart(row(launcher.out(), "tcp", "0-2, 1-2"), "does not work: ");
}

TEST(Doctor, tellsTheSameAsJson) {
  Launcher launcher({"doctor", "--json", "--timeout", kTime});
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  auto json = nlohmann::json::parse(launcher.out());
  EXPECT_EQ(2, json["workers"]);
  EXPECT_EQ(true, json["good"]);
  ASSERT_EQ(5u, json["channels"].size());
  EXPECT_EQ("unix", json["channels"][0]["channel"]);
  EXPECT_EQ((std::vector<int>{0, 1}), json["channels"][0]["ranks"].get<std::vector<int>>());
  EXPECT_EQ(true, json["channels"][0]["works"]);
  EXPECT_EQ(2u, json["machine"].size());
  EXPECT_TRUE(json["machine"][0].contains("kernel"));
}

TEST(Doctor, answersWrongUsageInOneSentence) {
  struct Wrong {
    std::vector<std::string> arguments;
    std::string told;
  };
  for (const Wrong& wrong :
       {Wrong{{"doctor", "--timeout", "soon"}, "--timeout is 'soon', not a number of seconds from 1 to 3600; see"},
        Wrong{{"doctor", "--timeout"}, "--timeout is '', not a number"},
        Wrong{{"doctor", "--fast"}, "there is no option --fast"},
        Wrong{{"doctor", "--", "app"}, "it starts no program"}}) {
    Launcher launcher(wrong.arguments);
    EXPECT_EQ(2, launcher.finish());
    EXPECT_NE(std::string::npos, launcher.err().find("treadle doctor: " + wrong.told)) << launcher.err();
  }
  Launcher channels({"doctor"}, {{"TREADLE_CHANNELS", "wifi"}});
  EXPECT_EQ(2, channels.finish());
  EXPECT_NE(std::string::npos, channels.err().find("'wifi' is no channel")) << channels.err();
  Launcher half({"doctor"}, {{"RANK", "0"}});
  EXPECT_EQ(1, half.finish());
  EXPECT_NE(std::string::npos, half.err().find("WORLD_SIZE is missing")) << half.err();
}

TEST(Doctor, pairsEverybodyWithEverybodyOnceAndNobodyTwiceInARound) {
  for (int workers = 1; workers <= 9; ++workers) {
    std::set<std::pair<int, int>> pairs;
    for (const auto& round : roundsOf(workers)) {
      std::set<int> here;
      for (auto [first, second] : round) {
        EXPECT_LT(first, second);
        EXPECT_TRUE(here.insert(first).second && here.insert(second).second);
        EXPECT_TRUE(pairs.insert({first, second}).second);
      }
    }
    EXPECT_EQ(static_cast<size_t>(workers * (workers - 1) / 2), pairs.size());
  }
}

}  // namespace
}  // namespace treadle::cli::doctor_test
