// The end of a job: nobody leaves while anybody still works, and afterwards everything says clearly that it
// is over.

#include <gtest/gtest.h>

#include <thread>

#include "tests/core/worker/here.h"

namespace treadle::shutdown_test {
namespace {

using test::contains;
using test::Counter;
using test::Gate;
using test::Here;
using test::messageOf;
using test::openGate;
using test::waitAtGate;
using test::WorkerJob;
using namespace std::chrono_literals;

int add(int a, int b) { return a + b; }
// Starts something elsewhere that goes on when this call is over.
void startThere(CallContext& call, const std::string& where, Here<Counter> arrived, Here<Gate> gate) {
  call.worker().async<&waitAtGate>(where, arrived, gate);
}
// To and fro without anybody waiting for anything, until `left` is 0.
void hop(CallContext& call, int left, Here<Counter> hops) {
  hops->add();
  if (left > 0) call.worker().async<&hop>(call.worker().peers()[static_cast<size_t>(left) % 3], left - 1, hops);
}
void shutDownInside(CallContext& call) { call.worker().shutdown(); }
struct Number {
  explicit Number(int n) : number(n) {}
  int get() { return number; }
  int number;
};

Functions functions() {
  Functions all;
  all.add<&add>("add").add<&openGate>("openGate").add<&waitAtGate>("waitAtGate").add<&startThere>("startThere");
  all.add<&hop>("hop").add<&shutDownInside>("shutDownInside").addType<Number, int>("Number");
  all.add<&Number::get>("Number.get");
  return all;
}

class Shutdown : public ::testing::Test {
 protected:
  // Worker `rank` is in its shutdown, and still serves.
  std::future<void> enter(size_t rank) {
    auto entered = std::make_shared<Gate>();
    auto done = std::async(std::launch::async, [this, rank, entered] {
      entered->open();
      job[rank].shutdown();
    });
    entered->wait();
    return done;
  }
  static bool over(std::future<void>& shutdown) { return shutdown.wait_for(0s) == std::future_status::ready; }

  Counter arrived;  // outlive the job
  Gate gate;
  WorkerJob job{{"a", "b", "c"}, functions()};
};

TEST_F(Shutdown, servesTheOthersUntilAllAreInIt) {
  std::future<void> a = enter(0), b = enter(1);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(i, job[2].call<&add>(i % 2, i, 0));
  RRef<Number> number = job[2].make<Number>("b", 4);
  EXPECT_EQ(4, number.call<&Number::get>());
  EXPECT_FALSE(over(a));
  EXPECT_FALSE(over(b));
  job[2].shutdown();
  a.get();
  b.get();
}

TEST_F(Shutdown, waitsForHandlersThatRunAnywhere) {
  Future<void> waiting = job[2].async<&waitAtGate>("b", arrived, gate);
  arrived.waitFor(1);
  std::future<void> a = enter(0), b = enter(1), c = enter(2);
  EXPECT_EQ(std::future_status::timeout, a.wait_for(200ms));
  EXPECT_FALSE(over(b));
  EXPECT_FALSE(over(c));
  gate.open();
  for (auto* one : {&a, &b, &c}) one->get();
  waiting.wait();
}

TEST_F(Shutdown, waitsForWhatHandlersHaveStartedElsewhere) {
  job[0].call<&startThere>("b", "c", arrived, gate);
  arrived.waitFor(1);
  std::future<void> a = enter(0), b = enter(1), c = enter(2);
  EXPECT_EQ(std::future_status::timeout, b.wait_for(200ms));
  gate.open();
  for (auto* one : {&a, &b, &c}) one->get();
}

TEST_F(Shutdown, waitsForChainsOfCallsThatNobodyWaitsFor) {
  constexpr int kHops = 500;
  job[0].async<&hop>("a", kHops, arrived);
  job[1].async<&hop>("c", kHops, arrived);
  job.shutdown();
  EXPECT_EQ(2 * (kHops + 1), arrived.count());
}

TEST_F(Shutdown, withALimitSaysWhatIsLeft) {
  std::string why = messageOf<TimeoutError>([&] { job[0].shutdown({.timeout = 100ms}); });
  EXPECT_TRUE(contains(why, "shutdown"));
  EXPECT_TRUE(contains(why, "b, c"));
  messageOf<TimeoutError>([&] { job[1].shutdown({.timeout = 100ms}); });
  EXPECT_EQ(3, job[1].call<&add>("a", 1, 2));  // behind the word that b has come to its own limit, and works on
  why = messageOf<TimeoutError>([&] { job[0].shutdown({.timeout = 100ms}); });
  EXPECT_TRUE(contains(why, "b, c")) << why;
  EXPECT_EQ(3, job[2].call<&add>("a", 1, 2));  // nobody has left
  EXPECT_EQ(3, job[0].call<&add>("c", 1, 2));
}

TEST_F(Shutdown, withALimitSaysWhatThisWorkerWaitsFor) {
  Future<void> waiting = job[2].async<&waitAtGate>("b", arrived, gate);
  arrived.waitFor(1);
  std::string b = messageOf<TimeoutError>([&] { job[1].shutdown({.timeout = 100ms}); });
  EXPECT_TRUE(contains(b, "1 handler"));
  std::string c = messageOf<TimeoutError>([&] { job[2].shutdown({.timeout = 100ms}); });
  EXPECT_TRUE(contains(c, "1 answer"));
  gate.open();
}

TEST_F(Shutdown, withALimitSaysWhoHoldsWhat) {
  RRef<int> held = job[1].remote<&add>("a", 1, 2);
  EXPECT_EQ(3, held.toHere());
  const std::string why = messageOf<TimeoutError>([&] { job[0].shutdown({.timeout = 100ms}); });
  EXPECT_TRUE(contains(why, "1 by 'b'"));
}

TEST_F(Shutdown, mayBeCalledAgainAfterItsLimitAndAfterItsEnd) {
  messageOf<TimeoutError>([&] { job[0].shutdown({.timeout = 50ms}); });
  job.shutdown();
  job.shutdown();
}

TEST_F(Shutdown, insideAHandlerIsRefused) {
  std::string why = messageOf<StateError>([&] { job[0].call<&shutDownInside>("b"); });
  EXPECT_TRUE(contains(why, "program's own thread"));
  messageOf<StateError>([&] { job[0].call<&shutDownInside>("a"); });
}

TEST_F(Shutdown, leavesOneClearErrorForWhateverComesAfterIt) {
  RRef<Number> number = job[0].make<Number>("b", 4), own = job[0].makeRRef(Number(5));
  number.waitUntilReady();
  job.shutdown();
  Worker& a = job[0];
  for (auto late :
       {std::function([&] { a.call<&add>("b", 1, 2); }), std::function([&] { a.call<&add>("a", 1, 2); }),
        std::function([&] { a.async<&add>("c", 1, 2).wait(); }),
        std::function([&] { a.remote<&add>("b", 1, 2).toHere(); }),
        std::function([&] { a.make<Number>("b", 1).waitUntilReady(); }),
        std::function([&] { number.call<&Number::get>(); }), std::function([&] { own.localValue(); }),
        std::function([&] { number.waitUntilReady(); }), std::function([&] { a.barrier(); }),
        std::function([&] { a.makeRRef(Number(6)).localValue(); }), std::function([&] { a.spawn([] {}).wait(); })}) {
    try {
      late();
      ADD_FAILURE() << "it worked";
    } catch (const StateError& error) {
      EXPECT_TRUE(contains(error.what(), "has left its job"));
    } catch (const std::exception& error) {
      ADD_FAILURE() << demangled(typeid(error).name()) << ": " << error.what();
    }
  }
}

TEST_F(Shutdown, ofAWorkerThatIsAloneNeedsNobody) {
  WorkerJob alone({"only"}, functions());
  EXPECT_EQ(3, alone[0].call<&add>("only", 1, 2));
  alone[0].barrier();
  alone[0].shutdown();
}

TEST_F(Shutdown, letsTheNextJobHaveTheSamePort) {
  uint16_t port = test::freePort();
  for (int i = 0; i < 3; ++i) {
    auto other = std::async(std::launch::async,
                            [&] { Worker::join(test::joinOptions("y", 1, 2, port, functions()))->shutdown(); });
    auto worker = Worker::join(test::joinOptions("x", 0, 2, port, functions()));
    EXPECT_EQ(i, worker->call<&add>("y", i, 0));
    worker->shutdown();
    other.get();
  }
}

TEST_F(Shutdown, allGatherGivesAllWhatEachGaveInAJobOfAFixedSize) {
  job.onAll([&](Worker& worker) {
    std::map<std::string, std::vector<int>> expected;
    for (const WorkerInfo& one : worker.peers()) expected[one.name] = {one.rank, 7};
    EXPECT_EQ(expected, worker.allGather(std::vector<int>{worker.self().rank, 7}));
  });
}

TEST_F(Shutdown, barriersLetNobodyPassBeforeAllHaveCome) {
  for (int round = 1; round <= 20; ++round)
    job.onAll([&](Worker& worker) {
      arrived.add();
      worker.barrier();
      EXPECT_GE(arrived.count(), 3 * round);
    });
}

}  // namespace
}  // namespace treadle::shutdown_test
