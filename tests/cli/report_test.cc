#include "treadle/cli/report.h"

#include <signal.h>

#include "gtest/gtest.h"

namespace treadle::cli::report_test {
namespace {

using namespace std::chrono_literals;

// Workers of a job whose ends and stops lie at so many milliseconds.
class Story {
 public:
  explicit Story(int workers) {
    for (int rank = 0; rank < workers; ++rank) workers_.emplace_back().rank = rank;
    for (WorkerRecord& worker : workers_) worker.pid = 100 + worker.rank;
  }
  Story& exits(size_t rank, int code, int at) { return ends(rank, {false, code, false}, at); }
  Story& dies(size_t rank, int signal, int at) { return ends(rank, {true, signal, false}, at); }
  Story& tellsFailure(size_t rank, int at) {
    workers_[rank].toldFailureAt = start_ + std::chrono::milliseconds(at);
    return *this;
  }
  Story& givesUp(size_t rank) {
    workers_[rank].gaveUp = true;
    return *this;
  }
  Story& serves(size_t rank) {
    workers_[rank].isServer = true;
    return *this;
  }
  Story& stops(size_t rank, int at) {
    workers_[rank].stop = WorkerRecord::Stop{start_ + std::chrono::milliseconds(at), SIGSTOP};
    return *this;
  }
  Story& endedByUs(size_t rank, int signal, int at) {
    workers_[rank].sentSignal = signal;
    return dies(rank, signal, at);
  }
  int first() const {
    auto found = firstFailure(workers_);
    return found ? static_cast<int>(*found) : -1;
  }
  std::string text() const { return describeFailure(workers_, *firstFailure(workers_)); }
  std::vector<WorkerRecord>& workers() { return workers_; }

 private:
  Story& ends(size_t rank, io::ProcessEnd end, int at) {
    workers_[rank].end = end;
    workers_[rank].endedAt = start_ + std::chrono::milliseconds(at);
    return *this;
  }
  TimePoint start_ = Clock::now();
  std::vector<WorkerRecord> workers_;
};

TEST(Report, takesTheWordOfAWorkerThatFailsByItself) {
  EXPECT_EQ(1, Story(3).exits(0, 1, 5).tellsFailure(1, 4).exits(1, 1, 900).exits(2, 1, 6).first());
  EXPECT_EQ(2, Story(3).exits(0, 1, 5).tellsFailure(1, 4).exits(1, 1, 9).dies(2, SIGKILL, 3).first());
}

// The others go on without it; but not if they were still joining, and then they say so.
TEST(Report, namesAServerOnlyWhereAllWorkersGaveUpBecauseOfAnother) {
  EXPECT_EQ(1, Story(3).serves(2).dies(2, SIGKILL, 1).exits(1, 1, 900).exits(0, 1, 901).first());
  EXPECT_EQ(2, Story(3).serves(2).dies(2, SIGKILL, 1).exits(1, 1, 2).givesUp(1).exits(0, 1, 3).givesUp(0).first());
  EXPECT_EQ(0,
            Story(3).serves(2).dies(2, SIGKILL, 1).exits(0, 1, 5000).givesUp(0).exits(1, 1, 5001).givesUp(1).first());
  Story late(3);
  EXPECT_EQ("rank 1 (pid 101) ended with exit code 1 first; rank 0 ended well; rank 2 had been killed by SIGKILL",
            late.serves(2).dies(2, SIGKILL, 1).exits(1, 1, 5000).exits(0, 0, 5001).text());
}

TEST(Report, namesNoWorkerThatGaveUpBecauseOfAnother) {
  EXPECT_EQ(1, Story(3).exits(0, 1, 5).givesUp(0).exits(1, 3, 900).exits(2, 1, 6).givesUp(2).first());
  EXPECT_EQ(1, Story(2).exits(0, 1, 5).givesUp(0).dies(1, SIGKILL, 5000).first());
  EXPECT_EQ(1, Story(2).dies(0, SIGSEGV, 7).givesUp(0).exits(1, 3, 6).first()) << "it crashed on its way out";
  EXPECT_EQ(2,
            Story(3).exits(0, 1, 5).givesUp(0).exits(1, 1, 6).givesUp(1).stops(2, 1).endedByUs(2, SIGKILL, 9).first());
}

TEST(Report, saysSoWhenAllGaveUp) {
  Story story = Story(3).exits(0, 1, 6).givesUp(0).exits(1, 1, 5).givesUp(1).exits(2, 0, 1);
  EXPECT_EQ(1, story.first());
  EXPECT_EQ(
      "rank 1 (pid 101) ended with exit code 1 because of another worker; rank 0 then ended with exit code 1; "
      "rank 2 had ended well",
      story.text());
}

TEST(Report, findsNobodyWhenAllEndWell) {
  EXPECT_EQ(-1, Story(2).exits(0, 0, 5).exits(1, 0, 3).first());
  EXPECT_EQ(-1, Story(2).exits(0, 0, 5).first());
}

TEST(Report, takesTheEarliestEnd) {
  EXPECT_EQ(1, Story(3).exits(0, 1, 20).exits(1, 2, 10).exits(2, 0, 5).first());
  EXPECT_EQ(0, Story(3).dies(0, SIGKILL, 10).exits(1, 1, 20).dies(2, SIGABRT, 15).first());
}

TEST(Report, takesADeathBySignalBeforeAnExitThatWasReportedAMomentEarlier) {
  EXPECT_EQ(1, Story(3).exits(0, 1, 10).dies(1, SIGKILL, 12).exits(2, 1, 9).first());
  EXPECT_EQ(1, Story(2).dies(0, SIGABRT, 10).dies(1, SIGSEGV, 12).first());
  EXPECT_EQ(0, Story(2).exits(0, 1, 10).dies(1, SIGABRT, 12).first()) << "an abort can be a consequence";
  EXPECT_EQ(0, Story(2).exits(0, 1, 10).dies(1, SIGKILL, 3000).first()) << "too late to be the cause";
  EXPECT_EQ(0, Story(2).dies(0, SIGSEGV, 10).dies(1, SIGKILL, 11).first());
}

TEST(Report, countsAStopFromWhenItBegan) {
  EXPECT_EQ(2, Story(3).exits(0, 1, 5000).exits(1, 1, 5001).stops(2, 10).endedByUs(2, SIGKILL, 5002).first());
  EXPECT_EQ(0, Story(2).exits(0, 1, 10).stops(1, 500).endedByUs(1, SIGKILL, 600).first());
  EXPECT_EQ(1, Story(2).exits(0, 1, 5000).stops(1, 10).dies(1, SIGKILL, 6000).first()) << "killed by somebody else";
}

TEST(Report, doesNotBlameThoseWhomTheLauncherEnded) {
  EXPECT_EQ(1, Story(3).endedByUs(0, SIGTERM, 5).exits(1, 1, 10).endedByUs(2, SIGKILL, 6).first());
  EXPECT_EQ(-1, Story(1).endedByUs(0, SIGINT, 5).first());
}

TEST(Report, saysWhoWasFirstAndWhatBecameOfTheOthers) {
  Story story = Story(4).dies(2, SIGKILL, 10).exits(0, 1, 20).exits(1, 1, 30).exits(3, 1, 25);
  story.workers()[2].name = "trainer0";
  EXPECT_EQ("rank 2 (trainer0, pid 102) was killed by SIGKILL first; ranks 0, 1 and 3 then ended with exit code 1",
            story.text());
  EXPECT_EQ("rank 0 (pid 100) ended with exit code 7", Story(1).exits(0, 7, 1).text());
  EXPECT_EQ(
      "rank 1 (pid 101) ended with exit code 7 first; rank 0 had ended well; rank 2 ended well; "
      "ranks 3 and 4 were ended by the launcher; rank 5 was stopped and then ended by the launcher",
      Story(6)
          .exits(0, 0, 1)
          .exits(1, 7, 5)
          .exits(2, 0, 9)
          .endedByUs(3, SIGTERM, 20)
          .endedByUs(4, SIGKILL, 30)
          .stops(5, 8)
          .endedByUs(5, SIGKILL, 20)
          .text());
}

TEST(Report, mentionsACoreDump) {
  Story story = Story(1).dies(0, SIGSEGV, 1);
  story.workers()[0].end->coreDumped = true;
  EXPECT_EQ("rank 0 (pid 100) was killed by SIGSEGV (core dumped)", story.text());
}

TEST(Report, givesExitCodesAsAShellDoes) {
  EXPECT_EQ(3, exitCodeOf(Story(1).exits(0, 3, 1).workers()[0]));
  EXPECT_EQ(137, exitCodeOf(Story(1).dies(0, SIGKILL, 1).workers()[0]));
}

TEST(Report, shortensLongLists) {
  EXPECT_EQ("rank 3", rankList({3}));
  EXPECT_EQ("ranks 3 and 5", rankList({3, 5}));
  EXPECT_EQ("ranks 0, 1 and 2", rankList({0, 1, 2}));
  EXPECT_EQ("ranks 0-3", rankList({0, 1, 2, 3}));
  EXPECT_EQ("ranks 0-3, 5 and 7-10", rankList({0, 1, 2, 3, 5, 7, 8, 9, 10}));
}

}  // namespace
}  // namespace treadle::cli::report_test
