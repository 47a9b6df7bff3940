#include "treadle/core/io/task.h"

#include <thread>

#include "tests/core/io/pool.h"
#include "tests/support/expect_error.h"
#include "tests/support/gate.h"

namespace treadle::task_test {
namespace {

using namespace std::chrono_literals;
using test::contains;
using test::Gate;
using test::messageOf;

// What runs tasks: a pool, and whether the objects of a coroutine are gone.
class Tasks : public ::testing::Test {
 protected:
  template <class T>
  io::ReadyTask<T> begin(Task<T> task, std::shared_ptr<void> keep = {}) {
    io::ContinueOn pool(pool_.executor.get());
    auto post = [pool](UniqueFunction<void()> stretch) { pool.post(std::move(stretch)); };
    auto ready = io::makeReady(std::move(task), pool, post, std::move(keep));
    ready.run->begin();
    return ready;
  }
  template <class T>
  Future<T> run(Task<T> task) {
    return begin(std::move(task)).future;
  }

  test::Pool pool_;
};

Task<int> ready(int value) { co_return value; }
Task<int> twice(Future<int> number) { co_return 2 * co_await number; }
Task<> store(Future<int> number, int& into) { into = co_await number; }
Task<std::string> fails() {
  throw std::out_of_range("row 12 of 10");
  co_return "never";
}
Task<std::unique_ptr<int>> boxed(Future<std::unique_ptr<int>> box) { co_return co_await std::move(box); }

TEST_F(Tasks, giveWhatTheyReturn) {
  EXPECT_EQ(5, run(ready(5)).wait());
  Promise<int> promise;
  Future<int> doubled = run(twice(promise.future()));
  EXPECT_FALSE(doubled.ready());
  promise.set(21);
  EXPECT_EQ(42, doubled.wait());
  EXPECT_EQ(42, run(twice(promise.future())).wait()) << "of what is ready already";
  int stored = 0;
  run(store(promise.future(), stored)).wait();
  EXPECT_EQ(21, stored);
}

TEST_F(Tasks, takeWhatCanBeHeldOnceOnly) {
  Promise<std::unique_ptr<int>> promise;
  Future<std::unique_ptr<int>> box = run(boxed(promise.future()));
  promise.set(std::make_unique<int>(3));
  EXPECT_EQ(3, *box.wait());
}

TEST_F(Tasks, throwWhatTheyAwaitFailedWith) {
  EXPECT_TRUE(contains(messageOf<RemoteError>([&] { run(fails()).wait(); }), "row 12 of 10"));
  Promise<int> promise;
  Future<int> doubled = run(twice(promise.future()));
  promise.fail(peerLost("ps", "it is gone"));
  EXPECT_TRUE(contains(messageOf<PeerLostError>([&] { doubled.wait(); }), "it is gone"));
  auto catches = [](Future<int> number) -> Task<int> {
    try {
      co_return co_await number;
    } catch (const PeerLostError&) {
      co_return -1;
    }
  };
  EXPECT_EQ(-1, run(catches(promise.future())).wait());
}

Task<int> depth(int left) {
  if (left == 0) co_return 0;
  co_return 1 + co_await depth(left - 1);
}
Task<int> failsDeep(int left) {
  if (left == 0) throw std::runtime_error("at the bottom");
  co_return co_await failsDeep(left - 1);
}

TEST_F(Tasks, awaitEachOther) {
  EXPECT_EQ(100, run(depth(100)).wait());
  EXPECT_TRUE(contains(messageOf<RemoteError>([&] { run(failsDeep(50)).wait(); }), "at the bottom"));
}

Task<int> countReady(int times) {
  Promise<int> one;
  one.set(1);
  int sum = 0;
  for (int i = 0; i < times; ++i) sum += co_await one.future();
  co_return sum;
}

TEST_F(Tasks, awaitWhatIsReadyWithoutUsingUpTheStack) { EXPECT_EQ(200'000, run(countReady(200'000)).wait()); }

Task<int> sumOfChildren(int times) {
  int sum = 0;
  for (int i = 0; i < times; ++i) sum += co_await ready(1);
  co_return sum;
}

TEST_F(Tasks, awaitManyOthersWithoutUsingUpTheStack) { EXPECT_EQ(200'000, run(sumOfChildren(200'000)).wait()); }

TEST_F(Tasks, beginOthersWhileTheyRun) {
  auto outer = [&]() -> Task<int> { co_return co_await run(sumOfChildren(3)) + co_await ready(1); };
  EXPECT_EQ(4, run(outer()).wait());
}

TEST_F(Tasks, holdNoThreadWhileTheyAwait) {
  Promise<int> promise;
  std::vector<Future<int>> many;
  for (int i = 0; i < 5000; ++i) many.push_back(run(twice(promise.future())));
  promise.set(2);
  for (Future<int>& one : many) EXPECT_EQ(4, one.wait());
}

// Sets its flag when it is destroyed.
struct Local {
  explicit Local(Gate& gone) : gone(gone) {}
  ~Local() { gone.open(); }
  Gate& gone;
};

Task<int> withLocal(Gate& gone, Gate& caught, Future<int> number, Future<int> second) {
  Local local(gone);
  int sum = 0;
  try {
    sum = co_await number;
  } catch (const CancelledError&) {
    caught.open();
    sum = -1;
  }
  co_return sum + co_await second;
}

// A future that can be cancelled, as those of calls can.
Future<int> cancellable(Promise<int>& promise) {
  Future<int> future = promise.future();
  sharedStateOf(future)->cancelHook = [] {};
  return future;
}

TEST_F(Tasks, thatAreCancelledCancelWhatTheyAwait) {
  Gate gone, caught;
  Promise<int> promise, second;
  second.set(1);
  auto started = begin(withLocal(gone, caught, cancellable(promise), second.future()));
  started.run->cancel();
  messageOf<CancelledError>([&] { promise.future().wait(); });
  caught.wait();
  messageOf<CancelledError>([&] { started.future.wait(); });  // the second await throws too
  started = {};
  gone.wait();
}

TEST_F(Tasks, thatAreCancelledFirstCancelWhatTheyComeToAwait) {
  Gate go;
  Promise<int> promise;
  auto later = [&](Future<int> number) -> Task<int> {
    go.wait();
    co_return co_await number;
  };
  auto task = later(cancellable(promise));
  io::ContinueOn pool(pool_.executor.get());
  auto ready = io::makeReady(std::move(task), pool, [pool](auto stretch) { pool.post(std::move(stretch)); });
  pool.post([run = ready.run] { run->begin(); });
  ready.run->cancel();
  go.open();
  messageOf<CancelledError>([&] { ready.future.wait(); });
  messageOf<CancelledError>([&] { promise.future().wait(); });
}

TEST_F(Tasks, doNotCancelAPromiseThatOthersAwaitToo) {
  Promise<int> promise;
  Future<int> one = run(twice(promise.future())), other = run(twice(promise.future()));
  one.cancel();
  messageOf<CancelledError>([&] { one.wait(); });
  EXPECT_FALSE(promise.future().ready());
  promise.set(4);
  EXPECT_EQ(8, other.wait());
}

TEST_F(Tasks, areCancelledThroughTheirFuture) {
  Gate gone, caught;
  Promise<int> promise, second;
  Future<int> future = run(withLocal(gone, caught, promise.future(), second.future()));
  future.cancel();
  messageOf<CancelledError>([&] { future.wait(); });
  caught.wait();
  gone.wait();
}

TEST_F(Tasks, areGoneWhenTheirFutureIsReady) {
  auto holds = [](std::shared_ptr<int> number) -> Task<int> { co_return *number; };
  auto number = std::make_shared<int>(3);
  Future<int> future = run(holds(number));
  EXPECT_EQ(3, future.wait());
  EXPECT_EQ(1, number.use_count());
}

TEST_F(Tasks, endWithTheirPool) {
  Gate gone, caught;
  Promise<int> second;
  {
    Promise<int> promise;
    Future<int> future = run(withLocal(gone, caught, promise.future(), second.future()));
    pool_.executor.reset();
    promise.set(1);
    messageOf<CancelledError>([&] { future.wait(); });
  }
  gone.wait();
  EXPECT_FALSE(caught.isOpen()) << "it went on without a pool";
}

TEST_F(Tasks, keepWhatTheirParametersReferTo) {
  auto number = std::make_shared<int>(7);
  std::weak_ptr<int> weak = number;
  auto readsLater = [](const int& value, Future<int> gate) -> Task<int> { co_return co_await gate + value; };
  Promise<int> promise;
  const int& value = *number;
  Future<int> sum = begin(readsLater(value, promise.future()), std::move(number)).future;
  EXPECT_FALSE(weak.expired());
  promise.set(1);
  EXPECT_EQ(8, sum.wait());
  EXPECT_TRUE(test::eventuallyReleased([&] { return weak.expired(); }));
}

Task<int> hops(Future<int> number, int times) {
  int sum = 0;
  for (int i = 0; i < times; ++i) sum += co_await number.then([](int one) { return one; });
  co_return sum;
}

TEST_F(Tasks, goOnOnWhicheverThreadIsFree) {
  Promise<int> promise{io::ContinueOn(pool_.executor.get())};
  std::vector<Future<int>> running;
  for (int i = 0; i < 8; ++i) running.push_back(run(hops(promise.future(), 500)));
  promise.set(1);
  for (Future<int>& one : running) EXPECT_EQ(500, one.wait());
}

TEST_F(Tasks, mayBeCancelledAtAnyMoment) {
  for (int i = 0; i < 300; ++i) {
    Promise<int> promise{io::ContinueOn(pool_.executor.get())};
    auto started = begin(hops(promise.future(), 20));
    std::thread canceller([&] { started.run->cancel(); });
    promise.set(1);
    canceller.join();
    try {
      EXPECT_EQ(20, started.future.wait());
    } catch (const CancelledError&) {  // NOLINT: it was quicker
    }
  }
}

}  // namespace
}  // namespace treadle::task_test
