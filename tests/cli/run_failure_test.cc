// `treadle run` when workers are lost: who is named, which exit code comes out, that nothing is left over.
// The tests direct the workers by signals, so that nothing depends on how fast the machine is.

#include <array>

#include "tests/cli/launcher.h"
#include "tests/support/places.h"
#include "tests/support/readable.h"

namespace treadle::cli::run_failure_test {
namespace {

using namespace std::chrono_literals;
using Strings = std::vector<std::string>;

void expectAllGone(const Launcher& launcher, int workers) {
  for (int rank = 0; rank < workers; ++rank) EXPECT_TRUE(isGone(launcher.worker(rank))) << "rank " << rank;
}

std::string identity(const Launcher& launcher, int rank) {
  std::string number = std::to_string(rank);
  return "rank " + number + " (worker" + number + ", pid " + std::to_string(launcher.worker(rank)) + ")";
}

TEST(Run, handsOnTheExitCodeOfTheOnlyWorker) {
  Launcher launcher = Launcher::shell(1, "exit 42");
  EXPECT_EQ(42, launcher.finish());
  EXPECT_NE(std::string::npos, launcher.err().find("ended with exit code 42")) << launcher.err();
}

// The grace never ends before the expected events, on any machine.
const Strings kLongGrace = {"--grace", "3600"};

TEST(Run, givesTheOthersTenSecondsAsARule) {
  Launcher launcher = Launcher::withWorkers(2);
  launcher.signalWorker(1, SIGUSR1);
  launcher.waitForErr(identity(launcher, 1) + " ended with exit code 1; the others have 10 s");
}

TEST(Run, namesTheWorkerThatExitedFirst) {
  Launcher launcher = Launcher::withWorkers(3, kLongGrace);
  launcher.signalWorker(1, SIGUSR1);
  launcher.waitForErr(identity(launcher, 1) + " ended with exit code 1; the others have");
  launcher.signalWorker(0, SIGUSR1);
  launcher.signalWorker(2, SIGUSR2);
  EXPECT_EQ(1, launcher.finish());
  EXPECT_EQ("treadle run: " + identity(launcher, 1) +
                " ended with exit code 1 first; "
                "rank 0 then ended with exit code 1; rank 2 ended well",
            launcher.lastErrLine());
  expectAllGone(launcher, 3);
}

TEST(Run, namesTheWorkerThatWasKilled) {
  for (int rank = 0; rank < 4; ++rank) {
    Launcher launcher = Launcher::withWorkers(4, kLongGrace);
    launcher.signalWorker(rank, SIGKILL);
    launcher.waitForErr(identity(launcher, rank) + " was killed by SIGKILL");
    Strings others;
    for (int other = 0; other < 4; ++other)
      if (other != rank) launcher.signalWorker(other, SIGUSR1), others.push_back(std::to_string(other));
    EXPECT_EQ(128 + SIGKILL, launcher.finish());
    EXPECT_EQ("treadle run: " + identity(launcher, rank) + " was killed by SIGKILL first; ranks " + others[0] + ", " +
                  others[1] + " and " + others[2] + " then ended with exit code 1",
              launcher.lastErrLine());
    expectAllGone(launcher, 4);
  }
}

// The launcher kills the last worker at once, not after the grace.
TEST(Run, namesTheWorkerThatWasStoppedWhenTheOthersFail) {
  Launcher launcher = Launcher::withWorkers(3, kLongGrace);
  launcher.signalWorker(2, SIGSTOP);
  launcher.waitForErr(identity(launcher, 2) + " was stopped by SIGSTOP");
  launcher.signalWorker(0, SIGUSR1);
  launcher.signalWorker(1, SIGUSR1);
  EXPECT_EQ(128 + SIGKILL, launcher.finish());
  EXPECT_EQ("treadle run: " + identity(launcher, 2) +
                " was stopped by SIGSTOP first; "
                "ranks 0 and 1 then ended with exit code 1",
            launcher.lastErrLine());
  expectAllGone(launcher, 3);
}

TEST(Run, killsAStoppedWorkerWhenTheGraceIsOver) {
  Launcher launcher = Launcher::withWorkers(3, {"--grace", "0.2"});
  launcher.signalWorker(2, SIGSTOP);
  launcher.waitForErr("was stopped");
  launcher.signalWorker(0, SIGUSR1);  // rank 1 goes on working
  EXPECT_EQ(128 + SIGKILL, launcher.finish());
  EXPECT_EQ("treadle run: " + identity(launcher, 2) +
                " was stopped by SIGSTOP first; "
                "rank 0 then ended with exit code 1; rank 1 was ended by the launcher",
            launcher.lastErrLine());
}

TEST(Run, givesUpOnAStoppedWorkerWhenTheOthersHaveEndedWell) {
  Launcher launcher = Launcher::withWorkers(2, {"--grace", "0.4"});
  launcher.signalWorker(1, SIGSTOP);
  launcher.waitForErr("was stopped");
  launcher.signalWorker(0, SIGUSR2);
  EXPECT_EQ(128 + SIGKILL, launcher.finish());
  EXPECT_EQ("treadle run: " + identity(launcher, 1) + " was stopped by SIGSTOP first; rank 0 ended well",
            launcher.lastErrLine());
}

TEST(Run, forgetsAStopThatWasMadeUpFor) {
  Launcher launcher = Launcher::withWorkers(2, kLongGrace);
  launcher.signalWorker(1, SIGSTOP);
  launcher.waitForErr("was stopped");
  launcher.signalWorker(1, SIGCONT);
  launcher.waitForErr(identity(launcher, 1) + " goes on");
  launcher.signalWorker(0, SIGUSR1);
  launcher.waitForErr("ended with exit code 1");
  launcher.signalWorker(1, SIGUSR1);
  EXPECT_EQ(1, launcher.finish());
  EXPECT_EQ(
      "treadle run: " + identity(launcher, 0) + " ended with exit code 1 first; rank 1 then ended with exit code 1",
      launcher.lastErrLine());
}

TEST(Run, leavesAJobAloneThatIsStoppedAsAWhole) {
  Launcher launcher = Launcher::withWorkers(2, {"--grace", "0"});
  for (int rank : {0, 1}) launcher.signalWorker(rank, SIGSTOP);
  for (int rank : {0, 1}) launcher.waitForErr(identity(launcher, rank) + " was stopped");
  for (int rank : {0, 1}) launcher.signalWorker(rank, SIGCONT);
  for (int rank : {0, 1}) launcher.waitForErr(identity(launcher, rank) + " goes on");
  for (int rank : {0, 1}) launcher.signalWorker(rank, SIGUSR2);
  EXPECT_EQ(0, launcher.finish());
}

TEST(Run, endsThoseWhoDoNotEndByThemselvesFirstByTermThenByKill) {
  Launcher launcher = Launcher::withWorkers(3, {"--grace", "0.1"}, {"deaf"});
  launcher.signalWorker(0, SIGUSR1);
  EXPECT_EQ(1, launcher.finish());
  EXPECT_EQ("treadle run: " + identity(launcher, 0) +
                " ended with exit code 1 first; ranks 1 and 2 were ended by the launcher",
            launcher.lastErrLine());
  expectAllGone(launcher, 3);
}

TEST(Run, waitsForTheOthersWhenOneEndsWell) {
  Launcher launcher = Launcher::withWorkers(2, {"--grace", "0"});
  io::Fd first = watchProcess(launcher.worker(0));
  launcher.signalWorker(0, SIGUSR2);
  ASSERT_TRUE(test::readable(first.get(), "the worker's end"));
  EXPECT_FALSE(io::waitFor(launcher.endFd(), POLLIN, deadlineAfter(100ms)));
  launcher.signalWorker(1, SIGUSR2);
  EXPECT_EQ(0, launcher.finish());
}

// Three workers, of which one does not join; the others have the time to wait for it for an hour.
class RunWithoutOne : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    for (int rank : others_)
      if (victim_ != 0) launcher_.waitForErr("(rank " + std::to_string(rank) + ") has registered");
  }
  // The others end because of the victim, and say so.
  void expectOthersLost(const std::string& how) {
    const std::string name = "worker" + std::to_string(victim_);
    const std::string loss = "] lost " + name + ": worker '" + name + "' (rank " + std::to_string(victim_) + ") " +
                             how + " before all had joined; look at its output";
    for (int rank : others_) EXPECT_NE(std::string::npos, launcher_.err().find(std::to_string(rank) + loss));
    EXPECT_FALSE(HasFailure()) << launcher_.err();
    expectAllGone(launcher_, 3);
  }
  void expectVictimFirst(const std::string& how) {
    const std::string last = launcher_.lastErrLine();
    EXPECT_TRUE(last.starts_with("treadle run: " + identity(launcher_, victim_) + " " + how + " first; ")) << last;
  }

  const int victim_ = GetParam();
  const std::array<int, 2> others_ = {(victim_ + 1) % 3, (victim_ + 2) % 3};
  Launcher launcher_ = Launcher::withWorkers(3, kLongGrace, {"without", std::to_string(victim_)});
};

TEST_P(RunWithoutOne, endsTheJoinsOfTheOthersWhenItIsKilled) {
  launcher_.signalWorker(victim_, SIGKILL);
  EXPECT_EQ(128 + SIGKILL, launcher_.finish());
  expectOthersLost("was killed by SIGKILL");
  expectVictimFirst("was killed by SIGKILL");
}

TEST_P(RunWithoutOne, endsTheJoinsOfTheOthersWhenItFails) {
  launcher_.signalWorker(victim_, SIGUSR1);
  EXPECT_EQ(1, launcher_.finish());
  expectOthersLost("ended with exit code 1");
  expectVictimFirst("ended with exit code 1");
}

TEST_P(RunWithoutOne, endsTheJoinsOfTheOthersWhenItEndsWell) {
  launcher_.signalWorker(victim_, SIGUSR2);
  EXPECT_EQ(1, launcher_.finish());
  expectOthersLost("ended with exit code 0");
  const std::string last = launcher_.lastErrLine();
  EXPECT_NE(std::string::npos, last.find(" ended with exit code 1 because of another worker; ")) << last;
}

INSTANTIATE_TEST_SUITE_P(OfRank, RunWithoutOne, testing::Values(0, 1, 2));

// It tells no name, and may end before the others begin to join.
TEST(Run, endsTheJoinsOfTheOthersWhenAProgramWithoutTreadleFails) {
  Launcher launcher = Launcher::shell(
      3, "[ $RANK = 1 ] && exit 7; exec '" + test::testProgram("cli_worker_program") + "' without 1", kLongGrace);
  EXPECT_EQ(7, launcher.finish());
  for (const char* rank : {"[0] ", "[2] "})
    EXPECT_NE(std::string::npos, launcher.err().find(rank + std::string("lost rank 1: rank 1 ended with exit code 7 "
                                                                        "before all had joined")))
        << launcher.err();
}

// It gave up over a rank 0 that was late, and no other worker has ended.
TEST(Run, endsAJoinThatWaitsForAWorkerThatGaveUp) {
  Launcher launcher = Launcher::withWorkers(2, kLongGrace, {"late", "0"});
  launcher.waitForErr("ended with exit code 1");
  launcher.signalWorker(0, SIGUSR1);
  EXPECT_EQ(1, launcher.finish());
  EXPECT_NE(std::string::npos, launcher.err().find("[0] lost worker1: worker 'worker1' (rank 1) ended with exit code 1 "
                                                   "before all had joined"))
      << launcher.err();
}

// The workers say a lot, and nothing that means anything; they read nothing.
TEST(Run, heedsNoGarbageOnTheStatusSocket) {
  Launcher launcher = Launcher::withWorkers(2, {"--grace", "0"}, {"babbling"});
  launcher.signalWorker(1, SIGUSR1);
  EXPECT_EQ(1, launcher.finish());
  EXPECT_EQ("treadle run: " + identity(launcher, 1) + " ended with exit code 1 first; rank 0 was ended by the launcher",
            launcher.lastErrLine());
}

TEST(Run, passesSignalsOnAndExitsWithThem) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Launcher launcher = Launcher::withWorkers(2, kLongGrace);
    ASSERT_EQ(0, ::kill(launcher.pid(), signal));
    EXPECT_EQ(128 + signal, launcher.finish());
    EXPECT_EQ("treadle run: ended by " + io::signalName(signal) + "; all workers have ended", launcher.lastErrLine());
    expectAllGone(launcher, 2);
  }
}

TEST(Run, killsAtTheSecondInterrupt) {
  Launcher launcher = Launcher::withWorkers(2, {"--grace", "3600"}, {"deaf"});
  ASSERT_EQ(0, ::kill(launcher.pid(), SIGINT));
  launcher.waitForErr("SIGINT; the workers have");
  ASSERT_EQ(0, ::kill(launcher.pid(), SIGINT));
  EXPECT_EQ(128 + SIGINT, launcher.finish());
  EXPECT_EQ("treadle run: ended by SIGINT; ranks 0 and 1 had to be killed", launcher.lastErrLine());
  expectAllGone(launcher, 2);
}

TEST(Run, killsAfterTheGraceThatAnInterruptGives) {
  Launcher launcher = Launcher::withWorkers(2, {"--grace", "0.1"}, {"deaf"});
  ASSERT_EQ(0, ::kill(launcher.pid(), SIGTERM));
  EXPECT_EQ(128 + SIGTERM, launcher.finish());
  expectAllGone(launcher, 2);
}

TEST(Run, takesItsWorkersWithItWhenItIsKilled) {
  Launcher launcher = Launcher::withWorkers(3, {}, {"deaf"});
  std::vector<io::Fd> ends;
  for (int rank = 0; rank < 3; ++rank) ends.push_back(watchProcess(launcher.worker(rank)));
  ASSERT_EQ(0, ::kill(launcher.pid(), SIGKILL));
  for (io::Fd& end : ends) EXPECT_TRUE(test::readable(end.get(), "the worker's end"));
  EXPECT_EQ(1000 + SIGKILL, launcher.finish());
}

TEST(Run, doesNotWaitForWhatWorkersLeftBehindAndLeavesNoneOfIt) {
  // One child in the worker's group, one in a session of its own; both hold the pipes.
  Launcher launcher = Launcher::shell(2, "sleep 1000 & echo left $!; setsid sleep 1000 & echo left $!");
  EXPECT_EQ(0, launcher.finish());
  int seen = 0;
  for (const std::string& line : sortedLines(launcher.out())) {
    EXPECT_TRUE(isGone(std::stoi(line.substr(9)))) << line;
    ++seen;
  }
  EXPECT_EQ(4, seen);
}

}  // namespace
}  // namespace treadle::cli::run_failure_test
