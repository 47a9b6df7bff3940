// What operations do when members disagree, die, are late or give up, beside the fault matrix.

#include "tests/core/group/group_job.h"

namespace treadle::failure_test {
namespace {

using std::chrono::seconds;
using test::contains;
using test::eventually;
using test::failureOf;
using test::GroupJob;
using test::withLongerLimits;

// Rank by rank one operation each; why each failed.
std::vector<Status> failures(std::vector<Future<void>> futures) {
  std::vector<Status> all;
  for (Future<void>& future : futures) all.push_back(failureOf(future));
  return all;
}

class MismatchTest : public ::testing::Test {
 protected:
  void expectMismatch(std::vector<Future<void>> futures, const std::string& one, const std::string& other) {
    for (const Status& why : failures(std::move(futures))) {
      EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
      EXPECT_TRUE(contains(why.message(), one) && contains(why.message(), other)) << why.message();
      EXPECT_TRUE(contains(why.message(), "rank 2")) << why.message();
    }
    // The group goes on.
    std::vector<Future<void>> next;
    for (ProcessGroup& group : groups_) next.push_back(barrier(group));
    test::waitAll(next);
  }

  GroupJob job_{3};
  std::vector<ProcessGroup> groups_ = job_.makeAll({.name = "trio"});
  std::vector<float> a_ = std::vector<float>(100'000), b_ = a_, c_ = a_;
};

TEST_F(MismatchTest, OfASmallAndALargeOne) {
  expectMismatch({allReduce(groups_[0], std::span(a_)), allReduce(groups_[1], std::span(b_)),
                  allReduce(groups_[2], std::span(c_).first(1))},
                 "100000 float32", "of 1 float32");
}

// A shape is a text of the callers; plain memory has none.
TEST_F(MismatchTest, OfShapesOfAsManyElements) {
  const std::vector<std::string> two = {"float32 [10, 10]", "float32 [100]"};
  const auto meet = [&](const std::string& shape, const std::string& other) {
    return std::vector<Future<void>>{allReduce(groups_[0].withShape(shape), std::span(a_).first(100)),
                                     allReduce(groups_[1].withShape(shape), std::span(b_).first(100)),
                                     allReduce(groups_[2].withShape(other), std::span(c_).first(100))};
  };
  expectMismatch(meet(two[0], two[1]), "calls allReduce (sum) of " + two[0], "calls allReduce (sum) of " + two[1]);
  expectMismatch(meet(two[0], ""), "calls allReduce (sum) of " + two[0], "calls allReduce (sum) of 100 float32");
  std::vector<Future<void>> alike = meet(two[0], two[0]);
  test::waitAll(alike);
  EXPECT_THROW(groups_[0].withShape(std::string(2049, '1')), ArgumentError);
  EXPECT_THROW(ProcessGroup().withShape(""), StateError);
}

TEST_F(MismatchTest, OfRootsOfWhichEachIsOne) {
  auto futures =
      std::vector<Future<void>>{broadcast(groups_[0], std::span(a_), 0), broadcast(groups_[1], std::span(b_), 1),
                                broadcast(groups_[2], std::span(c_), 2)};
  for (const Status& why : failures(std::move(futures))) {
    EXPECT_EQ(why.code(), Code::kInvalidArgument);
    EXPECT_TRUE(contains(why.message(), "broadcast from the group's rank")) << why.message();
  }
}

TEST_F(MismatchTest, OfTheGroupsOptions) {
  std::vector<ProcessGroup> groups;
  for (int rank = 0; rank < 3; ++rank) groups.push_back(job_.make(rank, {.chunkBytes = rank == 2 ? 4096U : 8192U}));
  std::vector<Future<void>> futures;
  for (ProcessGroup& group : groups) futures.push_back(barrier(group));
  for (const Status& why : failures(std::move(futures)))
    EXPECT_TRUE(contains(why.message(), "chunkBytes 4096") && contains(why.message(), "chunkBytes 8192"))
        << why.message();
}

TEST(LostMemberTest, LeavesGroupsWithoutItAlone) {
  GroupJob job(3);
  ProcessGroup pair0 = ProcessGroup::make(job.worker(0), {"w0", "w1"}),
               pair1 = ProcessGroup::make(job.worker(1), {"w0", "w1"});
  std::vector<ProcessGroup> all = job.makeAll();
  job.local().kill(2);
  EXPECT_EQ(failureOf(barrier(all[0])).code(), Code::kPeerLost);
  std::vector<Future<void>> futures = {barrier(pair0), barrier(pair1)};
  test::waitAll(futures);
  // A group that is made afterwards has a lost member from the start.
  Status why = failureOf(barrier(job.make(0, {.name = "late"})));
  EXPECT_EQ(why.code(), Code::kPeerLost);
  EXPECT_EQ(why.worker(), "w2");
}

TEST(DeadlineTest, NamesWhoHasNotTakenPart) {
  std::vector<float> small(10), large(1'000'000);
  for (std::span<float> data : {std::span(small), std::span(large)})
    EXPECT_TRUE(withLongerLimits(seconds(1), [&](Duration limit) {
      GroupJob job(4);
      std::vector<ProcessGroup> groups = job.makeAll({.name = "four", .timeout = limit});
      std::vector<float> other(data.begin(), data.end());
      std::vector<Future<void>> futures = {allReduce(groups[0], data), allReduce(groups[2], std::span(other))};
      auto named = ::testing::AssertionSuccess();
      for (const Status& why : failures(std::move(futures))) {
        EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
        EXPECT_TRUE(contains(why.message(), "group 'four'") && contains(why.message(), toText(limit))) << why.message();
        for (const char* name : {"worker 'w1' (rank 1)", "worker 'w3' (rank 3)"})
          EXPECT_TRUE(contains(why.message(), name)) << why.message();
        // The two ranks must hear from each other within the limit.
        if (!contains(why.message(), "worker 'w1' (rank 1), worker 'w3' (rank 3)"))
          named = ::testing::AssertionFailure() << why.message();
      }
      // A rank that joins the operation too late gets an error.
      EXPECT_EQ(failureOf(allReduce(groups[1], data)).code(), Code::kDeadlineExceeded);
      return named;
    }));
}

TEST(DeadlineTest, MayBeThatOfOneOperation) {
  GroupJob job(2);
  ProcessGroup group = job.make(0, {.timeout = kNoTimeout});
  Future<void> patient = barrier(group);
  const Status why = failureOf(barrier(group.withTimeout(std::chrono::milliseconds(50))));
  EXPECT_EQ(why.code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(contains(why.message(), "was not done in 50 ms")) << why.message();
  EXPECT_FALSE(patient.ready());
  EXPECT_EQ(group.timeout(), kNoTimeout);
  EXPECT_EQ(group.withTimeout(seconds(1)).timeout(), seconds(1));
  EXPECT_THROW(group.withTimeout(Duration::zero()), ArgumentError);
  EXPECT_THROW(ProcessGroup().withTimeout(seconds(1)), StateError);
  Future<void> other = barrier(job.make(1));
  patient.wait(test::kPatience);
  other.wait(test::kPatience);
}

// Who comes late either hears that others gave up, or has all that it needs already.
void expectDoneOrLate(const std::vector<Future<void>>& futures) {
  for (const Status& why : failures(futures))
    EXPECT_TRUE(why.ok() || why.code() == Code::kDeadlineExceeded) << why.toString();
}

// The next operation succeeds, or a later one if a busy machine makes it reach the group's limit.
void expectToGoOn(std::vector<ProcessGroup>& groups) {
  EXPECT_TRUE(eventually([&] {
    std::vector<Future<void>> next;
    for (ProcessGroup& group : groups) next.push_back(barrier(group));
    bool allDone = true;
    for (const Status& why : failures(std::move(next))) {
      EXPECT_TRUE(why.ok() || why.code() == Code::kDeadlineExceeded) << why.toString();
      allDone = allDone && why.ok();
    }
    return allDone;
  }));
}

TEST(DeadlineTest, AfterwardsTheGroupGoesOn) {
  GroupJob job(3);
  std::vector<ProcessGroup> groups = job.makeAll({.timeout = seconds(1)});
  EXPECT_EQ(failureOf(barrier(groups[0])).code(), Code::kDeadlineExceeded);
  expectDoneOrLate({barrier(groups[1]), barrier(groups[2])});
  expectToGoOn(groups);
}

// More operations than may be told to others at a time, all of which one member misses.
TEST(DeadlineTest, AlsoEndsOperationsThatHadToWaitForTheirTurn) {
  constexpr int kOperations = 200;
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll({.timeout = seconds(1)});
  std::vector<Future<void>> futures;
  for (int i = 0; i < kOperations; ++i) futures.push_back(barrier(groups[0]));
  for (const Status& why : failures(futures)) EXPECT_EQ(why.code(), Code::kDeadlineExceeded);
  std::vector<Future<void>> late;
  for (int i = 0; i < kOperations; ++i) late.push_back(barrier(groups[1]));
  expectDoneOrLate(late);
  expectToGoOn(groups);
}

// Large data goes around a ring, or each block to the member that combines it.
using Types = ::testing::Types<float, group::BFloat16>;
template <class T>
class DataTest : public ::testing::Test {};
TYPED_TEST_SUITE(DataTest, Types);
template <class T>
class LargeDataTest : public ::testing::Test {};
TYPED_TEST_SUITE(LargeDataTest, Types);

// The second member begins, and then its process stands still.
TYPED_TEST(LargeDataTest, SaysHowMuchHasComeByTheDeadline) {
  EXPECT_TRUE(withLongerLimits(seconds(2), [](Duration limit) {
    GroupJob job(2);
    std::vector<TypeParam> mine(100'000), theirs(100'000);
    ProcessGroup first = job.make(0, {.timeout = limit}), second = job.make(1);
    Future<void> begun = allReduce(second, std::span(theirs));
    job.local().worker(1).executor->stop();
    Status why = failureOf(allReduce(first, std::span(mine)));
    EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
    EXPECT_TRUE(contains(why.message(), "worker 'w1'")) << why.message();
    // The second rank must report within the limit that it has begun.
    const bool said = contains(why.message(), "0 of 2 chunks have come from worker 'w1'");
    return said ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << why.message();
  }));
}

// All have begun, and the second has sent its chunks: they cannot be combined without the third's.
TEST(DirectData, ThatDoesNotComeIsReportedOfWhoHasNotSentIt) {
  EXPECT_TRUE(withLongerLimits(seconds(2), [](Duration limit) {
    GroupJob job(3);
    std::vector<std::vector<group::BFloat16>> data(3, std::vector<group::BFloat16>(300'000));
    std::vector<ProcessGroup> groups = job.makeAll({.timeout = limit});
    Future<void> third = allReduce(groups[2], std::span(data[2]));
    job.local().worker(2).executor->stop();
    Future<void> second = allReduce(groups[1], std::span(data[1]));
    Status why = failureOf(allReduce(groups[0], std::span(data[0])));
    EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
    const bool said = contains(why.message(), "chunks have come from worker 'w2'");
    return said ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << why.message();
  }));
}

TYPED_TEST(DataTest, IsFreeOnceItsOperationIsCancelled) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll();
  for (size_t count : {size_t{10}, size_t{2'000'000}}) {
    auto mine = std::make_unique<std::vector<TypeParam>>(count);
    std::vector<TypeParam> theirs(count);
    Future<void> here = allReduce(groups[0], std::span(*mine));
    Future<void> there = allReduce(groups[1], std::span(theirs));
    here.cancel();
    mine.reset();                   // the sanitizer would see a late write
    Status why = failureOf(there);  // it may have had all it needed by then
    EXPECT_TRUE(why.ok() || why.code() == Code::kCancelled) << why.toString();
  }
}

// The third has sent nothing yet, so that nobody can have all that it needs.
TYPED_TEST(DataTest, IsCancelledEverywhere) {
  for (size_t count : {size_t{10}, size_t{2'000'000}}) {
    GroupJob job(3);
    std::vector<ProcessGroup> groups = job.makeAll();
    std::vector<std::vector<TypeParam>> numbers(3, std::vector<TypeParam>(count));
    Future<void> cancelled = allReduce(groups[0], std::span(numbers[0]));
    Future<void> other = allReduce(groups[1], std::span(numbers[1]));
    cancelled.cancel();
    Status why = failureOf(other);
    EXPECT_EQ(why.code(), Code::kCancelled) << why.toString();
    EXPECT_TRUE(contains(why.message(), "worker 'w0' (rank 0) cancelled")) << why.message();
    EXPECT_THROW(cancelled.wait(), CancelledError);
    Status late = failureOf(allReduce(groups[2], std::span(numbers[2])));
    EXPECT_TRUE(late.ok() || late.code() == Code::kCancelled) << late.toString();
    std::vector<Future<void>> next = {barrier(groups[0]), barrier(groups[1]), barrier(groups[2])};
    test::waitAll(next);
  }
}

TEST(CloseTest, EndsWhatIsUnderWayAndFreesTheMemory) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll();
  auto mine = std::make_unique<std::vector<double>>(1'000'000, 1.0);
  std::vector<double> theirs(1'000'000, 1.0);
  Future<void> here = allReduce(groups[0], std::span(*mine));
  Future<void> there = allReduce(groups[1], std::span(theirs));
  job.worker(0).groups().close(cancelled("this worker leaves"));
  ASSERT_TRUE(here.ready());
  mine.reset();
  EXPECT_EQ(failureOf(barrier(groups[0])).message(), "this worker leaves");
  EXPECT_THROW(job.make(0), CancelledError);
  there.cancel();
}

}  // namespace
}  // namespace treadle::failure_test
