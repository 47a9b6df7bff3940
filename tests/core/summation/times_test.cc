#include "treadle/core/summation/times.h"

#include <gtest/gtest.h>

#include <array>

#include "treadle/core/base/error.h"
#include "treadle/core/summation/activity.h"

namespace treadle::summation::times_test {
namespace {

using Kind = Activity::Kind;

constexpr Duration kSecond = std::chrono::seconds(1);

SummationTimes someTimes() {
  return {.service = "gradients of a group",
          .number = 0xffff'ffff'ffff'ffff,
          .worker = "worker 1",
          .workers = {"worker 0", "worker 1"},
          .servers = {"server 2"},
          .isAsynchronous = true,
          .sums = 20,
          .bytes = 80'000'000,
          .bytesSent = 60'000'000,
          .bytesReceived = 61'000'000,
          .waiting = kSecond,
          .moving = 2 * kSecond,
          .computing = Duration(1)};
}

TEST(SummationTimesText, IsReadAsItWasWritten) {
  EXPECT_EQ(someTimes(), valueOrThrow(parseTimes(textOf(someTimes()))));
  SummationTimes alone{.worker = "a", .workers = {"a"}};
  EXPECT_EQ(alone, valueOrThrow(parseTimes(textOf(alone))));
}

// A name may have been chosen to look like other lines.
TEST(SummationTimesText, HasALineForEachValueWhateverTheNames) {
  SummationTimes times = someTimes();
  times.service = "a\nsums 7\r";
  const SummationTimes read = valueOrThrow(parseTimes(textOf(times)));
  EXPECT_EQ("a sums 7 ", read.service);
  EXPECT_EQ(20u, read.sums);
}

TEST(SummationTimesText, IsRefusedWhereItIsNone) {
  const std::string text = textOf(someTimes()), kEnd = "end\n", lines = text.substr(0, text.size() - kEnd.size());
  ASSERT_EQ(lines + kEnd, text);
  for (const std::string& wrong : {std::string(), std::string("\n"), kEnd, text.substr(0, text.find('\n') + 1),
                                   "x" + text, lines, text.substr(0, text.size() - 10), text + "\n"})
    EXPECT_EQ(Code::kInvalidArgument, parseTimes(wrong).status().code()) << wrong;
  for (const std::string line :
       {"sums", "sums -1", "sums 1 ", "sums 99999999999999999999", "waiting-ns -1", "waiting-ns 9223372036854775807",
        "asynchronous 2", "unknown 1", "", "worker nobody", "service \x1b[2J"})
    EXPECT_EQ(Code::kInvalidArgument, parseTimes(lines + line + "\n" + kEnd).status().code()) << line;
  const std::string withoutWorkers = textOf({.worker = "server 2", .servers = {"server 2"}});
  EXPECT_EQ(Code::kInvalidArgument, parseTimes(withoutWorkers).status().code());
}

TEST(Activity, CountsTheTimeUntilTheNextKind) {
  Activity activity;
  TimePoint now = Clock::now();
  const std::array kinds = {Kind::kComputing, Kind::kWaiting, Kind::kMoving, Kind::kComputing, Kind::kIdle};
  for (size_t i = 0; i < kinds.size(); ++i) activity.become(kinds[i], now += static_cast<int>(i + 1) * kSecond);
  EXPECT_EQ(2 * kSecond + 5 * kSecond, activity.spent(Kind::kComputing));
  EXPECT_EQ(3 * kSecond, activity.spent(Kind::kWaiting));
  EXPECT_EQ(4 * kSecond, activity.spent(Kind::kMoving));
}

}  // namespace
}  // namespace treadle::summation::times_test
