// Many calls at a time: handlers that wait or run long hold up neither answers nor heartbeats nor each other,
// and no answer reaches another's caller.

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/core/worker/here.h"
#include "tests/support/seeds.h"

namespace treadle::many_calls_test {
namespace {

using test::contains;
using test::Counter;
using test::Gate;
using test::Here;
using test::openGate;
using test::statusOf;
using test::waitAtGate;
using test::WorkerJob;
using namespace std::chrono_literals;

int add(int a, int b) { return a + b; }

// Waits without saying so, as a handler does that computes for long.
void runUntil(Here<Counter> arrived, Here<Gate> gate) {
  arrived->add();
  gate->wait();
}

// To and fro between two workers, every handler waiting for the next.
int bounce(CallContext& call, int depth) {
  if (depth == 0) return 0;
  return 1 + call.worker().call<&bounce>(call.caller(), depth - 1);
}

// Likewise, and the innermost stays until the gate opens: so each of the others must wait.
int nest(CallContext& call, int depth, Here<Counter> arrived, Here<Gate> gate) {
  if (depth > 0) return 1 + call.worker().call<&nest>(call.caller(), depth - 1, arrived, gate);
  runUntil(arrived, gate);
  return 0;
}

void count(Here<Counter> runs) { runs->add(); }
bool couldCallBack(CallContext& call, Here<Counter> runs) {
  try {
    call.worker().call<&count>(call.caller(), runs);
    return true;
  } catch (const ResourceError&) {
    return false;
  }
}

std::string echo(uint64_t number, const std::string& text) { return std::to_string(number) + text; }
Future<std::string> echoLater(CallContext& call, uint64_t number, const std::string& text) {
  return call.worker().spawn([number, text] { return std::to_string(number) + text; });
}
std::string echoFurther(CallContext& call, uint64_t number, const std::string& text) {
  int next = (call.worker().self().rank + 1) % static_cast<int>(call.worker().peers().size());
  return call.worker().call<&echo>(next, number, text);
}

Functions functions() {
  Functions all;
  all.add<&add>("add").add<&openGate>("openGate").add<&waitAtGate>("waitAtGate").add<&runUntil>("runUntil");
  all.add<&count>("count").add<&couldCallBack>("couldCallBack");
  all.add<&nest>("nest")
      .add<&bounce>("bounce")
      .add<&echo>("echo")
      .add<&echoLater>("echoLater")
      .add<&echoFurther>("echoFurther");
  return all;
}

class ManyCalls : public ::testing::Test {
 protected:
  Counter arrived, runs;  // outlive the job
  Gate gate;
};

TEST_F(ManyCalls, waitingHandlersBringInThreadsForTheCallThatReleasesThem) {
  WorkerJob job({"a", "b"}, functions(), [](JoinOptions& options) { options.maxConcurrentHandlers = 2; });
  std::vector<Future<void>> waiting;
  for (int i = 0; i < 50; ++i) waiting.push_back(job[0].async<&waitAtGate>("b", arrived, gate));
  arrived.waitFor(50);
  EXPECT_EQ(50U, job[1].metrics().handlersRunning);
  job[0].call<&openGate>("b", gate);
  for (auto& one : waiting) one.wait();
}

TEST_F(ManyCalls, waitingHandlersAreLimitedAndTheOneTooManyIsToldSo) {
  WorkerJob job({"a", "b"}, functions(), [](JoinOptions& options) { options.maxBlockedHandlers = 3; });
  std::vector<Future<void>> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(job[0].async<&waitAtGate>("b", arrived, gate));
  arrived.waitFor(3);
  // Each may have arrived a moment before it waits: then one of them is the one too many.
  std::vector<Status> refused;
  waiting.push_back(job[0].async<&waitAtGate>("b", arrived, gate));
  EXPECT_TRUE(test::eventually([&] {
    for (auto& one : waiting)
      if (one.ready()) return true;
    return false;
  }));
  EXPECT_EQ(3, job[0].call<&add>("b", 1, 2));
  gate.open();
  for (auto& one : waiting) {
    try {
      one.wait();
    } catch (const ResourceError& error) {
      refused.push_back(error.status());
    }
  }
  ASSERT_EQ(1U, refused.size());
  EXPECT_EQ("b", refused[0].worker());
  EXPECT_TRUE(contains(refused[0].message(), "maxBlockedHandlers"));
}

TEST_F(ManyCalls, ofAHandlerThatMayNotWaitAreNotSent) {
  WorkerJob job({"a", "b"}, functions(), [](JoinOptions& options) { options.maxBlockedHandlers = 1; });
  std::vector<Future<void>> waiting;
  for (int i = 0; i < 2; ++i) waiting.push_back(job[0].async<&waitAtGate>("b", arrived, gate));
  // One of the two waits, and the other was refused.
  EXPECT_TRUE(test::eventually([&] { return waiting[0].ready() || waiting[1].ready(); }));
  EXPECT_FALSE(job[0].call<&couldCallBack>("b", runs));
  EXPECT_EQ(0, runs.count());
  gate.open();
  const auto wasRefused = [](Future<void>& one) {
    try {
      one.wait();
      return false;
    } catch (const ResourceError&) {
      return true;
    }
  };
  EXPECT_NE(wasRefused(waiting[0]), wasRefused(waiting[1]));
  EXPECT_TRUE(job[0].call<&couldCallBack>("b", runs));
  EXPECT_EQ(1, runs.count());
}

// b may run two handlers at a time, and both run until the test ends them: what b itself asks is answered,
// what it answered is acknowledged, and nobody takes it for lost.
TEST_F(ManyCalls, longHandlersHoldUpNeitherAnswersNorHeartbeats) {
  constexpr Duration kHeartbeatTimeout = 4s;
  WorkerJob job({"a", "b"}, functions(), [&](JoinOptions& options) {
    options.maxConcurrentHandlers = 2;
    options.heartbeatTimeout = kHeartbeatTimeout;
  });
  RRef<int> held = job[0].remote<&add>("b", 1, 1);
  EXPECT_EQ(2, held.toHere());
  std::vector<Future<void>> running;
  for (int i = 0; i < 2; ++i) running.push_back(job[0].async<&runUntil>("b", arrived, gate));
  arrived.waitFor(2);
  held = {};
  EXPECT_TRUE(test::eventuallyReleased([&] { return job[0].metrics().referencesPending == 0; }))
      << "b has acknowledged it";
  EXPECT_TRUE(test::eventuallyReleased([&] { return job[1].metrics().valuesOwned == 0; }));
  TimePoint end = Clock::now() + kHeartbeatTimeout + kHeartbeatTimeout / 2;
  for (int answers = 0; answers <= 10 || Clock::now() < end; ++answers)
    ASSERT_EQ(answers, job[1].async<&add>("a", answers, 0).wait());
  Future<int> queued = job[0].async<&add>("b", 1, 2);
  EXPECT_FALSE(running[0].ready());
  gate.open();
  EXPECT_EQ(3, queued.wait());
  for (auto& one : running) one.wait();
}

TEST_F(ManyCalls, callsBackAndForthNestDeeplyEvenOnFewThreads) {
  WorkerJob job({"a", "b"}, functions(), [](JoinOptions& options) { options.maxConcurrentHandlers = 1; });
  EXPECT_EQ(100, job[0].call<&bounce>("b", 100));
  EXPECT_EQ(50, job[0].call<&bounce>("a", 50));  // and with oneself
}

TEST_F(ManyCalls, nestAThousandDeepAtTheDefaultLimits) {
  WorkerJob job({"a", "b"}, functions());
  EXPECT_EQ(1000, job[0].call<&bounce>("b", 1000));
  EXPECT_EQ(1000, job[0].call<&bounce>("a", 1000));
}

TEST_F(ManyCalls, atALimitOfEightTheNinthThatWouldWaitFailsAndAllEnds) {
  WorkerJob job({"a", "b"}, functions(), [](JoinOptions& options) { options.maxBlockedHandlers = 8; });
  auto allEnded = [&] { return job[0].metrics().handlersRunning + job[1].metrics().handlersRunning == 0; };
  Gate first, second;
  Future<int> eight = job[0].async<&nest>("a", 8, arrived, first);
  arrived.waitFor(1);
  first.open();
  EXPECT_EQ(8, eight.wait());
  Future<int> sixteen = job[0].async<&nest>("b", 16, arrived, second);
  arrived.waitFor(2);
  second.open();
  EXPECT_EQ(16, sixteen.wait()) << "eight at each";
  EXPECT_TRUE(test::eventually(allEnded));

  statusOf<ResourceError>([&] { job[0].call<&nest>("b", 18, arrived, gate); }).ignore();
  Status why = statusOf<ResourceError>([&] { job[0].call<&nest>("a", 9, arrived, gate); });
  EXPECT_TRUE(contains(why.message(), "maxBlockedHandlers"));
  // Whichever comes to wait as the ninth.
  EXPECT_EQ(std::vector<std::string>(why.trail().size(), "a"), why.trail());
  EXPECT_TRUE(!why.trail().empty() && why.trail().size() <= 9) << why.message();
  gate.open();
  EXPECT_TRUE(test::eventually(allEnded));
  EXPECT_EQ(8, job[0].call<&nest>("a", 8, arrived, gate));
}

TEST_F(ManyCalls, nestedCallsOfBothSidesAtOnceDoNotWaitForEachOther) {
  WorkerJob job({"a", "b"}, functions(), [](JoinOptions& options) { options.maxConcurrentHandlers = 1; });
  std::vector<Future<int>> all;
  for (int i = 0; i < 10; ++i)
    for (size_t from : {0, 1}) all.push_back(job[from].async<&bounce>(from == 0 ? "b" : "a", 20));
  for (auto& one : all) EXPECT_EQ(20, one.wait());
}

// One thread of a worker: random calls, several under way at a time, collected in random order.
void callAtRandom(Worker& worker, uint64_t seed) {
  test::Random random(seed);
  std::vector<std::pair<std::string, Future<std::string>>> underWay;
  std::vector<std::pair<std::string, RRef<std::string>>> refs;
  for (int i = 0; i < 40; ++i) {
    auto to = static_cast<int>(test::pick(random, worker.peers().size()));
    uint64_t number = random();
    std::string text(test::pick(random, 20) == 0 ? 100'000 : test::pick(random, 200), static_cast<char>('a' + i % 26));
    std::string expected = std::to_string(number) + text;
    switch (test::pick(random, 6)) {
      case 0: EXPECT_EQ(expected, worker.call<&echo>(to, number, text)); break;
      case 1: EXPECT_EQ(expected, worker.call<&echoFurther>(to, number, text)); break;
      case 2: underWay.emplace_back(expected, worker.async<&echo>(to, number, text)); break;
      case 3: underWay.emplace_back(expected, worker.async<&echoLater>(to, number, text)); break;
      case 4: underWay.emplace_back(expected, worker.async<&echoFurther>(to, number, text)); break;
      default: refs.emplace_back(expected, worker.remote<&echo>(to, number, text));
    }
  }
  std::shuffle(underWay.begin(), underWay.end(), random);
  for (auto& [expected, future] : underWay) EXPECT_EQ(expected, future.wait());
  std::shuffle(refs.begin(), refs.end(), random);
  for (auto& [expected, ref] : refs) EXPECT_EQ(expected, ref.toHere());
}

TEST_F(ManyCalls, ofManyThreadsAndWorkersGetEachItsOwnAnswer) {
  WorkerJob job({"a", "b", "c"}, functions());
  test::forSeeds(4, [&](test::Random& random) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 6; ++i) threads.emplace_back([&job, i, seed = random()] { callAtRandom(job[i % 3], seed); });
    for (auto& thread : threads) thread.join();
  });
}

TEST_F(ManyCalls, aThousandAtATimeAreAllAnswered) {
  WorkerJob job({"a", "b"}, functions());
  std::vector<Future<int>> all;
  for (int i = 0; i < 1000; ++i) all.push_back(job[0].async<&add>("b", i, 1));
  for (int i = 999; i >= 0; --i) EXPECT_EQ(i + 1, all[static_cast<size_t>(i)].wait());
}

}  // namespace
}  // namespace treadle::many_calls_test
