// What is not answered yet is bounded, per peer: calls wait for answers, in their order, and end with an error that
// says what to do when none come in time.

#include <gtest/gtest.h>

#include <thread>

#include "tests/core/worker/here.h"
#include "tests/support/seeds.h"

namespace treadle::credits_test {
namespace {

using test::contains;
using test::eventually;
using test::Gate;
using test::Here;
using test::messageOf;
using test::statusOf;
using test::WorkerJob;
using namespace std::chrono_literals;

constexpr size_t kLimit = 64 << 10, kHalf = 30'000;
constexpr Duration kShort = 200ms;

// Answers when the test says so, and holds no thread until then.
struct Kept {
  test::Counter begun;
  Gate go;
  Mutex mutex;
  std::vector<Promise<void>> promises TREADLE_GUARDED_BY(mutex);

  void answer() {
    MutexLock lock(mutex);
    for (Promise<void>& one : promises) one.set();
    promises.clear();
  }
};
Future<void> keep(Here<Kept> kept, const std::string&) {
  Promise<void> promise;
  Future<void> future = promise.future();
  {
    MutexLock lock(kept->mutex);
    kept->promises.push_back(std::move(promise));
  }
  kept->begun.add();
  return future;
}
size_t sizeOf(const std::string& text) { return text.size(); }
struct Tally {
  explicit Tally(std::string all) : text(std::move(all)) {}
  size_t size() const { return text.size(); }
  std::string text;
};
size_t half(size_t number) { return number / 2; }
size_t readThere(const RRef<size_t>& size) { return size.toHere(); }

// Answered by a thread that another one reads beside, which may have the next request before that one goes on.
Future<size_t> sizeLater(CallContext& call, const std::string& text) {
  return call.worker().spawn([size = text.size()] { return size; });
}

// Notes who has come.
struct Guests {
  void add(int guest) {
    MutexLock lock(mutex);
    ++times[guest];
  }
  Mutex mutex;
  std::map<int, int> times TREADLE_GUARDED_BY(mutex);
};
void arrive(Here<Guests> guests, int guest, const std::string&) { guests->add(guest); }

int bounce(CallContext& call, int depth, const std::string& text) {
  return depth == 0 ? 0 : 1 + call.worker().call<&bounce>(call.caller(), depth - 1, text);
}
int bounceWhenOpen(CallContext& call, Here<Gate> gate, int depth, const std::string& text) {
  blocking([&] { gate->wait(); });
  return bounce(call, depth, text);
}

Functions functions() {
  Functions all;
  all.add<&keep>("keep").add<&sizeOf>("sizeOf").add<&arrive>("arrive").add<&bounce>("bounce");
  all.add<&half>("half").add<&readThere>("readThere");
  all.addType<Tally, std::string>("Tally").add<&Tally::size>("Tally.size");
  all.add<&sizeLater>("sizeLater").add<&bounceWhenOpen>("bounceWhenOpen");
  return all;
}

bool allIsGivenBack(WorkerJob& job) {
  for (size_t i = 0; i < job.size(); ++i)
    if (job[i].metrics().unansweredBytes + job[i].metrics().bytesToAnswer > 0) return false;
  return true;
}

class CreditsOfCalls : public ::testing::Test {
 protected:
  // Two calls that b does not answer before kept.answer().
  std::vector<Future<void>> fill() {
    std::vector<Future<void>> calls;
    for (int i = 0; i < 2; ++i) calls.push_back(a.async<&keep>("b", kept, std::string(kHalf, 'x')));
    kept.begun.waitFor(2);
    return calls;
  }
  // For small calls that is so when they would have to wait behind a large one that waits.
  ::testing::AssertionResult noRoomIsLeft() {
    return eventually([&] {
      try {
        a.with({.timeout = 10ms}).call<&sizeOf>("b", std::string());
      } catch (const Error& error) {
        return error.status().code() == Code::kResourceExhausted;
      }
      return false;
    });
  }

  Kept kept;  // outlive the job
  Guests guests;
  WorkerJob job{{"a", "b", "c"}, functions(), [](JoinOptions& options) { options.maxInFlightBytes = kLimit; }};
  Worker &a = job[0], &b = job[1];
};

TEST_F(CreditsOfCalls, endACallThatGetsNoneWithWhomItWasForAndWhatToDo) {
  auto calls = fill();
  CallProxy hasty = a.with({.timeout = kShort});
  const std::string text(kHalf, 'x');
  for (auto late : {std::function([&] { hasty.call<&sizeOf>("b", text); }),
                    std::function([&] { hasty.async<&sizeOf>("b", text).wait(); }),
                    std::function([&] { hasty.remote<&sizeOf>("b", text).toHere(); })}) {
    Status why = statusOf<ResourceError>(late);
    EXPECT_EQ("b", why.worker());
    EXPECT_EQ("sizeOf", why.function());
    for (const char* part : {"'sizeOf' on worker 'b' (rank 1)", "at most 65536", "wait for answers"})
      EXPECT_TRUE(contains(why.message(), part));
  }
  EXPECT_EQ(kHalf, a.call<&sizeOf>("c", text));  // per peer
  // Nobody waits for a value that was never asked for, wherever the reference to it was to go.
  auto unasked = hasty.remote<&sizeOf>("b", text);
  messageOf<ResourceError>([&] { a.call<&readThere>("c", unasked); });
  messageOf<ResourceError>([&] { a.call<&half>("c", unasked); });
  auto tally = hasty.make<Tally>("b", text);
  messageOf<ResourceError>([&] { tally.call<&Tally::size>(); });
  messageOf<ResourceError>([&] { tally.remote<&Tally::size>().toHere(); });
  EXPECT_LE(b.metrics().bytesToAnswer, kLimit);
  kept.answer();
  for (auto& one : calls) one.wait();
  EXPECT_EQ(kHalf, a.call<&sizeOf>("b", text));
  EXPECT_TRUE(test::eventuallyReleased([&] { return allIsGivenBack(job); }));
}

// The sender waits and goes on as answers come; nothing is lost, nothing comes twice.
TEST_F(CreditsOfCalls, holdBackAFloodOfWhichEverythingArrives) {
  auto calls = fill();
  constexpr int kGuests = 500;
  std::atomic<int> sent = 0;
  std::vector<Future<void>> flood;
  std::thread flooder([&] {
    for (; sent < kGuests; ++sent) flood.push_back(a.async<&arrive>("b", guests, sent, std::string(20'000, 'x')));
  });
  EXPECT_TRUE(noRoomIsLeft());
  EXPECT_LT(sent, kGuests);
  EXPECT_LE(a.metrics().unansweredBytes, kLimit);
  kept.answer();
  flooder.join();
  for (auto& one : flood) one.wait();
  MutexLock lock(guests.mutex);
  EXPECT_EQ(size_t{kGuests}, guests.times.size());
  for (auto [guest, times] : guests.times) EXPECT_EQ(1, times) << guest;
}

// Small ones count too.
TEST_F(CreditsOfCalls, boundTheNumberOfCallsThatAreUnderWay) {
  std::vector<Future<void>> calls{a.async<&keep>("b", kept, std::string())};
  const size_t cost = a.metrics().unansweredBytes, most = kLimit / cost;
  EXPECT_GT(cost, rpc::Credits::kRequestBytes);
  while (calls.size() < most) calls.push_back(a.async<&keep>("b", kept, std::string()));
  Future<void> oneTooMany = a.with({.timeout = kShort}).async<&keep>("b", kept, std::string());
  messageOf<ResourceError>([&] { oneTooMany.wait(); });
  kept.begun.waitFor(static_cast<int>(most));
  EXPECT_EQ(most, b.metrics().handlersRunning);
  kept.answer();
  for (auto& one : calls) one.wait();
}

TEST_F(CreditsOfCalls, letARequestOfAnySizeGoBesideOnesThatRunForLong) {
  Future<void> forLong = a.async<&keep>("b", kept, std::string());
  EXPECT_EQ(10 * kLimit, a.call<&sizeOf>("b", std::string(10 * kLimit, 'x')));
  Future<void> more = a.async<&keep>("b", kept, std::string(kHalf, 'x'));
  Status why =
      statusOf<ResourceError>([&] { a.with({.timeout = kShort}).call<&sizeOf>("b", std::string(10 * kLimit, 'x')); });
  EXPECT_EQ("b", why.worker());
  kept.begun.waitFor(2);
  kept.answer();
  EXPECT_EQ(10 * kLimit, a.call<&sizeOf>("b", std::string(10 * kLimit, 'x')));
}

// The callee counts it as long, and would refuse what comes instead.
TEST_F(CreditsOfCalls, ofACallThatWasGivenUpComeBackWithItsAnswer) {
  Future<void> one = a.async<&keep>("b", kept, std::string(kHalf, 'x'));
  kept.begun.waitFor(1);
  EXPECT_TRUE(test::withLongerLimits(1s, [&](Duration limit) {
    Future<void> two = a.with({.timeout = limit}).async<&keep>("b", kept, std::string(kHalf, 'x'));
    messageOf<TimeoutError>([&] { two.wait(); });
    // The callee answers a call whose limit passed before it began.
    EXPECT_TRUE(eventually([&] { return kept.begun.count() == 2 || a.metrics().unansweredBytes < 2 * kHalf; }));
    return kept.begun.count() == 2;
  }));
  one.cancel();
  EXPECT_EQ(0U, a.metrics().callsPending);
  EXPECT_GT(a.metrics().unansweredBytes, 2 * kHalf);
  messageOf<ResourceError>([&] { a.with({.timeout = kShort}).call<&sizeOf>("b", std::string(kHalf, 'x')); });
  kept.answer();
  EXPECT_TRUE(test::eventuallyReleased([&] { return allIsGivenBack(job); }));
  EXPECT_EQ(kHalf, a.call<&sizeOf>("b", std::string(kHalf, 'x')));
}

TEST_F(CreditsOfCalls, areNotWaitedForWhenThePeerIsLost) {
  auto calls = fill();
  kept.begun.waitFor(2);
  std::vector<std::future<Status>> waiting;
  for (int i = 0; i < 3; ++i)
    waiting.push_back(std::async(std::launch::async, [&] {
      return statusOf<PeerLostError>([&] { a.call<&sizeOf>("b", std::string(kHalf, 'x')); });
    }));
  EXPECT_TRUE(noRoomIsLeft());
  job.kill(1);
  for (auto& one : waiting) EXPECT_EQ("b", one.get().worker());
  EXPECT_TRUE(test::eventuallyReleased([&] { return a.metrics().unansweredBytes == 0; }));
}

// A call without a time limit waits no longer than others do: the circle would be for ever.
TEST(CreditsOfPatientCalls, areWaitedForAsLongAsOthersDo) {
  Kept kept;
  WorkerJob job({"a", "b"}, functions(), [](JoinOptions& options) {
    options.maxInFlightBytes = kLimit;
    options.rpcTimeout = kShort;
  });
  CallProxy patient = job[0].with({.timeout = kNoTimeout});
  std::vector<Future<void>> calls;
  for (int i = 0; i < 2; ++i) calls.push_back(patient.async<&keep>("b", kept, std::string(kHalf, 'x')));
  messageOf<ResourceError>([&] { patient.call<&sizeOf>("b", std::string(kHalf, 'x')); });
  kept.begun.waitFor(2);
  kept.answer();
  for (auto& one : calls) one.wait();
}

// Waits for all calls; the others fail for lack of time or of room.
size_t countThoseInTime(std::vector<Future<int>>& calls) {
  size_t inTime = 0;
  for (auto& one : calls) {
    try {
      EXPECT_EQ(10, one.wait());
      ++inTime;
    } catch (const TimeoutError&) {
    } catch (const ResourceError&) {}
  }
  return inTime;
}

// Handlers of both sides that call each other while there is no room for it: each call ends, at its deadline at the
// latest, and leaves nothing behind.
TEST(CreditsOfNestedCalls, areNotWaitedForInACircleForEver) {
  WorkerJob job({"a", "b"}, functions(), [](JoinOptions& options) {
    options.maxInFlightBytes = kLimit;
    options.rpcTimeout = 2 * kShort;
  });
  test::forSeeds(3, [&](test::Random& random) {
    std::vector<Future<int>> all;
    for (int i = 0; i < 6; ++i)
      for (int from : {0, 1}) {
        std::string text(test::pick(random, kLimit / 3), 'x');
        all.push_back(job[static_cast<size_t>(from)].async<&bounce>(1 - from, 10, text));
      }
    countThoseInTime(all);
    EXPECT_TRUE(test::eventuallyReleased([&] { return allIsGivenBack(job); }));
    EXPECT_EQ(1U, job[0].with({.timeout = test::kHangs}).call<&sizeOf>("b", std::string("x")));
  });
}

// Two calls take all room on both sides before any handler continues, so no nested call finds room.
TEST(CreditsOfNestedCalls, inACircleEndAtTheirDeadline) {
  Gate gate;
  WorkerJob job({"a", "b"}, functions(), [](JoinOptions& options) {
    options.maxInFlightBytes = kLimit;
    options.rpcTimeout = 2 * kShort;
  });
  std::vector<Future<int>> all;
  for (int i = 0; i < 2; ++i)
    for (int from : {0, 1})
      all.push_back(job[static_cast<size_t>(from)].async<&bounceWhenOpen>(1 - from, gate, 10, std::string(kHalf, 'x')));
  gate.open();
  EXPECT_EQ(0U, countThoseInTime(all));
  EXPECT_TRUE(test::eventuallyReleased([&] { return allIsGivenBack(job); }));
  EXPECT_EQ(1U, job[0].with({.timeout = test::kHangs}).call<&sizeOf>("b", std::string("x")));
}

// One request at a time, and the next one comes as soon as the answer has left.
TEST(CreditsOfTheLowestLimit, areNeverRefusedToWhoWaitsForThem) {
  WorkerJob job({"a", "b"}, functions(), [](JoinOptions& options) { options.maxInFlightBytes = 1; });
  std::vector<std::future<void>> callers;
  for (int t = 0; t < 4; ++t)
    callers.push_back(std::async(std::launch::async, [&] {
      for (int i = 0; i < 1000; ++i) job[0].call<&sizeLater>("b", std::string("x"));
    }));
  for (auto& one : callers) one.get();
}

TEST(CreditsOfUnequalLimits, areRefusedByTheWorkerWithTheLowerOne) {
  Kept kept;
  WorkerJob job({"a", "b"}, functions(), [](JoinOptions& options) {
    if (options.name == "b") options.maxInFlightBytes = kLimit;
  });
  std::vector<Future<void>> calls;
  for (int i = 0; i < 2; ++i) calls.push_back(job[0].async<&keep>("b", kept, std::string(kHalf, 'x')));
  Status why = statusOf<ResourceError>([&] { job[0].call<&sizeOf>("b", std::string(kHalf, 'x')); });
  EXPECT_EQ("b", why.worker());
  for (const char* part : {"worker 'a' (rank 0)", "worker 'b' (rank 1)", "limit of 65536", "maxInFlightBytes"})
    EXPECT_TRUE(contains(why.message(), part));
  kept.begun.waitFor(2);
  kept.answer();
  for (auto& one : calls) one.wait();
}

// One thread: calls of random sizes that are awaited, given up, late, or too large to go with others.
void callAtRandom(Worker& worker, uint64_t seed) {
  test::Random random(seed);
  std::vector<std::pair<size_t, Future<size_t>>> underWay;
  for (int i = 0; i < 60; ++i) {
    auto to = static_cast<int>(test::pick(random, worker.peers().size()));
    std::string text(test::pick(random, test::pick(random, 10) == 0 ? 2 * kLimit : kLimit / 8), 'x');
    CallProxy hasty = worker.with({.timeout = std::chrono::microseconds(test::pick(random, 3000))});
    switch (test::pick(random, 4)) {
      case 0: EXPECT_EQ(text.size(), worker.call<&sizeOf>(to, text)); break;
      case 1: hasty.async<&sizeOf>(to, text); break;
      case 2: worker.async<&sizeOf>(to, text).cancel(); break;
      default: underWay.emplace_back(text.size(), worker.async<&sizeOf>(to, text));
    }
  }
  for (auto& [size, future] : underWay) EXPECT_EQ(size, future.wait());
}

// A worker that keeps the limit is never refused: a refusal would fail one of the calls that have time enough.
TEST_F(CreditsOfCalls, ofManyThreadsAllComeBackAndNobodyIsRefused) {
  test::forSeeds(4, [&](test::Random& random) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 6; ++i) threads.emplace_back([this, i, seed = random()] { callAtRandom(job[i % 3], seed); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(test::eventuallyReleased([&] { return allIsGivenBack(job); }));
  });
}

}  // namespace
}  // namespace treadle::credits_test
