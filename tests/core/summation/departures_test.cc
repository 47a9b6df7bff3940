#include "treadle/core/summation/departures.h"

#include <gtest/gtest.h>

namespace treadle::summation::departures_test {
namespace {

Frame leaveAfter(uint64_t sums) { return {FrameKind::kLeave, 0, 0, sums, 0}; }

TEST(Departures, KnowWhoHasLeftAndAfterHowManySums) {
  Departures departures(2);
  EXPECT_FALSE(departures.hasLeft(0) || departures.hasLeft(1) || departures.allHaveLeft());
  EXPECT_TRUE(departures.left(1, leaveAfter(3)).ok());
  EXPECT_TRUE(departures.hasLeft(1));
  EXPECT_FALSE(departures.hasLeft(0) || departures.allHaveLeft());
  EXPECT_EQ(std::nullopt, departures.leftBefore(3));
  EXPECT_EQ(1U, departures.leftBefore(4).value());
  EXPECT_EQ(3U, departures.sumsOf(1));
  EXPECT_TRUE(departures.left(0, leaveAfter(0)).ok());
  EXPECT_TRUE(departures.allHaveLeft());
}

TEST(Departures, RefuseWhatNoWorkerSends) {
  Departures departures(2);
  EXPECT_EQ(Code::kDataLoss, departures.left(2, leaveAfter(0)).code());  // a server
  EXPECT_FALSE(departures.hasLeft(2));
  EXPECT_TRUE(departures.left(0, leaveAfter(5)).ok());
  EXPECT_EQ(Code::kDataLoss, departures.left(0, leaveAfter(5)).code());  // once more
  EXPECT_EQ(Code::kDataLoss, departures.left(1, {FrameKind::kLeave, 0, 1, 0, 0}).code());
  EXPECT_EQ(Code::kDataLoss, departures.left(1, {FrameKind::kLeave, 0, 0, 0, 1}).code());
  EXPECT_FALSE(departures.hasLeft(1));
}

}  // namespace
}  // namespace treadle::summation::departures_test
