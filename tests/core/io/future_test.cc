#include "treadle/core/io/future.h"

#include <thread>

#include "tests/core/io/pool.h"
#include "tests/support/expect_error.h"
#include "tests/support/gate.h"

namespace treadle::future_test {
namespace {

using namespace std::chrono_literals;
using test::Gate;
using test::messageOf;
using test::Pool;

TEST(Future, givesTheValueToAllWhoWait) {
  Promise<std::string> promise;
  Future<std::string> future = promise.future(), copy = future;
  EXPECT_FALSE(future.ready());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { EXPECT_EQ("value", future.wait()); });
  promise.set("value");
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(copy.ready());
  EXPECT_EQ("value", copy.wait());
  EXPECT_EQ("value", copy.wait());  // not taken away by the first
}

TEST(Future, givesTheFailureAsItsException) {
  Promise<int> promise;
  Future<int> future = promise.future();
  promise.fail(peerLost("ps", "worker 'ps' is gone"));
  try {
    future.wait();
    ADD_FAILURE() << "no exception";
  } catch (const PeerLostError& error) {
    EXPECT_EQ("ps", error.worker());
  }
}

TEST(Future, theFirstCompletionCounts) {
  Promise<int> promise;
  promise.set(1);
  promise.set(2);
  promise.fail(internalError("late"));
  promise.future().cancel();
  EXPECT_EQ(1, promise.future().wait());
}

TEST(Future, ofNothingHasNoValueButEndsAllTheSame) {
  Promise<void> promise;
  bool continued = false;
  Future<void> after = promise.future().then([&] { continued = true; });
  promise.set();
  promise.future().wait();
  after.wait();
  EXPECT_TRUE(continued);
}

TEST(Future, movesOutAValueThatCannotBeCopied) {
  Promise<std::unique_ptr<int>> promise;
  Future<int> seen = promise.future().then([](std::unique_ptr<int>& value) { return *value; });
  promise.set(std::make_unique<int>(5));
  EXPECT_EQ(5, seen.wait());
  EXPECT_EQ(5, *promise.future().wait());
}

TEST(Future, waitWithALimitEndsAtIt) {
  Promise<int> promise;
  messageOf<TimeoutError>([&] { promise.future().wait(10ms); });
  promise.set(3);
  EXPECT_EQ(3, promise.future().wait(0ms));
}

TEST(Future, isCancelledOnce) {
  Promise<int> promise;
  Future<int> future = promise.future();
  int told = 0;
  sharedStateOf(future)->cancelHook = [&] { ++told; };
  future.cancel();
  future.cancel();
  EXPECT_EQ(1, told);
  messageOf<CancelledError>([&] { future.wait(); });
}

// The memory of a collective is its caller's again as soon as the future is ready.
TEST(Future, isReadyOnlyWhenWhatItStandsForHasBeenCancelled) {
  Promise<int> promise;
  Future<int> future = promise.future();
  Future<int> next = future.then([](int value) { return value; });
  Future<std::vector<int>> all = whenAll(std::vector{next});
  bool hooked = false;
  sharedStateOf(future)->cancelHook = [&] {
    hooked = true;
    EXPECT_FALSE(future.ready());
    EXPECT_FALSE(next.ready());
    EXPECT_FALSE(all.ready());
  };
  all.cancel();
  EXPECT_TRUE(hooked);
  EXPECT_TRUE(future.ready() && next.ready() && all.ready());
}

TEST(Future, thatEndsByItselfIsWaitedForByWhatWasMadeOfIt) {
  Promise<int> promise, other;
  Future<int> future = promise.future();
  Future<int> next = future.then([](int value) { return value; });
  Future<std::vector<int>> all = whenAll(std::vector{other.future(), next});
  bool hooked = false;
  sharedStateOf(future)->endsByItself = true;
  sharedStateOf(future)->cancelHook = [&] { hooked = true; };
  all.cancel();
  EXPECT_TRUE(hooked);
  for (bool ready : {all.ready(), other.future().ready(), next.ready(), future.ready()}) EXPECT_FALSE(ready);
  promise.fail(internalError("its memory is free"));
  for (bool ready : {all.ready(), other.future().ready(), next.ready()}) EXPECT_TRUE(ready);
  messageOf<CancelledError>([&] { all.wait(); });
  messageOf<CancelledError>([&] { other.future().wait(); });
}

TEST(Future, endsForAValueThatIsNotMovedInTheEnd) {
  struct MovesTwice {
    explicit MovesTwice(int times) : left(times) {}
    MovesTwice(MovesTwice&& other) : left(other.left - 1) {
      if (left < 0) throw std::runtime_error("enough");
    }
    int left;
  };
  bool failed = false;
  for (int times = 1; times < 8; ++times) {
    std::optional<Promise<MovesTwice>> promise(std::in_place);
    Future<MovesTwice> future = promise->future();
    try {
      promise->set(MovesTwice(times));
    } catch (const std::runtime_error&) {  // on its way in: the caller knows, and nobody else
      EXPECT_FALSE(future.ready());
      promise.reset();
      messageOf<CancelledError>([&] { future.wait(test::kHangs); });
      continue;
    }
    ASSERT_TRUE(future.ready()) << times;
    if (sharedStateOf(future)->result().ok()) continue;
    failed = true;
    EXPECT_TRUE(test::contains(sharedStateOf(future)->result().status().message(), "enough"));
  }
  EXPECT_TRUE(failed) << "the last move was none that throws";
}

// The list of what is to be cancelled is as long as there are futures, not ways to them.
TEST(Future, cancelledByManyWaysIsCancelledOnce) {
  Promise<void> promise;
  Future<void> all = promise.future();
  for (int i = 0; i < 60; ++i) all = whenAll(std::vector{all, all});
  all.cancel();
  messageOf<CancelledError>([&] { promise.future().wait(); });
}

TEST(Future, saysThatItWasCancelledAlsoWhenItsPromiseGoesForIt) {
  auto promise = std::make_shared<Promise<int>>();
  Future<int> future = promise->future();
  sharedStateOf(future)->cancelHook = [&] { promise.reset(); };
  future.cancel();
  EXPECT_EQ("the call was cancelled", messageOf<CancelledError>([&] { future.wait(); }));
}

TEST(WhenAll, failsWithWhatTheCopyOfAValueThrows) {
  struct CopiesNever {
    CopiesNever() = default;
    CopiesNever(const CopiesNever&) { throw std::runtime_error("one of a kind"); }
    CopiesNever(CopiesNever&&) noexcept = default;
  };
  Promise<CopiesNever> promise;
  auto all = whenAll(std::vector{promise.future()});
  promise.set(CopiesNever());
  EXPECT_TRUE(test::contains(messageOf<RemoteError>([&] { all.wait(test::kHangs); }), "one of a kind"));
}

// As that of a `then` which finds no memory for its task.
TEST(Future, runsAllThatWaitsForItThoughOneThrows) {
  Promise<void> promise;
  int run = 0;
  for (int i = 0; i < 3; ++i) {
    sharedStateOf(promise.future())->onReady([&run, i] {
      ++run;
      if (i < 2) raise(internalError("continuation " + std::to_string(i)));
    });
  }
  const Future<void> all = whenAll(std::vector<Future<void>>{promise.future()});
  EXPECT_EQ("continuation 0", messageOf<Error>([&] { promise.set(); }));
  EXPECT_EQ(3, run);
  EXPECT_TRUE(all.ready());
}

TEST(Future, endsWhenItsPromiseIsDropped) {
  Future<int> future;
  messageOf<StateError>([&] { future.wait(); });  // holds nothing yet
  EXPECT_FALSE(future.valid());
  {
    Promise<int> promise;
    future = promise.future();
    Promise<int> moved = std::move(promise);
    EXPECT_FALSE(future.ready());
  }
  messageOf<CancelledError>([&] { future.wait(); });
}

// The thread that sets the value is still in `set`. A sanitizer would see it use memory that is free.
TEST(Future, onceReadyMayGoWithItsPromise) {
  for (int round = 0; round < 500; ++round) {
    auto promise = std::make_unique<Promise<int>>();
    std::thread sets([&own = *promise] { own.set(1); });
    while (!promise->future().ready()) std::this_thread::yield();
    promise.reset();
    sets.join();
  }
}

TEST(FutureThen, chainsValuesAndPassesFailuresThrough) {
  Promise<int> promise;
  int calls = 0;
  auto count = [&](int value) { return ++calls, value; };
  Future<std::string> text = promise.future().then([](int value) { return value * 2; }).then(count).then([](int v) {
    return std::to_string(v);
  });
  promise.set(21);
  EXPECT_EQ("42", text.wait());
  EXPECT_EQ(1, calls);
  Promise<int> bad;
  Future<int> after = bad.future().then(count);
  bad.fail(notFound("no such thing"));
  EXPECT_EQ("no such thing", messageOf<NotFoundError>([&] { after.wait(); }));
  EXPECT_EQ(1, calls);
}

TEST(FutureThen, keepsWhatTheContinuationThrows) {
  Promise<void> promise;
  Future<int> typed = promise.future().then([]() -> int { throw std::out_of_range("seven"); });
  Future<int> own = promise.future().then([]() -> int { raise(invalidArgument("eight")); });
  promise.set();
  try {
    typed.wait();
    ADD_FAILURE() << "no exception";
  } catch (const RemoteError& error) {
    EXPECT_EQ("std::out_of_range", error.type());
  }
  EXPECT_EQ("eight", messageOf<ArgumentError>([&] { own.wait(); }));
}

TEST(FutureThen, runsOnThePoolThatThePromiseNames) {
  Pool pool;
  Promise<int> promise(pool.executor.get());
  Future<bool> onPool = promise.future().then([](int) { return io::Executor::onPoolThread(); });
  promise.set(1);
  EXPECT_TRUE(onPool.wait());
  EXPECT_TRUE(promise.future().then([](int) { return io::Executor::onPoolThread(); }).wait());  // ready already
}

// Nothing may hang because the pool that was to run it is gone.
TEST(FutureThen, endsWhenThePoolHasStopped) {
  Pool pool;
  Promise<int> promise(pool.executor.get());
  Future<int> before = promise.future().then([](int value) { return value; });
  pool.executor->stop();
  promise.set(1);
  messageOf<CancelledError>([&] { before.wait(); });
  Future<int> after = promise.future().then([](int value) { return value; });
  messageOf<CancelledError>([&] { after.wait(); });
}

TEST(FutureThen, endsWhenThePoolIsGone) {
  auto pool = std::make_unique<Pool>();
  Promise<int> promise(pool->executor.get());
  pool.reset();
  promise.set(1);
  Future<int> after = promise.future().then([](int value) { return value; });
  messageOf<CancelledError>([&] { after.wait(); });
}

// Whoever builds a chain in a loop is not to run out of stack when it ends, whatever way it does.
class LongChain : public ::testing::Test {
 protected:
  static constexpr int kLength = 200'000;

  void make(io::ContinueOn executor) {
    promise_.emplace(std::move(executor));
    first_ = last_ = promise_->future();
    for (int i = 0; i < kLength; ++i) last_ = last_.then([](int value) { return value + 1; });
  }

  std::optional<Promise<int>> promise_;
  Future<int> first_, last_;
};

TEST_F(LongChain, isSetAndContinued) {
  make({});
  promise_->set(0);
  EXPECT_EQ(kLength, last_.wait());
}

TEST_F(LongChain, fails) {
  make({});
  promise_->fail(notFound("nothing"));
  messageOf<NotFoundError>([&] { last_.wait(); });
}

TEST_F(LongChain, isCancelledFromItsEnd) {
  make({});
  last_.cancel();
  messageOf<CancelledError>([&] { first_.wait(); });
}

TEST_F(LongChain, endsWhenThePoolIsGone) {
  auto pool = std::make_unique<Pool>();
  make(pool->executor.get());
  pool.reset();
  promise_->set(0);
  messageOf<CancelledError>([&] { last_.wait(); });
}

TEST_F(LongChain, endsWhenThePoolHasStopped) {
  Pool pool;
  make(pool.executor.get());
  pool.executor->stop();
  promise_->set(0);
  messageOf<CancelledError>([&] { last_.wait(); });
}

TEST_F(LongChain, goesWithItsPromise) {
  make({});
  promise_.reset();
  messageOf<CancelledError>([&] { last_.wait(); });
}

// All threads of a small pool may wait for futures of one another.
TEST(FutureWait, insideATaskLetsOthersRun) {
  constexpr int kTasks = 32;
  std::vector<Promise<int>> promises;  // they outlive the tasks that set them
  Pool pool;
  for (int i = 0; i <= kTasks; ++i) promises.emplace_back(pool.executor.get());
  for (int i = 0; i < kTasks; ++i)
    pool.executor->post([&, i] {
      auto at = static_cast<size_t>(i);
      promises[at].set(promises[at + 1].future().wait() + 1);
    });
  promises.back().set(0);
  EXPECT_EQ(kTasks, promises.front().future().wait());
}

TEST(WhenAll, givesAllValuesInOrder) {
  std::vector<Promise<int>> promises(3);
  std::vector<Future<int>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  Future<std::vector<int>> all = whenAll(futures);
  promises[2].set(2);
  promises[0].set(0);
  EXPECT_FALSE(all.ready());
  promises[1].set(1);
  EXPECT_EQ((std::vector<int>{0, 1, 2}), all.wait());
}

TEST(WhenAll, failsWithTheFirstFailureOnceAllAreThere) {
  std::vector<Promise<void>> promises(3);
  std::vector<Future<void>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  Future<void> all = whenAll(futures);
  promises[2].fail(internalError("third"));
  promises[1].fail(notFound("second"));
  EXPECT_FALSE(all.ready());
  promises[0].set();
  EXPECT_EQ("second", messageOf<NotFoundError>([&] { all.wait(); }));
}

TEST(WhenAll, ofNothingIsThereAtOnce) {
  EXPECT_TRUE(whenAll(std::vector<Future<int>>()).wait().empty());
  whenAll(std::vector<Future<void>>()).wait();
}

TEST(WhenAll, movesValuesThatCannotBeCopied) {
  Promise<std::unique_ptr<int>> promise;
  auto all = whenAll(std::vector<Future<std::unique_ptr<int>>>{promise.future()});
  promise.set(std::make_unique<int>(9));
  EXPECT_EQ(9, *all.wait().at(0));
}

TEST(Future, cancellingWhatWasMadeOfOthersCancelsThem) {
  Promise<int> one, other;
  Future<int> next = one.future().then([](int value) { return value + 1; });
  next.cancel();
  messageOf<CancelledError>([&] { one.future().wait(); });
  Promise<int> third;
  Future<std::vector<int>> all = whenAll(std::vector{other.future(), third.future()});
  all.cancel();
  messageOf<CancelledError>([&] { all.wait(); });
  messageOf<CancelledError>([&] { other.future().wait(); });
  messageOf<CancelledError>([&] { third.future().wait(); });
}

TEST(WhenAny, isReadyWithTheFirst) {
  std::vector<Promise<int>> promises(3);
  std::vector<Future<int>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  Future<size_t> any = whenAny(futures);
  EXPECT_FALSE(any.ready());
  messageOf<TimeoutError>([&] { waitAny(futures, 1ms); });
  promises[2].fail(notFound("third"));
  EXPECT_EQ(2U, any.wait());
  promises[1].set(1);
  EXPECT_EQ(2U, any.wait());
  EXPECT_EQ(1U, waitAny(futures)) << "of several, the first in order";
  EXPECT_FALSE(futures[0].ready());
}

TEST(WhenAny, leavesNothingBehindAtThoseThatTakeLong) {
  Promise<int> slow;
  auto held = std::make_shared<int>(1);
  for (int i = 0; i < 100; ++i) {
    Promise<int> fast;
    Future<size_t> any = whenAny(std::vector{slow.future(), fast.future()});
    sharedStateOf(any)->onReady([held] {});
    fast.set(1);
    EXPECT_EQ(1U, any.wait());
  }
  EXPECT_EQ(1, held.use_count());
}

TEST(WhenAny, ofNothingIsRefused) {
  messageOf<ArgumentError>([&] { (void)whenAny(std::vector<Future<int>>()); });
  messageOf<StateError>([&] { (void)whenAny(std::vector<Future<int>>(2)); });
}

}  // namespace
}  // namespace treadle::future_test
