// Calls that take too long or are given up: the caller is told at once which one it was, the callee hears of
// it, and what the handler does afterwards harms nobody.

#include <gtest/gtest.h>

#include <future>
#include <list>

#include "tests/core/worker/here.h"

namespace treadle::time_limits_test {
namespace {

using test::contains;
using test::Here;
using test::messageOf;
using test::statusOf;
using test::WorkerJob;
using namespace std::chrono_literals;

constexpr Duration kShort = 100ms;
constexpr Duration kTimeToBegin = 2s;  // the first of several limits, for calls that must begin before their limit

int add(int a, int b) { return a + b; }

// A handler that outlives its caller's patience, and what it saw.
struct Late {
  test::Gate begun, go;
  test::Counter done;
  std::atomic<bool> cancelled = false;
};
std::string answerLate(CallContext& call, Here<Late> late) {
  late->begun.open();
  blocking([&] { late->go.wait(); });
  late->cancelled = call.cancelled();
  late->done.add();
  return std::string(100'000, 'x');
}
// Never answers, and keeps no thread for it, until the test sets the promise.
struct Kept {
  test::Gate begun;
  Promise<int> promise;
};
Future<int> answerByPromise(Here<Kept> kept) {
  kept->begun.open();
  return kept->promise.future();
}
// Calls on with a limit of its own, which is below what its caller grants.
std::string callOn(CallContext& call, Here<Late> late) {
  return call.worker().with({.timeout = kShort}).call<&answerLate>("c", late);
}
// Works, without ever waiting, until its caller has given up.
struct Busy {
  test::Gate begun, sawIt;
};
void workUntilCancelled(CallContext& call, Here<Busy> busy) {
  busy->begun.open();
  const TimePoint end = test::patience();
  while (!call.cancelled() && Clock::now() < end) std::this_thread::yield();
  if (call.cancelled()) busy->sawIt.open();
}
void note(Here<test::Counter> ran) { ran->add(); }
int readHere(const RRef<int>& ref) { return ref.toHere(test::kHangs); }
struct Slow {
  explicit Slow(uint64_t late) {
    auto* state = reinterpret_cast<Late*>(late);
    state->begun.open();
    blocking([&] { state->go.wait(); });
    state->done.add();
  }
  int get() { return 5; }
};

Functions functions() {
  Functions all;
  all.add<&add>("add").add<&answerLate>("answerLate").add<&answerByPromise>("answerByPromise").add<&callOn>("callOn");
  all.add<&workUntilCancelled>("workUntilCancelled").add<&note>("note").add<&readHere>("readHere");
  all.addType<Slow, uint64_t>("Slow").add<&Slow::get>("Slow.get");
  return all;
}

class TimeLimits : public ::testing::Test {
 protected:
  Late late;  // these outlive the job
  Kept kept;
  std::list<Busy> busy;
  WorkerJob job{{"a", "b", "c"}, functions()};
  Worker& a = job[0];
};

TEST_F(TimeLimits, endACallWithAnErrorThatNamesFunctionAndWorker) {
  TimePoint begin = Clock::now();
  Status why = statusOf<TimeoutError>([&] { a.with({.timeout = kShort}).call<&answerLate>("b", late); });
  Duration took = Clock::now() - begin;
  EXPECT_GE(took, kShort);
  EXPECT_EQ(Code::kDeadlineExceeded, why.code());
  EXPECT_EQ("b", why.worker());
  EXPECT_EQ("answerLate", why.function());
  EXPECT_TRUE(contains(why.message(), "'answerLate' on worker 'b' (rank 1)"));
  EXPECT_TRUE(contains(why.message(), "100 ms"));
  late.go.open();
}

TEST_F(TimeLimits, aHandlerThatIsAtWorkSeesThatItsCallerHasCancelled) {
  Busy& one = busy.emplace_back();
  Future<void> call = a.async<&workUntilCancelled>("b", one);
  one.begun.wait();
  call.cancel();
  one.sawIt.wait();
}

TEST_F(TimeLimits, aHandlerThatIsAtWorkSeesThatItsCallersTimeIsUp) {
  EXPECT_TRUE(test::withLongerLimits(500ms, [&](Duration limit) {
    Busy& one = busy.emplace_back();
    try {
      a.with({.timeout = limit}).call<&workUntilCancelled>("b", one);
    } catch (const TimeoutError&) {}  // or the handler has seen it first, and its answer comes before that
    return one.begun.isOpen();
  }));
  busy.back().sawIt.wait();
}

// With one handler at a time what is called behind one that works waits for its turn.
// b runs one handler at a time, and has one.
class QueuedWork : public ::testing::Test {
 protected:
  QueuedWork() { busy.begun.wait(); }

  Busy busy;  // these outlive the job
  test::Counter ran;
  WorkerJob job{{"a", "b", "c"}, functions(), [](JoinOptions& options) { options.maxConcurrentHandlers = 1; }};
  Worker& a = job[0];
  Future<void> working = a.async<&workUntilCancelled>("b", busy);
};

TEST_F(QueuedWork, isDroppedWhenItsTimeIsUp) {
  std::vector<Future<void>> queued;
  for (int i = 0; i < 100; ++i) queued.push_back(a.with({.timeout = kShort}).async<&note>("b", ran));
  for (Future<void>& one : queued) messageOf<TimeoutError>([&] { one.wait(); });
  working.cancel();
  EXPECT_EQ(3, a.call<&add>("b", 1, 2));  // behind all of them
  EXPECT_EQ(0, ran.count());
}

TEST_F(QueuedWork, isDroppedWhenItsCallerGivesUp) {
  std::vector<Future<void>> queued;
  for (int i = 0; i < 100; ++i) queued.push_back(a.async<&note>("b", ran));
  for (Future<void>& one : queued) one.cancel();
  working.cancel();
  EXPECT_EQ(3, a.call<&add>("b", 1, 2));
  EXPECT_EQ(0, ran.count());
}

// Who asked for the value got tired of waiting, and whoever it was passed on to did not.
TEST(QueuedWorkOfOthers, isDoneAllTheSame) {
  struct Fresh : QueuedWork {
    void TestBody() override {}
    // Returns false if the limit passed before b knew that c wants the result.
    bool isDone(Duration limit) {
      RRef<int> sum = a.with({.timeout = limit}).remote<&add>("b", 1, 2);
      Future<int> read = a.async<&readHere>("c", sum);
      auto known = [&] { return job[1].metrics().forksOfOwned >= 2; };
      auto timeIsUp = [&] { return a.metrics().callsPending < 3; };
      EXPECT_TRUE(test::eventually([&] { return known() || timeIsUp(); }));
      const bool inTime = known() && !timeIsUp();
      EXPECT_TRUE(test::eventually(timeIsUp));
      working.cancel();
      if (inTime) {
        EXPECT_EQ(3, read.wait());
      }
      return inTime;
    }
  };
  EXPECT_TRUE(test::withLongerLimits(2 * kTimeToBegin, [](Duration limit) { return Fresh().isDone(limit); }));
}

TEST_F(TimeLimits, endAsynchronousAndNamedCallsToo) {
  CallProxy impatient = a.with({.timeout = kShort});
  Future<std::string> future = impatient.async<&answerLate>("b", late);
  EXPECT_EQ("b", statusOf<TimeoutError>([&] { future.wait(); }).worker());
  messageOf<TimeoutError>([&] { impatient.callNamed<int>("b", "answerByPromise", Here(kept)); });
  kept.promise.set(1);
  messageOf<TimeoutError>([&] { impatient.async<&answerLate>("a", late).wait(); });
  late.go.open();
}

TEST_F(TimeLimits, ofTheWorkerHoldForCallsThatSayNothing) {
  WorkerJob hasty({"x", "y"}, functions(), [](JoinOptions& options) { options.rpcTimeout = kShort; });
  EXPECT_EQ("y", statusOf<TimeoutError>([&] { hasty[0].call<&answerLate>("y", late); }).worker());
  RRef<std::string> ref = hasty[0].remote<&answerLate>("y", late);
  EXPECT_EQ("y", statusOf<TimeoutError>([&] { ref.toHere(); }).worker());
  RRef<std::string> mine = hasty[0].with({.timeout = kNoTimeout}).remote<&answerLate>("x", late);
  Future<std::string> fetched = mine.toHereAsync();
  EXPECT_EQ("x", statusOf<TimeoutError>([&] { fetched.wait(); }).worker()) << "a value of one's own";
  late.go.open();
  EXPECT_EQ(100'000U, mine.toHere(test::kHangs).size());
}

TEST_F(TimeLimits, aHandlerThatOutlivesItsCallersPatienceDoesNoHarm) {
  EXPECT_TRUE(test::withLongerLimits(kTimeToBegin, [&](Duration limit) {
    messageOf<TimeoutError>([&] { a.with({.timeout = limit}).call<&answerLate>("b", late); });
    return late.begun.isOpen();
  }));
  a.call<&add>("b", 0, 0);  // b has read that the caller has given up: this came behind it
  late.go.open();
  late.done.waitFor(1);
  EXPECT_TRUE(late.cancelled);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(i, a.call<&add>("b", i, 0));  // no answer is taken for another
  EXPECT_EQ(0U, a.metrics().callsPending);
}

TEST_F(TimeLimits, aPromiseThatIsKeptTooLateDoesNoHarm) {
  EXPECT_TRUE(test::withLongerLimits(kTimeToBegin, [&](Duration limit) {
    messageOf<TimeoutError>([&] { a.with({.timeout = limit}).call<&answerByPromise>("b", kept); });
    return kept.begun.isOpen();
  }));
  kept.promise.set(1);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(i, a.call<&add>("b", i, 0));
}

TEST_F(TimeLimits, ofACallWithinACallNameTheInnerOne) {
  Status why = statusOf<TimeoutError>([&] { a.call<&callOn>("b", late); });
  EXPECT_EQ("c", why.worker());
  EXPECT_TRUE(contains(why.message(), "'callOn' on worker 'b'"));
  EXPECT_TRUE(contains(why.message(), "'answerLate' on worker 'c'"));
  late.go.open();
}

TEST_F(TimeLimits, waitingForAFutureHasOneOfItsOwnAndLeavesTheCallAlone) {
  Future<std::string> future = a.async<&answerLate>("b", late);
  messageOf<TimeoutError>([&] { future.wait(kShort); });
  EXPECT_FALSE(future.ready());
  late.go.open();
  EXPECT_EQ(100'000U, future.wait().size());
}

TEST_F(TimeLimits, waitingForAReferenceHasOneOfItsOwnAndLeavesTheValueAlone) {
  RRef<std::string> ref = a.remote<&answerLate>("b", late);
  EXPECT_EQ("b", statusOf<TimeoutError>([&] { ref.toHere(kShort); }).worker());
  EXPECT_EQ("b", statusOf<TimeoutError>([&] { ref.waitUntilReady(kShort); }).worker());
  late.go.open();
  EXPECT_EQ(100'000U, ref.toHere().size());
}

TEST_F(TimeLimits, holdForAReferenceToAValueOfOnesOwnToo) {
  RRef<std::string> mine = a.remote<&answerLate>("a", late);
  EXPECT_EQ("a", statusOf<TimeoutError>([&] { mine.toHere(kShort); }).worker());
  messageOf<TimeoutError>([&] { mine.waitUntilReady(kShort); });
  Future<std::string> future = mine.toHereAsync();  // waits for nothing
  EXPECT_FALSE(future.ready());
  late.go.open();
  EXPECT_EQ(100'000U, future.wait().size());
  EXPECT_EQ(100'000U, mine.localValue().size());
}

TEST_F(TimeLimits, anObjectThatIsMadeTooLateIsDestroyed) {
  EXPECT_TRUE(test::withLongerLimits(kTimeToBegin, [&](Duration limit) {
    RRef<Slow> slow = a.with({.timeout = limit}).make<Slow>("b", reinterpret_cast<uint64_t>(&late));
    // Until the reference knows that it is late, it is asked for at the worker that makes it.
    EXPECT_TRUE(test::eventually(
        [&] { return contains(messageOf<TimeoutError>([&] { slow.waitUntilReady(kShort); }), toText(limit)); }));
    EXPECT_EQ("b", statusOf<TimeoutError>([&] { slow.call<&Slow::get>(); }).worker());
    return late.begun.isOpen();
  }));
  late.go.open();
  late.done.waitFor(1);
  EXPECT_TRUE(test::eventuallyReleased([&] { return job[1].metrics().valuesOwned == 0; }));
}

TEST_F(TimeLimits, aCancelledCallEndsAtOnceAndTellsItsHandler) {
  Future<std::string> future = a.async<&answerLate>("b", late);
  late.begun.wait();
  future.cancel();
  EXPECT_TRUE(future.ready());
  messageOf<CancelledError>([&] { future.wait(); });
  a.call<&add>("b", 0, 0);  // on the same connection: the cancellation has arrived
  late.go.open();
  late.done.waitFor(1);
  EXPECT_TRUE(late.cancelled);
}

TEST_F(TimeLimits, aCallWhilePeersLiveOutlastsTheWorkersDefault) {
  WorkerJob hasty({"x", "y"}, functions(), [](JoinOptions& options) { options.rpcTimeout = kShort; });
  Future<std::string> future = hasty[0].with({.timeout = kNoTimeout}).async<&answerLate>("y", late);
  messageOf<TimeoutError>([&] { future.wait(5 * kShort); });
  late.go.open();
  EXPECT_EQ(100'000U, future.wait().size());
}

}  // namespace
}  // namespace treadle::time_limits_test
