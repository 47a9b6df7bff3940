// Each of the ten codes as a program meets it: by something that it did or that happened to it, with the exception's
// class, its code and the names in it.

#include <gtest/gtest.h>

#include <future>

#include "tests/core/worker/here.h"

namespace treadle::error_codes_test {
namespace {

// Writes one byte and reads eight: a codec with a mistake.
struct Torn {
  int64_t number = 0;
};

}  // namespace
}  // namespace treadle::error_codes_test

namespace treadle::rpc {

template <>
struct Codec<error_codes_test::Torn> {
  static void encode(Encoder& encoder, const error_codes_test::Torn&) { encoder.writer().number(uint8_t{1}); }
  static error_codes_test::Torn decode(Decoder& decoder) { return {Codec<int64_t>::decode(decoder)}; }
  static std::string name() { return "torn"; }
};

}  // namespace treadle::rpc

namespace treadle::error_codes_test {
namespace {

using namespace std::chrono_literals;
using test::contains;
using test::Counter;
using test::Gate;
using test::statusOf;
using test::WorkerJob;

int64_t take(const Torn& torn) { return torn.number; }
std::string echo(const std::string& text) { return text; }
void fail() { throw std::domain_error("no such number"); }
void failInside() { raise(internalError("a defect")); }
int small(int8_t number) { return number; }

struct Small {
  explicit Small(int8_t) {}
};

Functions functions() {
  Functions all;
  all.add<&take>("take").add<&echo>("echo").add<&fail>("fail").add<&failInside>("failInside").add<&small>("small");
  all.add<&test::waitAtGate>("waitAtGate").addType<Small, int8_t>("Small");
  return all;
}

class ErrorCodes : public ::testing::Test {
 protected:
  Counter arrived_;  // these outlive the job
  Gate gate_;
  WorkerJob job_{{"a", "b"}, functions(), [](JoinOptions& options) { options.messageLimits.payloadBytes = 1 << 16; }};
};

TEST_F(ErrorCodes, ofWhatIsWithdrawn) {
  Future<void> waiting = job_[0].async<&test::waitAtGate>("b", arrived_, gate_);
  arrived_.waitFor(1);
  waiting.cancel();
  EXPECT_EQ(Code::kCancelled, statusOf<CancelledError>([&] { waiting.wait(); }).code());
  gate_.open();
}

TEST_F(ErrorCodes, ofALimitThatPasses) {
  Status late =
      statusOf<TimeoutError>([&] { job_[0].with({.timeout = 20ms}).call<&test::waitAtGate>("b", arrived_, gate_); });
  EXPECT_EQ(Code::kDeadlineExceeded, late.code());
  EXPECT_EQ("waitAtGate", late.function());
  EXPECT_EQ("b", late.worker());
  gate_.open();
}

TEST_F(ErrorCodes, ofALostWorker) {
  job_.kill(1);
  Status lost = statusOf<PeerLostError>([&] {
    for (;;) job_[0].call<&echo>("b", "x");
  });
  EXPECT_EQ(Code::kPeerLost, lost.code());
  EXPECT_EQ("b", lost.worker());
}

TEST_F(ErrorCodes, ofTooMuch) {
  Status much = statusOf<ResourceError>([&] { job_[0].call<&echo>("b", std::string(1 << 17, 'x')); });
  EXPECT_EQ(Code::kResourceExhausted, much.code());
  EXPECT_TRUE(contains(much.message(), std::to_string(1 << 16)));
}

TEST_F(ErrorCodes, ofWhatCanNeverWork) {
  Status never = statusOf<ArgumentError>([&] { job_[0].make<Small>("b", 1000).waitUntilReady(); });
  EXPECT_EQ(Code::kInvalidArgument, never.code());
  EXPECT_TRUE(contains(never.message(), "1000"));
}

TEST_F(ErrorCodes, ofWhatCannotWorkNow) {
  Status now = statusOf<StateError>([&] { job_[0].callNamed<int64_t>("b", "small", std::string("text")); });
  EXPECT_EQ(Code::kFailedPrecondition, now.code());
  EXPECT_TRUE(contains(now.message(), "signature"));
}

TEST_F(ErrorCodes, ofANameThatNobodyHas) {
  Status nobody = statusOf<NotFoundError>([&] { job_[0].call<&echo>("c", "x"); });
  EXPECT_EQ(Code::kNotFound, nobody.code());
  EXPECT_TRUE(contains(nobody.message(), "a, b"));
}

TEST_F(ErrorCodes, ofBytesThatCannotBeMeant) {
  Status torn = statusOf<DataError>([&] { job_[0].call<&take>("b", Torn()); });
  EXPECT_EQ(Code::kDataLoss, torn.code());
  EXPECT_EQ("b", torn.worker());
  EXPECT_EQ("x", job_[0].call<&echo>("b", "x"));  // a codec's mistake costs one call
}

TEST_F(ErrorCodes, ofADefect) {
  EXPECT_EQ(Code::kInternal, statusOf<InternalError>([&] { job_[0].call<&failInside>("b"); }).code());
}

TEST_F(ErrorCodes, ofWhatAFunctionThrew) {
  try {
    job_[0].call<&fail>("b");
    FAIL() << "threw nothing";
  } catch (const RemoteError& error) {
    EXPECT_EQ(Code::kInternal, error.code());
    EXPECT_EQ("std::domain_error", error.type());
    EXPECT_EQ("b", error.worker());
    EXPECT_EQ("fail", error.function());
    EXPECT_TRUE(contains(error.what(), "no such number"));
    EXPECT_EQ(error.status().message(), error.what());
  }
}

// Who has another key is told so, and the job begins all the same when who was meant comes.
TEST(ErrorCodesOfJoining, ofAnotherKey) {
  const uint16_t port = test::freePort();
  JoinOptions first = test::joinOptions("a", 0, 2, port), second = test::joinOptions("b", 1, 2, port);
  first.launch->jobKey = second.launch->jobKey = "the key of this very job";
  auto joining = std::async(std::launch::async, [&] { Worker::join(first)->shutdown(); });
  JoinOptions wrong = second;
  wrong.launch->jobKey = "the key of another job altogether";
  EXPECT_EQ(Code::kUnauthenticated, statusOf<AuthError>([&] { Worker::join(wrong); }).code());
  Worker::join(second)->shutdown();
  joining.get();
}

}  // namespace
}  // namespace treadle::error_codes_test
