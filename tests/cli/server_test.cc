// `treadle server` and `treadle run --servers` as a user meets them.

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/cli/launcher.h"
#include "tests/support/expect_error.h"
#include "tests/support/places.h"

namespace treadle::cli::server_test {
namespace {

using test::contains;

const std::string kSumming = test::testProgram("cli_summing_program");

TEST(Server, SumsForTheWorkersOfARun) {
  Launcher launcher({"run", "-n", "2", "--servers", "2", "--", kSumming});
  EXPECT_EQ(0, launcher.finish());
  const std::string& out = launcher.out();
  for (const char* line : {"[0] 2 workers, 2 servers, 1.04858e+06\n", "[1] 2 workers, 2 servers, 1.04858e+06\n",
                           "[2] server2: sums for 2 workers\n", "[2] server2: the job is over; ", "[3] server3: "})
    EXPECT_TRUE(contains(out, line));
  EXPECT_EQ("", launcher.err());
}

TEST(Server, HasTheNameAndReportsAsOftenAsItWasGiven) {
  for (const auto& [every, reports] : {std::pair<std::string, bool>{"0.001", true}, {"0", false}, {"0.0", false}}) {
    const std::string script =
        "export TREADLE_SERVERS=1; if [ $TREADLE_RANK = 2 ]; then exec \"$0\" server --name adder "
        "--every " +
        every + "; fi; exec \"$1\"";
    Launcher launcher({"run", "-n", "3", "--", "sh", "-c", script, test::treadleCommand(), kSumming});
    EXPECT_EQ(0, launcher.finish());
    EXPECT_TRUE(contains(launcher.out(), "[2] adder: sums for 2 workers\n"));
    EXPECT_EQ(reports, launcher.out().find("[2] adder: 1 service with 2 workers: ") != std::string::npos);
  }
}

TEST(Server, GivesWorkersThatKnowNoServersTheirNumber) {
  Launcher launcher(
      {"run", "-n", "1", "--servers", "1", "--", "sh", "-c",
       "echo $RANK/$WORLD_SIZE $LOCAL_WORLD_SIZE $TREADLE_RANK/$TREADLE_WORLD_SIZE $TREADLE_SERVERS; exec \"$0\"",
       kSumming});
  EXPECT_EQ(0, launcher.finish());
  EXPECT_TRUE(contains(launcher.out(), "[0] 0/1 1 0/2 1\n"));
}

// It ends by itself and says why, and the run names who failed first.
TEST(Server, EndsWithItsJob) {
  Launcher launcher({"run", "-n", "2", "--servers", "1", "--", kSumming, "fails"});
  EXPECT_EQ(3, launcher.finish());
  EXPECT_TRUE(contains(launcher.err(), "[2] treadle server: ")) << launcher.err();
  EXPECT_TRUE(contains(launcher.lastErrLine(), "ended with exit code 3 first"));
}

std::string contentsOf(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Of the processes that the launcher has started, the one that is called `treadle server`; 0: there is none.
pid_t serverOf(const Launcher& launcher) {
  const std::string parent = "PPid:\t" + std::to_string(launcher.pid()) + "\n";
  for (const auto& process : std::filesystem::directory_iterator("/proc"))
    if (contains(contentsOf(process.path() / "status"), parent) &&
        contains(contentsOf(process.path() / "cmdline"), std::string("server\0", 7)))
      return std::stoi(process.path().filename());
  return 0;
}

TEST(Server, IsMissedByNobodyWhenItIsKilled) {
  Launcher launcher({"run", "-n", "2", "--servers", "1", "--", kSumming, "long"});
  launcher.waitForOut("[0] under way");
  const pid_t server = serverOf(launcher);
  ASSERT_GT(server, 0);
  ASSERT_EQ(0, ::kill(server, SIGKILL));
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  EXPECT_TRUE(contains(launcher.out(), "[1] 2 workers, 1 servers, 1.26765e+30\n")) << launcher.out();
  EXPECT_TRUE(contains(launcher.err(), " was killed by SIGKILL; workers that have joined go on without it\n"))
      << launcher.err();
  EXPECT_TRUE(contains(launcher.err(), "goes on without server2")) << launcher.err();
}

TEST(Server, RefusesAPlaceThatIsNone) {
  struct Case {
    std::vector<std::string> arguments;
    std::vector<std::pair<std::string, std::string>> environment;
    int exitCode;
    const char* text;
  };
  const std::vector<std::pair<std::string, std::string>> place = {
      {"TREADLE_RANK", "1"}, {"TREADLE_WORLD_SIZE", "2"}, {"TREADLE_MASTER", "127.0.0.1:1"}};
  auto with = [&](const char* servers) {
    auto all = place;
    all.emplace_back("TREADLE_SERVERS", servers);
    return all;
  };
  for (const Case& one : {Case{{"server"}, {}, 1, "treadle server: this program is not part of a job"},
                          {{"server"}, place, 1, "rank 1 of 2 is not a server's: set TREADLE_SERVERS"},
                          {{"server"}, with("2"), 1, "TREADLE_SERVERS is '2'"},
                          {{"server", "--every", "often"}, with("1"), 2, "--every is 'often'"},
                          {{"server"},
                           {{"TREADLE_RANK", "0"},
                            {"TREADLE_WORLD_SIZE", "2"},
                            {"TREADLE_MASTER", "127.0.0.1:1"},
                            {"TREADLE_SERVERS", "1"}},
                           1,
                           "rank 0 of 2 is a worker's: the servers are the ranks from 1 on"},
                          {{"server", "--every", "1e-9"}, with("1"), 2, "--every is '1e-9'"},
                          {{"server", "--heartbeat-timeout", "0"}, with("1"), 2, "--heartbeat-timeout is '0'"},
                          {{"server", "--join-timeout", "soon"}, with("1"), 2, "--join-timeout is 'soon'"},
                          {{"server", "--announce", "here"}, with("1"), 2, "announceAddress"},
                          {{"server", "--name", "a b"}, with("1"), 2, "'a b' cannot be a worker's name"},
                          {{"doctor"}, with("1"), 1, "rank 1 is a summation server's"},
                          {{"run", "-n", "1", "--servers", "1", "--", test::treadleCommand(), "plan", "--measure"},
                           {},
                           2,
                           "--measure needs a job"},
                          {{"server", "--every"}, with("1"), 2, "--every"},
                          {{"server", "--", "sh"}, with("1"), 2, "it starts no program"},
                          {{"server", "--nmae", "x"}, with("1"), 2, "there is no option --nmae"},
                          {{"run", "-n", "2", "--servers", "1023", "--", "true"}, {}, 2, "--servers is '1023'"},
                          {{"run", "-n", "2", "--servers", "-1", "--", "true"}, {}, 2, "--servers is '-1'"},
                          {{"run", "-n", "2", "--servers", "--", "true"}, {}, 2, "--servers is ''"}}) {
    Launcher launcher(one.arguments, one.environment);
    EXPECT_EQ(one.exitCode, launcher.finish()) << one.text;
    EXPECT_TRUE(contains(launcher.err(), one.text));
  }
}

// Those of the launcher are the workers' business: servers are needed until they are done.
TEST(Server, StaysWhenWorkersAreSignalled) {
  for (const int signal : {SIGUSR1, SIGTERM}) {
    const std::string script =
        "trap 'exec \"$0\"' " + std::to_string(signal) + "; echo ready; while :; do sleep 0.01; done";
    Launcher launcher({"run", "-n", "2", "--servers", "1", "--grace", "60", "--", "sh", "-c", script, kSumming});
    launcher.waitForOut("[0] ready");
    launcher.waitForOut("[1] ready");
    ASSERT_EQ(0, ::kill(launcher.pid(), signal));
    EXPECT_EQ(signal == SIGUSR1 ? 0 : 128 + signal, launcher.finish());
    for (const char* line :
         {"[0] 2 workers, 1 servers, ", "[1] 2 workers, 1 servers, ", "[2] server2: the job is over"})
      EXPECT_TRUE(contains(launcher.out(), line)) << launcher.err();
  }
}

// They may end without a word to the others, and one after the other.
TEST(Server, HasNotFailedWhereTheWorkersEndWell) {
  for (const char* script :
       {"exit 0", "[ $RANK = 0 ] || sleep 1; echo done", "[ $RANK = 0 ] || sleep 1; \"$0\" fails; exit 0"}) {
    Launcher launcher({"run", "-n", "2", "--servers", "2", "--grace", "0.1", "--", "sh", "-c", script, kSumming});
    EXPECT_EQ(0, launcher.finish());
    EXPECT_FALSE(contains(launcher.err(), "treadle run:")) << launcher.err();
  }
}

// Also those that have not joined yet, as the launcher ends the workers itself.
TEST(Server, EndsWithWorkersThatAreInterrupted) {
  Launcher launcher(
      {"run", "-n", "1", "--servers", "1", "--grace", "3600", "--", "sh", "-c", "echo ready; exec sleep 1000"});
  launcher.waitForOut("[0] ready");
  ASSERT_EQ(0, ::kill(launcher.pid(), SIGINT));
  EXPECT_EQ(128 + SIGINT, launcher.finish());
}

TEST(Server, HasFailedWhereItEndsByItself) {
  Launcher launcher({"run", "-n", "1", "--servers", "1", "--", "sh", "-c", "sleep 0.2"},
                    {{"TREADLE_CHANNELS", "no such channel"}});
  EXPECT_EQ(2, launcher.finish());
  EXPECT_TRUE(contains(launcher.err(), "no such channel"));
}

TEST(Server, LeavesOtherCommandsToTheWorkers) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"doctor"}, {"plan", "--measure"}}) {
    std::vector<std::string> all = {"run", "-n", "2", "--servers", "1", "--", test::treadleCommand()};
    all.insert(all.end(), command.begin(), command.end());
    Launcher launcher(all);
    EXPECT_EQ(0, launcher.finish()) << launcher.out() << launcher.err();
  }
}

TEST(Server, SaysWhatItNeeds) {
  Launcher launcher({"server", "--help"});
  EXPECT_EQ(0, launcher.finish());
  for (const char* text : {"TREADLE_SERVERS", "--every", "What it needs", "treadle run -n 4 --servers 2"})
    EXPECT_TRUE(contains(launcher.out(), text));
}

}  // namespace
}  // namespace treadle::cli::server_test
