// `treadle run` as a user meets it: what workers are given, what becomes of their output, how wrong usage is
// answered.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/cli/launcher.h"
#include "tests/support/places.h"
#include "treadle/cli/worker_environment.h"

namespace treadle::cli::run_test {
namespace {

using namespace std::chrono_literals;
using Strings = std::vector<std::string>;

TEST(Run, endsWithZeroAndSilenceWhenAllWorkersEndWell) {
  for (int workers : {1, 2, 8}) {
    Launcher launcher = Launcher::shell(workers, "exit 0");
    EXPECT_EQ(0, launcher.finish());
    EXPECT_EQ("", launcher.out());
    EXPECT_EQ("", launcher.err());
  }
}

TEST(Run, putsTheRankInFrontOfEachLineOfBothStreams) {
  Launcher launcher = Launcher::shell(3, "echo out $RANK; echo; echo err $RANK >&2");
  EXPECT_EQ(0, launcher.finish());
  EXPECT_EQ((Strings{"[0] ", "[0] out 0", "[1] ", "[1] out 1", "[2] ", "[2] out 2"}), sortedLines(launcher.out()));
  EXPECT_EQ((Strings{"[0] err 0", "[1] err 1", "[2] err 2"}), sortedLines(launcher.err()));
}

TEST(Run, keepsTheOrderOfEachWorkersLinesAndNeverMixesTwoInOne) {
  constexpr int kWorkers = 8, kLines = 2000;
  Launcher launcher = Launcher::shell(
      kWorkers, "i=0; while [ $i -lt 2000 ]; do echo $RANK-$i-abcdefghijklmnopqrstuvwxyz; i=$((i+1)); done");
  EXPECT_EQ(0, launcher.finish());
  std::vector<int> next(kWorkers, 0);
  std::istringstream text(launcher.out());
  for (std::string line; std::getline(text, line);) {
    auto rank = static_cast<size_t>(std::stoi(line.substr(1)));
    ASSERT_LT(rank, next.size());
    std::string number = std::to_string(rank);
    EXPECT_EQ("[" + number + "] " + number + "-" + std::to_string(next[rank]++) + "-abcdefghijklmnopqrstuvwxyz", line);
  }
  EXPECT_EQ(std::vector<int>(kWorkers, kLines), next);
}

TEST(Run, endsTheLastLineWhenTheWorkerDoesNot) {
  Launcher launcher = Launcher::shell(2, "printf 'no end'");
  EXPECT_EQ(0, launcher.finish());
  EXPECT_EQ("[0] no end\n[1] no end\n", [&] {
    auto l = sortedLines(launcher.out());
    return l[0] + "\n" + l[1] + "\n";
  }());
}

TEST(Run, keepsOnlyTheLastStateOfAProgressBarInALogFile) {
  Launcher launcher = Launcher::shell(1, "printf '\\r10%%\\r50%%\\r100%%\\n'; printf 'with cr\\r\\n'");
  EXPECT_EQ(0, launcher.finish());
  EXPECT_EQ("[0] 100%\n[0] with cr\n", launcher.out());
}

TEST(Run, cutsALineThatDoesNotEnd) {
  Launcher launcher = Launcher::shell(1, "head -c 200000 /dev/zero | tr '\\0' x; echo");
  EXPECT_EQ(0, launcher.finish());
  Strings lines = sortedLines(launcher.out());
  size_t letters = 0;
  for (const std::string& line : lines) letters += line.size() - 4;
  EXPECT_EQ(4u, lines.size());
  EXPECT_EQ(200'000u, letters);
}

TEST(Run, tellsEachWorkerItsPlace) {
  Launcher launcher(
      {"run", "-n", "2", "--", "sh", "-c",
       "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $TREADLE_RANK/$TREADLE_WORLD_SIZE; "
       "[ $TREADLE_MASTER = $MASTER_ADDR:$MASTER_PORT ] && echo same $MASTER_ADDR; echo term "
       "$TREADLE_TERMINAL; "
       "echo key $(head -c 100 /proc/self/fd/${TREADLE_JOB_KEY_FD%:*} | wc -c) $TREADLE_JOB_KEY; echo $MINE; cat"},
      {{"RANK", "77"}, {"TREADLE_RANK", "77"}, {"TREADLE_TERMINAL", "1"}, {"MINE", "kept"}});
  EXPECT_EQ(0, launcher.finish());
  EXPECT_EQ((Strings{"[0] 0/2 0/2 0/2", "[0] kept", "[0] key 64", "[0] same 127.0.0.1", "[0] term 0", "[1] 1/2 1/2 1/2",
                     "[1] kept", "[1] key 64", "[1] same 127.0.0.1", "[1] term 0"}),
            sortedLines(launcher.out()));
}

TEST(Run, givesEachJobAKeyOfItsOwnAndAllWorkersTheSame) {
  // From the beginning of the file, wherever another worker has read to.
  const std::string tell = "cat /proc/self/fd/${TREADLE_JOB_KEY_FD%:*}; echo";
  Launcher one = Launcher::shell(2, tell), other = Launcher::shell(2, tell);
  EXPECT_EQ(0, one.finish());
  EXPECT_EQ(0, other.finish());
  Strings first = sortedLines(one.out()), second = sortedLines(other.out());
  EXPECT_EQ(first[0].substr(4), first[1].substr(4));
  EXPECT_NE(first[0].substr(4), second[0].substr(4));
}

TEST(Run, runsAProgramWhosePathHoldsSpacesWithItsArgumentsAsTheyAre) {
  std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / ("a b " + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "my program") << "#!/bin/sh\nfor a; do echo \"<$a>\"; done\n";
  std::filesystem::permissions(folder / "my program", std::filesystem::perms::owner_all);
  Launcher launcher({"run", "-n", "1", "--", folder / "my program", "x y", "", "--", "-n"});
  EXPECT_EQ(0, launcher.finish());
  EXPECT_EQ("[0] <x y>\n[0] <>\n[0] <-->\n[0] <-n>\n", launcher.out());
  std::filesystem::remove_all(folder);
}

TEST(Run, keepsWhatAWorkersChildStillWrites) {
  Launcher launcher = Launcher::shell(1, "(read x < /dev/null; echo late) &");
  EXPECT_EQ(0, launcher.finish());
  EXPECT_EQ("[0] late\n", launcher.out());
}

// As an entrypoint has that starts a logger and then becomes `treadle run`.
TEST(Run, leavesChildrenAloneThatItHasNotStarted) {
  FILE* shell = ::popen(
      ("sleep 600 >/dev/null 2>&1 & echo $!; exec '" + test::treadleCommand() + "' run -n 1 -- true").c_str(), "r");
  ASSERT_NE(nullptr, shell);
  pid_t stranger = 0;
  ASSERT_EQ(1, std::fscanf(shell, "%d", &stranger));
  EXPECT_EQ(0, ::pclose(shell));
  EXPECT_EQ(0, ::kill(stranger, 0)) << "it lives";
  ::kill(stranger, SIGKILL);
}

TEST(Run, endsWhenNobodyReadsItsOutput) {
  Launcher launcher = Launcher::shell(2, "while :; do echo y; done");
  launcher.waitForOut("[0] y");
  launcher.closeOut();
  EXPECT_EQ(128 + SIGPIPE, launcher.finish());
}

TEST(Run, obeysSignalsWhileItsReaderPauses) {
  // One worker fills every buffer on the way; nobody reads. The other's end must still be noticed.
  Launcher launcher =
      Launcher::shell(2, "[ $RANK = 0 ] && exec yes; echo \"pid $$\" >&2; exec sleep 1000", {"--grace", "3600"});
  launcher.waitForErrOnly("pid ");
  launcher.waitUntilOutIsFull();
  ASSERT_EQ(0, ::kill(std::stoi(launcher.err().substr(8)), SIGKILL));
  launcher.waitForErrOnly("was killed by SIGKILL");
  ASSERT_EQ(0, ::kill(launcher.pid(), SIGTERM));
  launcher.waitForErrOnly("SIGTERM; the workers have");
  EXPECT_EQ(128 + SIGKILL, launcher.finish());
}

TEST(Run, hasItsMasterPortToItselfYetLetsRankZeroListenThere) {
  auto port = reservePort(0);
  ASSERT_TRUE(port.ok());
  auto server = io::listenOn(*io::Address::tcp("127.0.0.1", port->port));
  EXPECT_TRUE(server.ok()) << server.status().toString();
  auto again = reservePort(port->port);
  EXPECT_EQ(Code::kFailedPrecondition, again.status().code());
}

TEST(Run, refusesAMasterPortThatIsInUse) {
  auto server = io::listenOn(*io::Address::tcp("127.0.0.1", 0));
  ASSERT_TRUE(server.ok());
  std::string port = std::to_string(io::Address::ofSocket(server->get())->port());
  Launcher launcher = Launcher::shell(2, "echo started", {"--master-port", port});
  EXPECT_EQ(1, launcher.finish());
  EXPECT_EQ("", launcher.out());
  EXPECT_EQ("treadle run: port " + port +
                " of 127.0.0.1 cannot be used; choose another --master-port, or leave it out "
                "to get a free one: Address already in use\n",
            launcher.err());
}

struct Usage {
  Strings arguments;
  int exitCode;
  std::string says;
};

TEST(Run, answersWrongUsageWithOneLine) {
  const std::vector<Usage> cases = {
      {{}, 2, "the commands are: run"},
      {{"fly"}, 2, "there is no command 'fly'"},
      {{"--fly"}, 2, ""},
      {{"run"}, 2, "Say -n 4"},
      {{"run", "-n"}, 2, "Say -n 4"},
      {{"run", "-n", "0", "--", "true"}, 2, "-n is '0'"},
      {{"run", "-n", "-3", "--", "true"}, 2, "-3"},
      {{"run", "-n", "four", "--", "true"}, 2, "-n is 'four'"},
      {{"run", "-n", "99999999999", "--", "true"}, 2, "-n is '99999999999'"},
      {{"run", "-n", "2"}, 2, "which program?"},
      {{"run", "-n", "2", "--"}, 2, "which program?"},
      {{"run", "-n", "2", "true"}, 2, "'true' was not expected (the program to run stands behind `--`)"},
      {{"run", "-n", "2", "--fast", "--", "true"}, 2, "there is no option --fast"},
      {{"run", "-n", "2", "--grace", "-1", "--", "true"}, 2, "--grace is '-1'"},
      {{"run", "-n", "2", "--grace", "nan", "--", "true"}, 2, "--grace is 'nan'"},
      {{"run", "-n", "2", "--master-port", "65536", "--", "true"}, 2, "--master-port is '65536'"},
      {{"run", "-n", "2", "--", ""}, 1, "name is empty"},
      {{"run", "-n", "2", "--", "no-such-program"}, 127, "there is no program 'no-such-program' in PATH"},
      {{"run", "-n", "2", "--", "/no/such/program"}, 127, "there is no program '/no/such/program'"},
      {{"run", "-n", "2", "--", "/etc/passwd"}, 126, "'/etc/passwd' is not executable"},
      {{"run", "-n", "2", "--", "/tmp"}, 126, "'/tmp' is a folder"},
  };
  for (const Usage& usage : cases) {
    Launcher launcher(usage.arguments);
    EXPECT_EQ(usage.exitCode, launcher.finish()) << launcher.err();
    EXPECT_EQ("", launcher.out());
    EXPECT_NE(std::string::npos, launcher.err().find(usage.says)) << launcher.err();
    EXPECT_EQ(1, std::count(launcher.err().begin(), launcher.err().end(), '\n')) << launcher.err();
  }
}

TEST(Run, startsNothingWhenTheProgramIsNoProgram) {
  std::filesystem::path file = std::filesystem::path(testing::TempDir()) / ("text" + std::to_string(::getpid()));
  std::ofstream(file) << "just text\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  Launcher launcher({"run", "-n", "3", "--", file});
  EXPECT_EQ(126, launcher.finish());
  EXPECT_NE(std::string::npos, launcher.err().find("rank 0 cannot be started")) << launcher.err();
  std::filesystem::remove(file);
}

TEST(Run, helpsAndTellsItsVersion) {
  Launcher help({"run", "--help"}), version({"--version"});
  EXPECT_EQ(0, help.finish());
  EXPECT_NE(std::string::npos, help.out().find("treadle run -n N [options] -- program args..."));
  EXPECT_NE(std::string::npos, help.out().find("Examples:"));
  EXPECT_EQ(0, version.finish());
  EXPECT_EQ(0u, version.out().find("treadle "));
}

}  // namespace
}  // namespace treadle::cli::run_test
