// pushPull among so many members that batches are agreed on along a tree: failures are those of a small group.

#include "tests/core/group/push_pull_tensors.h"
#include "tests/support/descriptors.h"

namespace treadle::push_pull_many_test {
namespace {

using std::chrono::milliseconds;
using test::contains;
using test::GroupJob;
using test::PushPullTest;
using test::withLongerLimits;

constexpr size_t kMembers = 21;

class ManyPushPullTest : public PushPullTest {
 protected:
  void expectSums() { sumAll(groups_, {10, 100'000}); }

  GroupJob job_{kMembers, {.executor = {.maxConcurrentHandlers = 1}}};
  std::vector<ProcessGroup> groups_ = job_.makeAll({.name = "many"});
  test::Tensors data_ = test::Tensors(kMembers, std::vector<float>(100'000, 1));
};

TEST_F(ManyPushPullTest, ShapesThatDifferFailOnAll) {
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < kMembers; ++rank)
    futures.push_back(pushPull(groups_[rank], "a", std::span(data_[rank]).first(rank == 13 ? 7 : 6)));
  for (const Status& why : test::failures(futures)) {
    EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
    EXPECT_TRUE(contains(why.message(), "worker 'w13' (rank 13) offers float32 [7] (sum)"));
  }
  expectSums();
}

TEST_F(ManyPushPullTest, AMemberThatDoesNotOfferIsNamed) {
  EXPECT_TRUE(withLongerLimits(milliseconds(500), [&](Duration limit) {
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank < kMembers; ++rank)
      if (rank != 13) futures.push_back(pushPull(groups_[rank].withTimeout(limit), "a", std::span(data_[rank])));
    auto outcome = ::testing::AssertionSuccess();
    for (const Status& why : test::failures(futures)) {
      EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
      // The offers must reach rank 0 within the limit.
      if (!contains(why.message(), "it has not been offered by worker 'w13' (rank 13)"))
        outcome = ::testing::AssertionFailure() << why.message();
    }
    EXPECT_EQ(test::failureOf(pushPull(groups_[13], "a", std::span(data_[13]))).code(), Code::kDeadlineExceeded);
    return outcome;
  }));
  expectSums();
}

// Large, so a task is to do its part in the sum.
TEST_F(ManyPushPullTest, AMemberThatCancelsFailsTheTensorOnAll) {
  test::Gate busy, goesOn, ended;
  job_.local().worker(5).executor->post([&] {
    busy.open();
    goesOn.wait();
    ended.open();
  });
  busy.wait();
  std::vector<Future<void>> futures = offerOnAll(groups_, "a", data_);
  futures[5].cancel();
  EXPECT_EQ(test::failureOf(futures[5]).code(), Code::kCancelled);
  data_[5] = {};
  goesOn.open();
  ended.wait();
  for (const Status& why : test::failures(futures)) {
    EXPECT_EQ(why.code(), Code::kCancelled) << why.toString();
    EXPECT_TRUE(contains(why.message(), "worker 'w5' (rank 5) cancelled "));
  }
  data_[5].resize(100'000);
  expectSums();
}

// A member that has given a tensor up before its batch begins takes no part in it.
TEST_F(ManyPushPullTest, AMemberThatCancelsAtAnyMomentLeavesAGroupThatGoesOn) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::vector<float>> small(kMembers, std::vector<float>(10, 1)), other = small;
    std::vector<Future<void>> futures = offerOnAll(groups_, "small", small),
                              others = offerOnAll(groups_, "other", other);
    const size_t victim = random_() % kMembers;
    try {
      futures[victim].wait(std::chrono::microseconds(random_() % 1500));
    } catch (const TimeoutError&) {}
    futures[victim].cancel();
    futures.insert(futures.end(), others.begin(), others.end());
    for (size_t i = 0; i < futures.size(); ++i) {
      const Status why = test::failureOf(futures[i]);
      ASSERT_TRUE(why.ok() || why.code() == Code::kCancelled) << why.toString();
      const std::vector<float>& mine = i < kMembers ? small[i] : other[i - kMembers];
      if (!why.ok()) continue;
      ASSERT_EQ(mine, std::vector<float>(10, kMembers));
    }
  }
  expectSums();
}

// A group without a name is called by its members, some of them.
TEST(PushPullText, OfALateTensorIsShortInALargeGroup) {
  if (!test::mayHaveDescriptors(10'000)) GTEST_SKIP() << "64 members have 8,192 sockets";
  EXPECT_TRUE(withLongerLimits(milliseconds(500), [](Duration limit) {
    GroupJob job(64);
    std::vector<ProcessGroup> groups = job.makeAll();
    std::vector<std::vector<float>> data(4, std::vector<float>(10));
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank < 4; ++rank)
      futures.push_back(pushPull(groups[rank].withTimeout(limit), "a", std::span(data[rank])));
    auto outcome = ::testing::AssertionSuccess();
    for (const Status& why : test::failures(futures)) {
      EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
      EXPECT_TRUE(contains(why.message(), "pushPull of 'a' in the group of w0, w1, w2, w3 and 60 more after "));
      EXPECT_LT(why.message().size(), 700U);
      // The offers must reach rank 0 within the limit.
      for (const char* part :
           {"it has not been offered by worker 'w4' (rank 4), ", "worker 'w11' (rank 11) and 52 more"})
        if (!contains(why.message(), part)) outcome = ::testing::AssertionFailure() << why.message();
    }
    return outcome;
  }));
}

}  // namespace
}  // namespace treadle::push_pull_many_test
