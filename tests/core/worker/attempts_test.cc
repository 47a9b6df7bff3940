// Calls that may be tried again: only what is declared idempotent is, only where the call says so, and only after
// failures that another attempt may mend.

#include <gtest/gtest.h>

#include <future>

#include "tests/core/worker/here.h"

namespace treadle::attempts_test {
namespace {

using test::contains;
using test::Counter;
using test::Gate;
using test::Here;
using test::messageOf;
using test::WorkerJob;
using namespace std::chrono_literals;

// Answers from its `answersFrom`-th run on.
struct Runs {
  Counter count;
  int answersFrom = 1;
  Gate gate;
};
int answerSometimes(Here<Runs> runs, const std::string& text) {
  runs->count.add();
  if (runs->count.count() < runs->answersFrom) blocking([&] { runs->gate.wait(); });
  return static_cast<int>(text.size());
}
int throwAlways(Here<Runs> runs) {
  runs->count.add();
  throw std::runtime_error("no");
}
int throwALimit(Here<Runs> runs) {
  runs->count.add();
  throw TimeoutError(deadlineExceeded("a limit of its own"));
}
int answerOnce(Here<Runs> runs) {
  runs->count.add();
  return 1;
}

int valueOf(int value) { return value; }

Functions functions() {
  Functions functions;
  functions.addIdempotent<&answerSometimes>("sometimes").addIdempotent<&throwAlways>("throws");
  functions.addIdempotent<&throwALimit>("throwsALimit").addIdempotent<&valueOf>("valueOf");
  return functions.add<&answerOnce>("once");
}

constexpr int kManyAttempts = 60;  // one second each: as long as a test waits for any event

class Attempts : public testing::Test {
 protected:
  ~Attempts() override { runs.gate.open(); }

  Runs runs;
  WorkerJob job{{"a", "b"}, functions()};
};

// On a busy machine the time limit of an attempt may pass before its run begins: more attempts follow.
TEST_F(Attempts, comeAfterAnAnswerThatIsLate) {
  runs.answersFrom = 3;
  const std::string text(100, 'x');
  EXPECT_EQ(100, job[0].with({.timeout = 1s, .attempts = kManyAttempts}).call<&answerSometimes>("b", runs, text));
  EXPECT_LE(3, runs.count.count());
  runs.gate.open();
}

// The caller counts the attempts: a busy machine may start some of their runs too late.
TEST_F(Attempts, areAsManyAsWereAskedFor) {
  runs.answersFrom = 100;
  const uint64_t before = job[0].metrics().callsSent;
  std::string why = messageOf<TimeoutError>(
      [&] { job[0].with({.timeout = 500ms, .attempts = 2}).call<&answerSometimes>("b", runs, "x"); });
  EXPECT_TRUE(contains(why, "'sometimes' on worker 'b'"));
  EXPECT_EQ(before + 2, job[0].metrics().callsSent);
  EXPECT_LE(runs.count.count(), 2);
  runs.gate.open();
}

TEST_F(Attempts, areOneWhereNothingIsSaid) {
  runs.answersFrom = 100;
  const uint64_t before = job[0].metrics().callsSent;
  EXPECT_NE("",
            messageOf<TimeoutError>([&] { job[0].with({.timeout = 500ms}).call<&answerSometimes>("b", runs, "x"); }));
  EXPECT_EQ(before + 1, job[0].metrics().callsSent);
  EXPECT_LE(runs.count.count(), 1);
  runs.gate.open();
}

TEST_F(Attempts, doNotFollowWhatTheFunctionThrew) {
  EXPECT_TRUE(
      contains(messageOf<RemoteError>([&] { job[0].with({.attempts = 5}).call<&throwAlways>("b", runs); }), "no"));
  EXPECT_EQ(1, runs.count.count());
}

TEST_F(Attempts, doNotFollowALimitThatTheFunctionCameTo) {
  EXPECT_TRUE(contains(messageOf<TimeoutError>([&] { job[0].with({.attempts = 5}).call<&throwALimit>("b", runs); }),
                       "a limit of its own"));
  EXPECT_EQ(1, runs.count.count());
}

// The callee need not know of it.
TEST_F(Attempts, declaringSuffices) {
  WorkerJob other({"c", "d"}, {}, [](JoinOptions& options) {
    if (options.name == "c") {
      options.functions.declareIdempotent<&answerSometimes>("sometimes");
    } else {
      options.functions.add<&answerSometimes>("sometimes");
    }
  });
  runs.answersFrom = 2;
  EXPECT_EQ(1, other[0].with({.timeout = 1s, .attempts = kManyAttempts}).call<&answerSometimes>("d", runs, "x"));
  runs.gate.open();
}

TEST_F(Attempts, areForIdempotentFunctionsAndBlockingCalls) {
  CallProxy often = job[0].with({.attempts = 2});
  EXPECT_TRUE(contains(messageOf<StateError>([&] { often.call<&answerOnce>("b", runs); }), "declareIdempotent"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { often.async<&answerSometimes>("b", runs, "x"); }), "attempts"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { often.remote<&answerSometimes>("b", runs, "x"); }), "attempts"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { job[0].with({.attempts = 0}).call<&throwAlways>("b", runs); }),
                       "at least 1"));
  EXPECT_EQ(0, runs.count.count());
}

class OpenAttempts : public testing::Test {
 protected:
  std::shared_ptr<Worker> join(const std::string& name, int rank) const {
    return Worker::join(test::joinOptions(name, rank, kOpenWorld, port, functions()));
  }

  const uint16_t port = test::freePort();
  Runs runs;
};

TEST_F(OpenAttempts, goToTheNextWorkerOfThatName) {
  runs.answersFrom = 2;
  auto a = join("a", 0), b = join("b", kAnyRank);
  auto calling = std::async(std::launch::async,
                            [&] { return a->with({.attempts = 2}).call<&answerSometimes>("b", runs, "four"); });
  runs.count.waitFor(1);
  std::thread ends([&] { b.reset(); });
  ASSERT_TRUE(test::eventually([&] { return a->peers().size() == 1; }));
  auto again = join("b", kAnyRank);
  EXPECT_EQ(4, calling.get());
  EXPECT_EQ(2, runs.count.count());
  runs.gate.open();
  ends.join();
  auto ending = std::async(std::launch::async, [&] { again->shutdown({.timeout = 60s}); });
  a->shutdown({.timeout = 60s});
  ending.get();
}

// The callee lives, so no worker replaces it. A call that waited for another b would reach its time limit.
TEST_F(OpenAttempts, doNotFollowTheLossOfWhoOwnsAnArgument) {
  auto a = join("a", 0), b = join("b", kAnyRank), c = join("c", kAnyRank);
  ASSERT_TRUE(test::eventually([&] { return a->peers().size() == 3; }));
  const int rank = c->self().rank;
  c->leave({.timeout = 60s});
  ASSERT_TRUE(test::eventually([&] { return a->peers().size() == 2; }));
  RRef<int> lost = a->remote<&answerOnce>(rank, runs);
  Status why =
      test::statusOf<PeerLostError>([&] { a->with({.timeout = 1h, .attempts = 2}).call<&valueOf>("b", lost); });
  EXPECT_EQ("c", why.worker());
  auto ending = std::async(std::launch::async, [&] { b->shutdown({.timeout = 60s}); });
  a->shutdown({.timeout = 60s});
  ending.get();
}

}  // namespace
}  // namespace treadle::attempts_test
