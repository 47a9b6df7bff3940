// Handlers that are coroutines.

#include <gtest/gtest.h>

#include "tests/core/worker/here.h"
#include "treadle/core/group/group.h"

namespace treadle::tasks_test {
namespace {

using namespace std::chrono_literals;
using test::contains;
using test::Counter;
using test::Gate;
using test::Here;
using test::messageOf;
using test::statusOf;
using test::WorkerJob;

int addOne(int number) { return number + 1; }
int afterGate(Here<Counter> arrived, Here<Gate> gate, int number) {
  test::waitAtGate(arrived, gate);
  return number;
}
// Waits until its caller gives up, and says so.
void untilCancelled(CallContext& call, Here<Counter> arrived, Here<Gate> seen) {
  arrived->add();
  blocking([&] { EXPECT_TRUE(test::eventually([&] { return call.cancelled(); })); });
  seen->open();
}

Task<int> sumOfAll(CallContext& call, const std::vector<std::string>& whom, const int& number) {
  std::vector<Future<int>> parts;
  for (const std::string& name : whom) parts.push_back(call.worker().async<&addOne>(name, number));
  int sum = 0;
  for (Future<int>& part : parts) sum += co_await part;
  co_return sum;
}
Task<int> sumOfGroup(CallContext& call, const std::vector<std::string>& whom, int number) {
  std::vector<Future<int>> parts;
  for (const std::string& name : whom) parts.push_back(call.worker().async<&addOne>(name, number));
  int sum = 0;
  for (int part : co_await whenAll(parts)) sum += part;
  co_return sum;
}
Task<int64_t> sumTogether(CallContext& call, const std::vector<std::string>& members, int64_t number) {
  ProcessGroup group = ProcessGroup::make(call.worker(), members);
  co_await allReduce(group, std::span(&number, 1));
  co_await barrier(group);
  co_return number;
}
Task<> fail(const std::string& text) {
  throw std::invalid_argument(text);
  co_return;
}
// From one worker to the other and back, `left` times.
Task<int> pingPong(CallContext& call, std::string here, std::string there, int left) {
  if (left == 0) co_return 0;
  co_return 1 + co_await call.worker().async<&pingPong>(there, there, here, left - 1);
}
Task<std::string> sleepy(CallContext& call, int64_t milliseconds) {
  co_await call.worker().after(std::chrono::milliseconds(milliseconds));
  co_return "slept at " + call.worker().self().name;
}
// Calls on and is cancelled there, which it notes.
Task<> chain(CallContext& call, std::string next, Here<Counter> arrived, Here<Gate> seen, Here<Gate> noted) {
  try {
    co_await call.worker().async<&untilCancelled>(next, *arrived.operator->(), *seen.operator->());
  } catch (const CancelledError&) {
    noted->open();
    throw;
  }
}

class Counted {
 public:
  Task<int> add(CallContext& call, int more) {
    co_await call.worker().after(1ms);
    co_return count_ += more;
  }

 private:
  std::atomic<int> count_ = 0;
};
RRef<Counted> newCounted(CallContext& call) { return call.worker().makeRRef(std::make_shared<Counted>()); }

const Functions& functions() {
  static const Functions all = [] {
    Functions some;
    some.add<&addOne>("addOne").add<&afterGate>("afterGate").add<&untilCancelled>("untilCancelled");
    some.add<&sumOfAll>("sumOfAll").add<&fail>("fail").add<&pingPong>("pingPong").add<&sleepy>("sleepy");
    some.add<&sumOfGroup>("sumOfGroup").add<&sumTogether>("sumTogether");
    return some.add<&chain>("chain").add<&newCounted>("newCounted").add<&Counted::add>("Counted.add");
  }();
  return all;
}

class TaskHandlers : public ::testing::Test {
 protected:
  Counter arrived;  // these outlive the job
  Gate gate, seen, noted;
  WorkerJob job{{"a", "b", "c"}, functions()};
  Worker &a = job[0], &b = job[1];
};

TEST_F(TaskHandlers, answerWithWhatTheyReturnOrThrow) {
  EXPECT_EQ(18, a.call<&sumOfAll>("b", std::vector<std::string>{"a", "b", "c"}, 5));
  EXPECT_EQ(18, a.async<&sumOfAll>("a", std::vector<std::string>{"a", "b", "c"}, 5).wait());
  EXPECT_EQ(6, a.remote<&sumOfAll>("b", std::vector<std::string>{"c"}, a.makeRRef(5)).toHere());
  Status why = statusOf<RemoteError>([&] { a.call<&fail>("b", "no such thing"); });
  EXPECT_TRUE(contains(why.message(), "no such thing") && contains(why.remoteType(), "invalid_argument"));
  EXPECT_EQ("b", why.worker());
}

TEST_F(TaskHandlers, awaitGroups) {
  EXPECT_EQ(18, a.call<&sumOfGroup>("b", std::vector<std::string>{"a", "b", "c"}, 5));
}

TEST_F(TaskHandlers, serveObjects) {
  RRef<Counted> counted = a.call<&newCounted>("b");
  counted.call<&Counted::add>(2);
  EXPECT_EQ(5, counted.call<&Counted::add>(3));
}

TEST_F(TaskHandlers, nestAsDeepAsAnybodyLikes) { EXPECT_EQ(5000, a.call<&pingPong>("b", "b", "a", 5000)); }

TEST_F(TaskHandlers, sleepWithoutAThread) {
  std::vector<Future<std::string>> many;
  for (int i = 0; i < 2000; ++i) many.push_back(a.async<&sleepy>("b", 20));
  for (auto& one : many) EXPECT_EQ("slept at b", one.wait());
}

TEST_F(TaskHandlers, awaitTheOthersOfTheirGroup) {
  const std::vector<std::string> members = {"b", "c"};
  Future<int64_t> one = a.async<&sumTogether>("b", members, 40), other = a.async<&sumTogether>("c", members, 2);
  EXPECT_EQ(42, one.wait());
  EXPECT_EQ(42, other.wait());
}

TEST_F(TaskHandlers, areCancelledWithTheirCaller) {
  Future<void> call = a.async<&chain>("b", "c", arrived, seen, noted);
  arrived.waitFor(1);
  call.cancel();
  noted.wait();
  seen.wait();  // and so is what they await
}

TEST_F(TaskHandlers, areCancelledAtTheirCallersTimeLimit) {
  EXPECT_TRUE(test::withLongerLimits(1s, [&](Duration limit) {
    messageOf<TimeoutError>([&] { a.with({.timeout = limit}).call<&chain>("b", "c", arrived, seen, noted); });
    return arrived.count() > 0;
  }));
  noted.wait();
  seen.wait();
}

TEST_F(TaskHandlers, areCancelledWhenTheirCallerIsLost) {
  Future<void> call = job[2].async<&chain>("b", "a", arrived, seen, noted);
  arrived.waitFor(1);
  job.kill(2);
  noted.wait();
  seen.wait();
}

TEST_F(TaskHandlers, areSpawnedHereToo) {
  Future<int> sum = a.spawn([&](int first) -> Task<int> { co_return first + co_await a.async<&addOne>("b", 1); }, 40);
  EXPECT_EQ(42, sum.wait());
  Future<void> endless = a.spawn([&]() -> Task<> { co_await a.after(1h); });
  endless.cancel();
  messageOf<CancelledError>([&] { endless.wait(); });
}

TEST(Timers, endWithTheirWorker) {
  Future<void> late, task, other;
  Promise<void> elsewhere;  // of nobody's worker
  {
    WorkerJob job({"a"});
    late = job[0].after(1h);
    task = job[0].spawn([&worker = job[0]]() -> Task<> { co_await worker.after(1h); });
    other = job[0].spawn([&]() -> Task<> { co_await elsewhere.future(); });
    job[0].after(1ms).wait();
    EXPECT_FALSE(late.ready() || task.ready() || other.ready());
  }
  messageOf<CancelledError>([&] { late.wait(); });
  messageOf<CancelledError>([&] { task.wait(); });
  messageOf<CancelledError>([&] { other.wait(); });
}

TEST(Timers, areNoLongerSetOnceTheWorkerHasLeft) {
  WorkerJob job({"a"});
  job.shutdown();
  messageOf<StateError>([&] { (void)job[0].after(1ms); });
}

}  // namespace
}  // namespace treadle::tasks_test
