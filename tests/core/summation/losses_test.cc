#include "treadle/core/summation/losses.h"

#include <gtest/gtest.h>

namespace treadle::summation::losses_test {
namespace {

using std::chrono::seconds;

const TimePoint kBegin{};
const Status kClosed = peerLost("w1", "its connection closed"), kKilled = peerLost("w1", "it was killed");

TEST(Losses, CountAtOnceWhereTheConnectionEndsAndTheJobReportsIt) {
  for (const bool reportIsFirst : {false, true}) {
    Losses losses(3, seconds(2));
    EXPECT_EQ(std::nullopt, losses.due());
    if (reportIsFirst) losses.reported(1, kKilled, kBegin);
    losses.connectionEnded(1, kClosed, kBegin + seconds(1));
    if (!reportIsFirst) losses.reported(1, kKilled, kBegin + seconds(1));
    EXPECT_EQ("it was killed", losses.certain(kBegin + seconds(1))->why.message());
  }
}

TEST(Losses, CountAfterAWhileWhereOneSignIsAlone) {
  for (const bool isReport : {false, true}) {
    Losses losses(3, seconds(2));
    isReport ? losses.reported(1, kKilled, kBegin) : losses.connectionEnded(1, kClosed, kBegin);
    EXPECT_FALSE(losses.certain(kBegin + seconds(1)));
    EXPECT_EQ(kBegin + seconds(2), losses.due());
    EXPECT_EQ(isReport ? kKilled.message() : kClosed.message(), losses.certain(kBegin + seconds(2))->why.message());
  }
}

TEST(Losses, AreOfTheFirstMachine) {
  Losses losses(3, seconds(2));
  losses.connectionEnded(2, kClosed, kBegin);
  losses.connectionEnded(1, peerLost("w2", "later"), kBegin + seconds(1));
  losses.connectionEnded(2, peerLost("w1", "once more"), kBegin + seconds(1));
  EXPECT_EQ(kClosed.message(), losses.certain(kBegin + seconds(9))->why.message());
}

// One that is silent has one sign; those that leave over it have both.
TEST(Losses, AreOfTheMachineThatWasReportedFirst) {
  Losses losses(3, seconds(2));
  losses.reported(2, peerLost("w2", "it is silent"), kBegin);
  losses.reported(1, kKilled, kBegin + std::chrono::milliseconds(1));
  losses.connectionEnded(1, kClosed, kBegin + std::chrono::milliseconds(1));
  EXPECT_EQ("it is silent", losses.certain(kBegin + std::chrono::milliseconds(1))->why.message());
}

TEST(Losses, AreNoneWhereTheServiceEnded) {
  Losses losses(2, seconds(2));
  losses.reported(1, kKilled, kBegin);
  losses.ignore(1);
  losses.connectionEnded(1, kClosed, kBegin);
  losses.reported(1, kKilled, kBegin);
  EXPECT_FALSE(losses.certain(kBegin + seconds(9)));
  EXPECT_EQ(std::nullopt, losses.due());
}

}  // namespace
}  // namespace treadle::summation::losses_test
