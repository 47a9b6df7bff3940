// Calls on a thread that polls or reads for others: such a thread never waits.

#include "treadle/core/io/serving.h"

#include <gtest/gtest.h>

#include "tests/core/worker/here.h"

namespace treadle::serving_test {
namespace {

using test::contains;
using test::Counter;
using test::Gate;
using test::Here;
using test::messageOf;
using test::WorkerJob;

void count(Here<Counter> runs) { runs->add(); }

struct Tally {
  explicit Tally(int first) : value(first) {}
  int add(Here<Counter> runs) {
    runs->add();
    return value;
  }
  int value;
};
int tallied(Here<Counter> runs) {
  runs->add();
  return 1;
}

// Makes a call where the last holder of a received result releases it.
struct Caller {
  explicit Caller(Worker& itsWorker) : worker(itsWorker) {}

  Worker& worker;
  Counter runs, ended;
  Status outcome;
  bool onReadingThread = false;

  void callAndTell() {
    onReadingThread = io::Serving::here();
    try {
      worker.call<&count>("b", runs);
    } catch (const Error& error) {
      outcome = error.status();
    }
    ended.add();
  }
};
struct Farewell {
  Here<Caller> caller;
  std::shared_ptr<void> received = nullptr;
};

}  // namespace
}  // namespace treadle::serving_test

namespace treadle::rpc {

template <>
struct Codec<serving_test::Farewell> {
  static void encode(Encoder& encoder, const serving_test::Farewell& value) {
    encoder.writer().number(value.caller.address);
  }
  static serving_test::Farewell decode(Decoder& decoder) {
    serving_test::Farewell value;
    value.caller.address = decoder.reader().number<uint64_t>();
    value.received = std::shared_ptr<void>(nullptr, [caller = value.caller](void*) { caller->callAndTell(); });
    return value;
  }
  static std::string name() { return "farewell"; }
};

}  // namespace treadle::rpc

namespace treadle::serving_test {
namespace {

Farewell farewell(Here<Caller> caller, Here<Counter> begun, Here<Gate> gate) {
  test::waitAtGate(begun, gate);
  return {caller};
}

Functions functions() {
  Functions all;
  all.add<&count>("count").addIdempotent<&tallied>("tallied").add<&farewell>("farewell");
  return all.addType<Tally, int>("Tally").add<&Tally::add>("Tally.add");
}

class ServingThread : public ::testing::Test {
 protected:
  WorkerJob job_{{"a", "b"}, functions()};
  Worker& a_ = job_[0];
  Counter runs_;
};

TEST_F(ServingThread, isRefusedACallThatWaitsBeforeAnythingIsSent) {
  RRef<Tally> tally = a_.make<Tally>("b", 3);
  tally.waitUntilReady();
  RRef<int> number = a_.remote<&tallied>("b", runs_);
  number.waitUntilReady();
  const uint64_t sent = a_.metrics().callsSent;
  const io::Serving reads;
  for (const auto& call : {std::function([&] { a_.call<&count>("b", runs_); }),
                           std::function([&] { a_.callNamed<void>("b", "count", Here<Counter>(runs_)); }),
                           std::function([&] { a_.with({.attempts = 3}).call<&tallied>("b", runs_); }),
                           std::function([&] { tally.call<&Tally::add>(runs_); }),
                           std::function([&] { number.toHere(); }), std::function([&] { number.waitUntilReady(); })}) {
    const std::string why = messageOf<ResourceError>(call);
    EXPECT_TRUE(contains(why, "on worker 'b'"));
    EXPECT_TRUE(contains(why, "must not wait itself"));
  }
  EXPECT_EQ(sent, a_.metrics().callsSent);
  EXPECT_EQ(1, runs_.count()) << "that of the reference";
}

TEST_F(ServingThread, mayCallWithoutWaiting) {
  Future<int> answer;
  {
    const io::Serving reads;
    answer = a_.async<&tallied>("b", runs_);
  }
  EXPECT_EQ(1, answer.wait());
  EXPECT_EQ(1, runs_.count());
}

TEST_F(ServingThread, destroysAResultThatNobodyHoldsAndWaitsForNothingThere) {
  Caller caller(a_);
  Counter begun;
  Gate gate;
  (void)a_.async<&farewell>("b", caller, begun, gate);
  begun.waitFor(1);
  gate.open();
  caller.ended.waitFor(1);
  EXPECT_TRUE(caller.onReadingThread);
  EXPECT_EQ(Code::kResourceExhausted, caller.outcome.code()) << caller.outcome.toString();
  EXPECT_EQ(1U, a_.metrics().callsSent) << "the one for the result";
  EXPECT_EQ(0, caller.runs.count());
}

}  // namespace
}  // namespace treadle::serving_test
