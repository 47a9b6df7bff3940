// The seam through which rooms above rpc join in calls (rpc/interceptor.h): what they are told, when, and what becomes
// of it when they, or the values, fail.

#include "treadle/core/rpc/interceptor.h"

#include <gtest/gtest.h>

#include "tests/core/worker/here.h"

namespace treadle::interceptor_test {
namespace {

using test::Counter;
using test::messageOf;
using test::WorkerJob;

std::vector<std::byte> bytesOf(const std::string& text) {
  Bytes bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

thread_local bool inScope = false, readsForOthers = false;

// What all workers' interceptors were told.
struct Told {
  Counter requests, replies, arrivals, decoded, abandoned, scopes, losses, ends;
  std::atomic<int> scopesAtMost = 1000;
};

struct Outgoing final : rpc::OutgoingHook {
  Outgoing(Told& log, std::string text) : told(log), mark(std::move(text)) {}
  std::vector<std::byte> field() override { return bytesOf(mark); }
  void abandon() override { told.abandoned.add(); }
  Told& told;
  const std::string mark;
};

struct Incoming final : rpc::IncomingHook {
  explicit Incoming(Told& log) : told(log) {}
  void decoded() override { told.decoded.add(); }
  Told& told;
};

struct Scope final : rpc::HandlerScope {
  Scope() { inScope = true; }
  ~Scope() override { inScope = false; }
};

struct Reading final : rpc::ReadingScope {
  Reading() { readsForOthers = true; }
  ~Reading() override { readsForOthers = false; }
};

class Marking final : public rpc::Interceptor {
 public:
  explicit Marking(Told& told) : told_(told) {}
  ~Marking() override { told_.ends.add(); }

  std::unique_ptr<rpc::OutgoingHook> onRequest(int, const std::string& function) override {
    told_.requests.add();
    return std::make_unique<Outgoing>(told_, function == "refusedThere" ? "bad" : "mark");
  }
  std::unique_ptr<rpc::OutgoingHook> onReply(int, const std::string&, rpc::IncomingHook* request) override {
    EXPECT_NE(nullptr, request) << "the request came with a field";
    told_.replies.add();
    return std::make_unique<Outgoing>(told_, "mark");
  }
  std::shared_ptr<rpc::IncomingHook> onArrival(int, Bytes field) override {
    if (std::vector(field.begin(), field.end()) != bytesOf("mark")) raise(dataLoss("a field that is none"));
    told_.arrivals.add();
    return std::make_shared<Incoming>(told_);
  }
  std::unique_ptr<rpc::HandlerScope> onHandler(const std::string&, rpc::IncomingHook*) override {
    told_.scopes.add();
    if (told_.scopes.count() > told_.scopesAtMost) raise(resourceExhausted("no scope is left"));
    return std::make_unique<Scope>();
  }
  std::unique_ptr<rpc::ReadingScope> onReading() override { return std::make_unique<Reading>(); }
  void onLost(int) override { told_.losses.add(); }

  Future<bool> kept;  // as a backward pass keeps the calls that it waits for

 private:
  Told& told_;
};

struct Unsendable {
  int number = 0;
};

// Notes whether the thread that decodes it reads for others.
struct Read {
  bool forOthers = false;
};

}  // namespace
}  // namespace treadle::interceptor_test

namespace treadle::rpc {

// Travels until somebody tries.
template <>
struct Codec<interceptor_test::Unsendable> {
  static void encode(Encoder&, const interceptor_test::Unsendable&) {
    raise(invalidArgument("it does not travel after all"));
  }
  static interceptor_test::Unsendable decode(Decoder&) { return {}; }
  static std::string name() { return "unsendable"; }
};

template <>
struct Codec<interceptor_test::Read> {
  static void encode(Encoder&, const interceptor_test::Read&) {}
  static interceptor_test::Read decode(Decoder&) { return {interceptor_test::readsForOthers}; }
  static std::string name() { return "read"; }
};

}  // namespace treadle::rpc

namespace treadle::interceptor_test {
namespace {

bool scoped(int) { return inScope; }
Task<bool> scopedAfter(CallContext& call, int64_t milliseconds) {
  co_await call.worker().after(std::chrono::milliseconds(milliseconds));
  co_return inScope;
}
int refusedThere(int number) { return number; }
Unsendable unsendable(int number) { return {number}; }
Read read() { return {}; }

Functions functions() {
  Functions all;
  return all.add<&scoped>("scoped")
      .add<&refusedThere>("refusedThere")
      .add<&unsendable>("unsendable")
      .add<&read>("read")
      .add<&scopedAfter>("scopedAfter");
}

WorkerJob::Join joinMarking(Told& told) {
  return [&told](JoinOptions options) {
    WorkerExtensions extensions;
    extensions.interceptor = [&told](Worker&) { return std::make_unique<Marking>(told); };
    return Worker::join(std::move(options), std::move(extensions));
  };
}

class InterceptorTest : public ::testing::Test {
 protected:
  Told told_;
  WorkerJob job_{{"a", "b"}, functions(), {}, joinMarking(told_)};
};

TEST_F(InterceptorTest, isToldOfEachMessageOnBothSides) {
  EXPECT_TRUE(job_[0].call<&scoped>("b", 1)) << "its scope is there while the handler runs";
  EXPECT_EQ(1, told_.requests.count());
  EXPECT_EQ(1, told_.replies.count());
  EXPECT_EQ(2, told_.arrivals.count());
  EXPECT_EQ(2, told_.decoded.count());
  EXPECT_EQ(1, told_.scopes.count());
  EXPECT_EQ(0, told_.abandoned.count());
}

TEST_F(InterceptorTest, answersWithWhatItThrows) {
  EXPECT_TRUE(
      test::contains(messageOf<DataError>([&] { job_[0].call<&refusedThere>("b", 1); }), "a field that is none"));
  EXPECT_TRUE(job_[0].call<&scoped>("b", 1)) << "that call alone failed";
}

TEST_F(InterceptorTest, hasItsScopeAroundWhatAWaitingCallerReads) {
  // Another thread may read first while the workers agree on memory to share.
  EXPECT_TRUE(test::eventually([&] { return job_[0].call<&read>("b").forOthers; }));
  EXPECT_FALSE(readsForOthers);
}

TEST_F(InterceptorTest, mayRefuseWhereATaskGoesOn) {
  EXPECT_TRUE(job_[0].call<&scopedAfter>("b", 1)) << "its scope is there in each stretch";
  told_.scopesAtMost = told_.scopes.count() + 1;
  EXPECT_TRUE(
      test::contains(messageOf<ResourceError>([&] { job_[0].call<&scopedAfter>("b", 1); }), "no scope is left"));
  told_.scopesAtMost = 1000;
  EXPECT_TRUE(job_[0].call<&scoped>("b", 1)) << "that call alone failed";
}

TEST_F(InterceptorTest, letsGoOfWhatItMadeForAnAnswerThatCannotBeSent) {
  messageOf<ArgumentError>([&] { job_[0].call<&unsendable>("b", 1); });
  EXPECT_EQ(1, told_.abandoned.count());
}

TEST(InterceptorLife, endsWithItsWorkerAlsoWhenItKeepsACall) {
  Told told;
  {
    WorkerJob job({"a", "b"}, functions(), {}, joinMarking(told));
    Future<bool> call = job[0].async<&scoped>("b", 1);
    dynamic_cast<Marking&>(*job[0].engine().interceptor()).kept = call;
    EXPECT_TRUE(call.wait());
  }
  EXPECT_EQ(2, told.ends.count());
}

TEST_F(InterceptorTest, hearsWhoIsLost) {
  job_.kill(1);
  told_.losses.waitFor(1);
}

}  // namespace
}  // namespace treadle::interceptor_test
