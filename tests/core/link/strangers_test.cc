#include "treadle/core/link/strangers.h"

#include <gtest/gtest.h>

namespace treadle::link::strangers_test {
namespace {

using namespace std::chrono_literals;

const TimePoint kNow = TimePoint(std::chrono::hours(1));

TEST(Strangers, haveOneLineInTheLogAMinuteForEachSource) {
  Strangers strangers;
  std::optional<std::string> first = strangers.refused("10.0.0.1", "it lies", kNow);
  ASSERT_TRUE(first);
  EXPECT_NE(std::string::npos, first->find("10.0.0.1"));
  EXPECT_NE(std::string::npos, first->find("it lies"));
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(strangers.refused("10.0.0.1", "it lies", kNow + i * 1s));
  EXPECT_TRUE(strangers.refused("10.0.0.2", "another", kNow + 8s));
  std::optional<std::string> later = strangers.refused("10.0.0.1", "it lies", kNow + 61s);
  ASSERT_TRUE(later);
  EXPECT_NE(std::string::npos, later->find("7 more"));
}

TEST(Strangers, fromManySourcesDoNotFillTheLog) {
  Strangers strangers;
  int lines = 0;
  for (int i = 0; i < 5000; ++i) lines += strangers.refused(std::to_string(i), "no", kNow) ? 1 : 0;
  EXPECT_EQ(Strangers::kLinesPerMinute, lines);
}

TEST(Strangers, waitForTheirTurnAfterManyRefusalsAndOthersDoNot) {
  Strangers strangers;
  for (int i = 0; i < Strangers::kAtOnce; ++i) {
    EXPECT_EQ(Duration::zero(), strangers.waitOf("10.0.0.1", kNow));
    strangers.refused("10.0.0.1", "no", kNow);
  }
  for (int i = 0; i < Strangers::kPerSecond; ++i) strangers.refused("10.0.0.1", "no", kNow);
  EXPECT_NEAR(1.0, std::chrono::duration<double>(strangers.waitOf("10.0.0.1", kNow)).count(), 0.01);
  EXPECT_EQ(Duration::zero(), strangers.waitOf("10.0.0.2", kNow));
  EXPECT_EQ(Duration::zero(), strangers.waitOf("10.0.0.1", kNow + 2s));
}

// Or a flood of a second would lock an address out for as long as there were refusals in it.
TEST(Strangers, areForgivenWithinSeconds) {
  Strangers strangers;
  for (int i = 0; i < 100'000; ++i) strangers.refused("10.0.0.1", "no", kNow);
  EXPECT_LE(strangers.waitOf("10.0.0.1", kNow), 6s);
  EXPECT_EQ(Duration::zero(), strangers.waitOf("10.0.0.1", kNow + 7s));
}

}  // namespace
}  // namespace treadle::link::strangers_test
