#include "treadle/core/base/status.h"

#include "gtest/gtest.h"
#include "treadle/core/base/clock.h"
#include "treadle/core/base/error.h"

namespace treadle::status_test {
namespace {

using namespace std::chrono_literals;

TEST(Status, isOkByDefaultAndCarriesAFailureThroughCopies) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ("OK", Status().toString());
  Status failed = peerLost("ps", "it died").withContext("the step");
  Status copy = failed;
  EXPECT_EQ(Code::kPeerLost, copy.code());
  EXPECT_EQ("ps", copy.worker());
  EXPECT_EQ("PeerLost: the step: it died", copy.toString());
  copy = Status();
  EXPECT_TRUE(copy.ok());
  EXPECT_FALSE(failed.ok());
}

TEST(Status, contextOfSuccessIsSuccess) { EXPECT_TRUE(Status().withContext("anything").ok()); }

TEST(Status, codesKeepTheirNumbers) {
  // They travel: a renumbering would make old and new releases misunderstand each other.
  EXPECT_EQ(1, static_cast<int>(Code::kCancelled));
  EXPECT_EQ(3, static_cast<int>(Code::kPeerLost));
  EXPECT_EQ(10, static_cast<int>(Code::kInternal));
  EXPECT_TRUE(isCode(0));
  EXPECT_TRUE(isCode(10));
  EXPECT_FALSE(isCode(11));
  EXPECT_EQ("Unknown", codeName(static_cast<Code>(200)));
}

TEST(Result, holdsAValueOrAFailure) {
  Result<std::unique_ptr<int>> good(std::make_unique<int>(4));
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(4, **good);
  EXPECT_EQ(4, *std::move(good).value());
  Result<int> bad(notFound("nothing there"));
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(Code::kNotFound, bad.status().code());
}

TEST(ResultDeathTest, readingTheValueOfAFailureIsADefectOfTheReader) {
  Result<int> bad(notFound("nothing there"));
  EXPECT_DEATH((void)*bad, "nothing there");
}

template <class Expected>
void expectRaises(Status status) {
  Code code = status.code();
  try {
    raise(std::move(status));
  } catch (const Expected& error) {
    EXPECT_EQ(code, error.code());
    EXPECT_STREQ("why", error.what());
    return;
  } catch (...) {}
  ADD_FAILURE() << "another exception for " << codeName(code);
}

TEST(Error, hasOneClassPerCode) {
  expectRaises<CancelledError>(cancelled("why"));
  expectRaises<TimeoutError>(deadlineExceeded("why"));
  expectRaises<PeerLostError>(peerLost("w", "why"));
  expectRaises<ResourceError>(resourceExhausted("why"));
  expectRaises<ArgumentError>(invalidArgument("why"));
  expectRaises<StateError>(failedPrecondition("why"));
  expectRaises<NotFoundError>(notFound("why"));
  expectRaises<DataError>(dataLoss("why"));
  expectRaises<AuthError>(unauthenticated("why"));
  expectRaises<InternalError>(internalError("why"));
  expectRaises<RemoteError>(internalError("why").withRemoteType("std::runtime_error"));
}

TEST(Error, anExceptionBecomesAStatusAndBack) {
  auto caught = [](auto thrown) {
    try {
      throw thrown;
    } catch (...) {
      return statusOfCurrentException("scale");
    }
  };
  Status own = caught(PeerLostError(peerLost("ps", "gone").withFunction("other")));
  EXPECT_EQ("ps", own.worker());
  EXPECT_EQ("other", own.function());  // an Error keeps what it knows
  Status foreign = caught(std::out_of_range("index 7"));
  EXPECT_EQ("index 7", foreign.message());
  EXPECT_EQ("scale", foreign.function());
  EXPECT_EQ("std::out_of_range", foreign.remoteType());
  EXPECT_EQ("unknown", caught(42).remoteType());
}

TEST(Clock, aLimitThatWouldOverflowNeverPasses) {
  EXPECT_EQ(kNever, deadlineAfter(kNoTimeout));
  EXPECT_EQ(kNever, deadlineAfter(kNoTimeout - 1ns));
  EXPECT_LT(deadlineAfter(1h), kNever);
}

TEST(Clock, durationsReadWell) {
  EXPECT_EQ("5 s", toText(5s));
  EXPECT_EQ("1.5 s", toText(1500ms));
  EXPECT_EQ("20 ms", toText(20ms));
  EXPECT_EQ("0 ms", toText(0ms));
}

}  // namespace
}  // namespace treadle::status_test
