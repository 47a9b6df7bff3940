// Tensors that members offer by name and that have no sum: late, cancelled and lost ones.

#include <poll.h>
#include <unistd.h>

#include <thread>

#include "tests/core/group/push_pull_tensors.h"
#include "treadle/core/io/serving.h"

namespace treadle::push_pull_failure_test {
namespace {

using std::chrono::milliseconds;
using test::contains;
using test::failureOf;
using test::GroupJob;
using test::nameOf;
using test::PushPullTest;
using test::withLongerLimits;

class LatePushPullTest : public PushPullTest {};

TEST_F(LatePushPullTest, NamesTheMembersThatHaveNotOfferedIt) {
  EXPECT_TRUE(withLongerLimits(milliseconds(200), [&](Duration limit) {
    GroupJob job(4);
    std::vector<ProcessGroup> groups = job.makeAll({.name = "four"});
    std::vector<std::vector<float>> data(4, std::vector<float>(10, 1));
    std::vector<Future<void>> futures;
    for (size_t rank : {0U, 2U})
      futures.push_back(pushPull(groups[rank].withTimeout(limit), "layer1.weight", std::span(data[rank])));
    futures.push_back(pushPull(groups[1], "layer1.wieght", std::span(data[1])));
    auto named = ::testing::AssertionSuccess();
    for (size_t i : {0U, 1U}) {
      const Status why = failureOf(futures[i]);
      EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
      EXPECT_TRUE(
          contains(why.message(), "gave up pushPull of 'layer1.weight' in group 'four' after " + toText(limit)));
      // The others' offers must have reached rank 0 within the limit.
      for (const char* part : {"it has not been offered by worker 'w1' (rank 1), worker 'w3' (rank 3)",
                               "other members have offered a similar name, 'layer1.wieght'"})
        if (!contains(why.message(), part)) named = ::testing::AssertionFailure() << why.message();
    }
    if (!named) return named;
    // Late members get the error of the others, and the next round is another one.
    for (size_t rank : {1U, 3U}) {
      const Status why = failureOf(pushPull(groups[rank], "layer1.weight", std::span(data[rank])));
      EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
    }
    EXPECT_FALSE(futures[2].ready());
    expectToGoOn(groups);
    std::vector<Future<void>> again = offerOnAll(groups, "layer1.weight", data);
    test::waitAll(again);
    return named;
  }));
}

// Rank 0 matches the names, and has not even made the group.
TEST_F(LatePushPullTest, NamesARankZeroThatDoesNotAnswer) {
  GroupJob job(2);
  ProcessGroup group = job.make(1, {.name = "pair"});
  float value = 1;
  const Status why = failureOf(pushPull(group.withTimeout(milliseconds(50)), "a", std::span(&value, 1)));
  EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
  EXPECT_TRUE(contains(why.message(), "pushPull of 'a' in group 'pair' was not done in 50 ms"));
  EXPECT_TRUE(contains(why.message(), "no answer has come from worker 'w0' (rank 0)"));
}

// Reads standard error of this process while it lives.
class LogReader {
 public:
  LogReader() {
    EXPECT_EQ(::pipe(ends_), 0);
    before_ = ::dup(STDERR_FILENO);
    ::dup2(ends_[1], STDERR_FILENO);
  }
  ~LogReader() {
    ::dup2(before_, STDERR_FILENO);
    for (int fd : {before_, ends_[0], ends_[1]}) ::close(fd);
  }
  LogReader(const LogReader&) = delete;
  LogReader& operator=(const LogReader&) = delete;

  // The first line that has the text.
  std::string lineWith(const std::string& text) {
    for (std::string log;;) {
      for (size_t end = log.find('\n'); end != std::string::npos; end = log.find('\n')) {
        const std::string line = log.substr(0, end);
        if (line.find(text) != std::string::npos) return line;
        log.erase(0, end + 1);
      }
      pollfd waits{ends_[0], POLLIN, 0};
      char some[4096];
      const bool came = ::poll(&waits, 1, 60'000) == 1;
      const ssize_t size = came ? ::read(ends_[0], some, sizeof some) : 0;
      if (size <= 0) return test::waitedInVain("no line has " + text).message();
      log.append(some, static_cast<size_t>(size));
    }
  }

 private:
  int ends_[2] = {-1, -1}, before_ = -1;
};

TEST_F(LatePushPullTest, IsReportedInRankZerosLogWithANameThatIsMisspelt) {
  EXPECT_TRUE(withLongerLimits(milliseconds(200), [](Duration limit) {
    GroupJob job(3);
    std::vector<ProcessGroup> groups = job.makeAll({.name = "trio", .timeout = kNoTimeout, .stallReport = limit});
    std::vector<std::vector<float>> data(3, std::vector<float>(10));
    std::vector<Future<void>> futures;
    std::string line;
    {
      LogReader reader;
      futures.push_back(pushPull(groups[2], "layer1.wieght", std::span(data[2])));
      futures.push_back(pushPull(groups[1], "layer1.weight", std::span(data[1])));
      futures.push_back(pushPull(groups[0], "layer1.weight", std::span(data[0])));
      line = reader.lineWith("pushPull of 'layer1.weight'");
    }
    EXPECT_TRUE(contains(line, "warning w0: pushPull of 'layer1.weight' in group 'trio' has waited for "));
    for (const Future<void>& future : futures) EXPECT_FALSE(future.ready()) << "a report is no failure";
    // The others' offers must have reached rank 0 within the limit.
    return contains(line,
                    "other members have offered a similar name, 'layer1.wieght'; it has not been offered by "
                    "worker 'w2' (rank 2)");
  }));
}

class CancelledPushPullTest : public PushPullTest {};

TEST_F(CancelledPushPullTest, FailsOnAllAndFreesTheMemory) {
  for (size_t count : {size_t{10}, size_t{5'000'000}}) {
    GroupJob job(3);
    std::vector<ProcessGroup> groups = job.makeAll({.name = "trio"});
    auto mine = std::make_unique<std::vector<float>>(count);
    std::vector<float> theirs(count), third(count);
    Future<void> here = pushPull(groups[1], "a", std::span(*mine)), there = pushPull(groups[0], "a", std::span(theirs));
    here.cancel();
    mine.reset();
    EXPECT_EQ(failureOf(here).code(), Code::kCancelled);
    const Status why = failureOf(there);
    EXPECT_EQ(why.code(), Code::kCancelled) << why.toString();
    EXPECT_TRUE(contains(why.message(), "worker 'w1' (rank 1) cancelled pushPull of 'a' in group 'trio'"));
    EXPECT_EQ(failureOf(pushPull(groups[2], "a", std::span(third))).code(), Code::kCancelled);
    expectToGoOn(groups);
  }
}

// At any moment, of any size, fused and cut, one member cancels a tensor: every offer ends, what ends well has the sum,
// and the group goes on.
class CancellingPushPullTest : public PushPullTest {
 protected:
  static constexpr size_t kMembers = 3;

  // `value(rank, tensor, element)`.
  template <class F>
  void setValues(F value) {
    const std::vector<size_t> counts = {10, 300'000, 1'100'000, 20, 50'000};
    for (size_t tensor = 0; tensor < counts.size(); ++tensor) {
      test::Tensors& ofAll = values_.emplace_back(kMembers, std::vector<float>(counts[tensor]));
      std::vector<float>& sum = sums_.emplace_back(counts[tensor]);
      for (size_t i = 0; i < counts[tensor]; ++i)
        for (size_t rank = 0; rank < kMembers; ++rank) {
          ofAll[rank][i] = value(rank, tensor, i);
          sum[i] = rank == 0 ? ofAll[rank][i] : sum[i] + ofAll[rank][i];
        }
    }
  }

  void runRound() {
    std::vector<std::vector<std::unique_ptr<std::vector<float>>>> data(kMembers);
    std::vector<std::vector<Future<void>>> futures(kMembers);
    for (size_t rank = 0; rank < kMembers; ++rank)
      for (size_t tensor = 0; tensor < sums_.size(); ++tensor)
        data[rank].push_back(std::make_unique<std::vector<float>>(values_[tensor][rank]));
    for (size_t rank = 0; rank < kMembers; ++rank)
      for (size_t tensor = 0; tensor < sums_.size(); ++tensor)
        futures[rank].push_back(pushPull(groups_[rank], nameOf(tensor), std::span(*data[rank][tensor])));
    const size_t victim = random_() % kMembers, cancelledOne = random_() % sums_.size();
    try {
      futures[victim][cancelledOne].wait(std::chrono::microseconds(random_() % 3000));
    } catch (const TimeoutError&) {}
    futures[victim][cancelledOne].cancel();
    if (!failureOf(futures[victim][cancelledOne]).ok()) data[victim][cancelledOne].reset();  // ASan sees a late write
    for (size_t rank = 0; rank < kMembers; ++rank)
      for (size_t tensor = 0; tensor < sums_.size(); ++tensor) {
        const Status why = failureOf(futures[rank][tensor]);
        ASSERT_TRUE(why.ok() || why.code() == Code::kCancelled) << why.toString();
        if (!why.ok()) continue;
        ASSERT_TRUE(*data[rank][tensor] == sums_[tensor]) << "tensor " << tensor << " of rank " << rank;
      }
  }

  GroupJob job_{kMembers};
  std::vector<ProcessGroup> groups_;
  std::vector<test::Tensors> values_;  // by tensor and rank
  test::Tensors sums_;                 // added by rank
};

TEST_F(CancellingPushPullTest, LeavesSumsAndAGroupThatGoesOn) {
  groups_ = job_.makeAll();
  setValues([](size_t rank, size_t tensor, size_t i) { return static_cast<float>((i + 3 * tensor + rank) % 100); });
  for (int round = 0; round < 40 && !HasFailure(); ++round) runRound();
  expectToGoOn(groups_);
}

TEST_F(CancellingPushPullTest, LeavesTheBitsOfALoopWithSumOrderByRank) {
  groups_ = job_.makeAll({.sumOrder = SumOrder::kRank});
  setValues([](size_t rank, size_t tensor, size_t i) {
    return 1e8F / static_cast<float>(rank * 7 + tensor + i % 1000 + 1) + 0.1F;
  });
  for (int round = 0; round < 20 && !HasFailure(); ++round) runRound();
  expectToGoOn(groups_);
}

// Such a thread must not wait.
TEST_F(CancelledPushPullTest, IsNotWaitedForByAThreadThatReads) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll();
  std::vector<float> mine(10);
  Future<void> future = pushPull(groups[1], "a", std::span(mine));
  test::Gate ended;
  {
    const io::Serving reads;
    sharedStateOf(future)->onReady([&] { ended.open(); });
    future.cancel();
  }
  ended.wait();
  EXPECT_EQ(failureOf(future).code(), Code::kCancelled);
}

// The cancelled offer counts, at whatever moment that came: the next offers of the name meet each other.
TEST_F(CancelledPushPullTest, OfNamesThatAreOfferedAgainAtOnceMixesNothingUp) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll();
  for (int round = 0; round < 200; ++round) {
    std::vector<float> first[2] = {std::vector<float>(10, 1), std::vector<float>(10, 1)};
    std::vector<float> again[2] = {std::vector<float>(10, 100), std::vector<float>(10, 100)};
    Future<void> cancelledOne = pushPull(groups[1], "a", std::span(first[1]));
    Future<void> other = pushPull(groups[0], "a", std::span(first[0]));
    cancelledOne.cancel();
    failureOf(cancelledOne).ignore();
    failureOf(other).ignore();
    std::vector<Future<void>> next = {pushPull(groups[0], "a", std::span(again[0])),
                                      pushPull(groups[1], "a", std::span(again[1]))};
    test::waitAll(next);
    ASSERT_EQ(again[0], std::vector<float>(10, 200));
    ASSERT_EQ(again[1], std::vector<float>(10, 200));
  }
}

class LostPushPullTest : public PushPullTest {};

TEST_F(LostPushPullTest, FailsWithTheNameOfTheLostMember) {
  for (int lost : {0, 2})
    for (size_t count : {size_t{10}, size_t{3'000'000}})
      for (const bool tookPart : {false, true}) {
        GroupJob job(3);
        std::vector<ProcessGroup> groups = job.makeAll();
        std::vector<std::vector<float>> data(3, std::vector<float>(count));
        std::vector<float> waits(1);
        std::vector<Future<void>> futures = {pushPull(groups[1], "waits", std::span(waits))};
        for (size_t rank = 0; rank < 3; ++rank)
          if (tookPart || static_cast<int>(rank) != lost)
            futures.push_back(pushPull(groups[rank], "a", std::span(data[rank])));
        job.local().kill(lost);
        EXPECT_EQ(failureOf(futures[0]).worker(), "w" + std::to_string(lost));
        for (size_t rank = 0; rank < 3; ++rank) {
          if (static_cast<int>(rank) == lost) continue;
          const Status why = failureOf(pushPull(groups[rank], "later", std::span(waits)));
          EXPECT_EQ(why.code(), Code::kPeerLost) << why.toString();
          EXPECT_EQ(why.worker(), "w" + std::to_string(lost));
        }
        // What was in flight on the living has ended: with its result, or with the loss.
        for (size_t i = 1; i < futures.size(); ++i) {
          if (tookPart && static_cast<int>(i) - 1 == lost) continue;
          const Status why = failureOf(futures[i]);
          EXPECT_TRUE(why.ok() || why.worker() == "w" + std::to_string(lost)) << why.toString();
        }
      }
}

// As a room above does for a pass that cannot end. The reason is the member's, also for offers that come later.
TEST_F(LostPushPullTest, EndsWhenAMemberAbandonsTheGroup) {
  for (int gives : {0, 1})
    for (size_t count : {size_t{10}, size_t{3'000'000}}) {
      GroupJob job(3);
      std::vector<ProcessGroup> groups = job.makeAll();
      std::vector<std::vector<float>> data(3, std::vector<float>(count)), waiting(3, std::vector<float>(1));
      std::vector<Future<void>> waits, sums = offerOnAll(groups, "a", data);
      for (size_t rank : {0U, 1U})
        waits.push_back(pushPull(groups[rank], "waits " + std::to_string(rank), std::span(waiting[rank])));
      groups[static_cast<size_t>(gives)].core().abandon(failedPrecondition("a pass has failed"));
      for (const Status& sum : test::failures(sums))
        EXPECT_TRUE(sum.ok() || sum.message() == "a pass has failed") << sum.toString();
      for (const Status& why : test::failures(waits)) {
        EXPECT_EQ(why.code(), Code::kFailedPrecondition) << why.toString();
        EXPECT_EQ(why.message(), "a pass has failed");
      }
      for (size_t rank = 0; rank < 3; ++rank)
        EXPECT_EQ(failureOf(pushPull(groups[rank], "later", std::span(waiting[rank]))).message(), "a pass has failed");
    }
}

TEST_F(LostPushPullTest, EndsWithItsWorkerAndFreesTheMemory) {
  for (size_t count : {size_t{10}, size_t{300'000}, size_t{3'000'000}}) {
    GroupJob job(2);
    std::vector<ProcessGroup> groups = job.makeAll();
    auto mine = std::make_unique<std::vector<float>>(count);
    std::vector<float> theirs(count), single(1);
    Future<void> alone = pushPull(groups[0], "alone", std::span(single));
    Future<void> here = pushPull(groups[0], "a", std::span(*mine)), there = pushPull(groups[1], "a", std::span(theirs));
    job.worker(0).groups().close(cancelled("this worker leaves"));
    ASSERT_TRUE(here.ready());
    ASSERT_TRUE(alone.ready());
    mine.reset();
    EXPECT_EQ(failureOf(alone).message(), "this worker leaves");
    EXPECT_EQ(failureOf(pushPull(groups[0], "b", std::span(single))).message(), "this worker leaves");
    there.cancel();
  }
}

TEST_F(LostPushPullTest, AHandleMayOutliveItsJob) {
  ProcessGroup group;
  std::vector<float> data(1);
  Future<void> future;
  {
    GroupJob job(2);
    group = job.make(0);
    future = pushPull(group, "a", std::span(data));
  }
  EXPECT_EQ(failureOf(future).code(), Code::kCancelled);
  EXPECT_EQ(failureOf(pushPull(group, "b", std::span(data))).code(), Code::kCancelled);
}

}  // namespace
}  // namespace treadle::push_pull_failure_test
