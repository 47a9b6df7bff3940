// The count of unanswered bytes: never over its limit, served in the order of waiting, and nothing of it is lost.
#include "treadle/core/rpc/credits.h"

#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/seeds.h"
#include "treadle/core/io/serving.h"

namespace treadle::rpc::credits_test {
namespace {

using test::contains;
using test::eventually;

using test::patience;

// A thread that takes; its order among those who got theirs.
class Taker {
 public:
  Taker(Credits& credits, size_t bytes, std::atomic<int>& order, TimePoint deadline = patience())
      : thread_([&credits, bytes, &order, deadline, this] {
          status_ = credits.take(bytes, deadline);
          if (status_.ok()) place_ = ++order;
          done_.open();
        }) {}
  ~Taker() { thread_.join(); }
  Status status() { return done_.wait(), status_; }
  int place() { return done_.wait(), place_.load(); }
  bool waits() const { return !done_.isOpen(); }

 private:
  Status status_;
  std::atomic<int> place_ = 0;
  test::Gate done_;
  std::thread thread_;
};

// Nobody overtakes those who wait, so what would fit does not any more once somebody waits.
bool somebodyWaits(Credits& credits) {
  if (!credits.tryTake(1)) return true;
  credits.giveBack(1);
  return false;
}

TEST(Credits, countARequestByItsBytesAndAFixedAmount) {
  Credits credits(1000);
  Buffer buffer;
  buffer.sizeBytes = 200;
  EXPECT_EQ(256U, credits.costOf(0, {}));
  EXPECT_EQ(256U + 100 + 256 + 200, credits.costOf(100, {&buffer, 1}));
  EXPECT_EQ(256U + 100 + 512, credits.costOf(100, {}, 1));
  EXPECT_EQ(875U, credits.costOf(1'000'000, {}));
  EXPECT_EQ(1U, Credits(1).costOf(100, {}));
}

TEST(Credits, areTakenUpToTheLimitAndNoFurther) {
  Credits credits(100);
  EXPECT_TRUE(credits.tryTake(60));
  EXPECT_FALSE(credits.tryTake(41));
  EXPECT_TRUE(credits.tryTake(40));
  EXPECT_FALSE(credits.tryTake(1));
  EXPECT_EQ(100U, credits.takenBytes());
  credits.giveBack(40);
  EXPECT_TRUE(credits.tryTake(1));
}

TEST(Credits, letARequestOfAnySizeGoBesideSmallOnes) {
  Credits credits(8000);
  ASSERT_TRUE(credits.tryTake(credits.costOf(700, {})));
  EXPECT_TRUE(credits.tryTake(credits.costOf(size_t{1} << 40, {})));
  EXPECT_FALSE(credits.tryTake(credits.costOf(0, {})));
}

TEST(Credits, saysAtTheDeadlineHowMuchIsUnanswered) {
  Credits credits(100);
  ASSERT_TRUE(credits.tryTake(90));
  Status why = credits.take(20, Clock::now());
  EXPECT_EQ(Code::kResourceExhausted, why.code());
  for (const char* part :
       {"of 20 bytes", "of 90 bytes", "at most 100", "JoinOptions::maxInFlightBytes", "wait for answers"})
    EXPECT_TRUE(contains(why.message(), part));
  EXPECT_EQ(90U, credits.takenBytes());
  EXPECT_TRUE(credits.tryTake(10));  // nobody is taken to wait any more
}

// A call without a time limit, from a thread that others wait for.
TEST(Credits, areNotWaitedForByAThreadThatPollsOrReads) {
  Credits credits(100);
  ASSERT_TRUE(credits.tryTake(100));
  const io::Serving reads;
  EXPECT_EQ(Code::kResourceExhausted, credits.take(1, deadlineAfter(test::kHangs)).code());
  credits.giveBack(100);
  EXPECT_TRUE(credits.take(1, kNever).ok());
}

TEST(Credits, areGivenInTheOrderOfWaiting) {
  Credits credits(100);
  std::atomic<int> order = 0;
  ASSERT_TRUE(credits.tryTake(60));
  Taker large(credits, 80, order);
  EXPECT_TRUE(eventually([&] { return somebodyWaits(credits); }));
  Taker small(credits, 30, order);  // there is room for it, but it came later
  credits.giveBack(30);
  EXPECT_TRUE(large.waits());
  EXPECT_TRUE(small.waits());
  EXPECT_FALSE(credits.tryTake(1));
  credits.giveBack(30);
  EXPECT_EQ(1, large.place());
  EXPECT_TRUE(small.waits());
  credits.giveBack(80);
  EXPECT_EQ(2, small.place());
  credits.giveBack(30);
  EXPECT_EQ(0U, credits.takenBytes());
}

TEST(Credits, ofOneThatGivesUpGoToTheNext) {
  Credits credits(100);
  std::atomic<int> order = 0;
  ASSERT_TRUE(credits.tryTake(60));
  Taker large(credits, 80, order, Clock::now() + std::chrono::seconds(1));
  // The large taker may have given up already on a busy machine.
  EXPECT_TRUE(eventually([&] { return somebodyWaits(credits) || !large.waits(); }));
  Taker small(credits, 30, order);
  EXPECT_EQ(Code::kResourceExhausted, large.status().code());
  EXPECT_EQ(1, small.place());
}

TEST(Credits, failAllWhoWaitWhenTheyAreClosed) {
  Credits credits(100);
  std::atomic<int> order = 0;
  ASSERT_TRUE(credits.tryTake(100));
  Taker one(credits, 80, order), two(credits, 1, order);
  credits.close(peerLost("b", "b is lost"));
  EXPECT_EQ("b", one.status().worker());
  EXPECT_EQ(Code::kPeerLost, two.status().code());
  EXPECT_EQ(Code::kPeerLost, credits.take(1, patience()).code());  // and all who would wait
  credits.giveBack(100);
  EXPECT_EQ(0U, credits.takenBytes());
}

// Threads that take and give back at random, with deadlines that pass: the limit holds at any time, and nobody is
// forgotten.
TEST(Credits, ofManyThreadsNeverExceedTheLimitAndAllComeBack) {
  test::forSeeds(20, [](test::Random& random) {
    const size_t limit = 1 + test::pick(random, 2000);
    Credits credits(limit);
    std::atomic<size_t> held = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, seed = random()] {
        test::Random own(seed);
        for (int i = 0; i < 300; ++i) {
          const size_t bytes = credits.costOf(test::pick(own, 1000), {});
          const bool hasty = test::pick(own, 4) == 0;
          Status taken = credits.take(bytes, hasty ? Clock::now() : patience());
          if (!taken.ok()) {
            EXPECT_TRUE(hasty) << taken.message();
            continue;
          }
          EXPECT_LE(held += bytes, limit);
          if (test::pick(own, 2) == 0) std::this_thread::yield();
          held -= bytes;
          credits.giveBack(bytes);
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(0U, credits.takenBytes());
    EXPECT_TRUE(credits.tryTake(limit));
  });
}

}  // namespace
}  // namespace treadle::rpc::credits_test
