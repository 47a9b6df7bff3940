#include "treadle/core/rpc/deadlines.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/seeds.h"

namespace treadle::rpc::deadlines_test {
namespace {

TimePoint at(uint64_t microseconds) { return TimePoint(std::chrono::microseconds(microseconds)); }

TEST(Deadlines, takesThoseThatAreDueInTheirOrder) {
  Deadlines deadlines;
  const auto all = [](uint64_t) { return true; };
  for (uint64_t id : {3, 1, 4, 2}) deadlines.add(at(10 * id), id, 4, all);
  EXPECT_EQ(at(10), deadlines.next(all));
  EXPECT_EQ((std::vector<uint64_t>{1, 2, 3}), deadlines.takeDue(at(30), all));
  EXPECT_EQ(at(40), deadlines.next(all));
  EXPECT_EQ((std::vector<uint64_t>{4}), deadlines.takeDue(kNever, all));
  EXPECT_EQ(kNever, deadlines.next(all));
}

TEST(Deadlines, doesWhatAMapOfThePendingCallsWould) {
  test::forSeeds(50, [](test::Random& random) {
    Deadlines deadlines(0);  // drops the entries of ended calls as often as it can
    std::map<uint64_t, TimePoint> pending;
    const auto isPending = [&](uint64_t id) { return pending.contains(id); };
    uint64_t now = 0, lastId = 0;
    size_t dropped = 0;
    for (int step = 0; step < 3000; ++step) {
      const uint64_t what = test::pick(random, 10);
      if (what < 5) {
        const TimePoint due = at(now + 1 + test::pick(random, 1000));
        pending.emplace(++lastId, due);
        const size_t before = deadlines.size();
        deadlines.add(due, lastId, pending.size(), isPending);
        if (deadlines.size() <= before) ++dropped;
      } else if (what < 9) {
        if (!pending.empty()) pending.erase(std::next(pending.begin(), test::pick(random, pending.size())));
      } else {
        now += test::pick(random, 300);
        std::multimap<TimePoint, uint64_t> expected;
        for (const auto& [id, due] : pending)
          if (due <= at(now)) expected.emplace(due, id);
        TimePoint last{};
        for (uint64_t id : deadlines.takeDue(at(now), isPending)) {
          ASSERT_TRUE(pending.contains(id));
          ASSERT_LE(last, pending[id]);
          last = pending[id];
          expected.erase(std::find_if(expected.begin(), expected.end(), [&](auto& one) { return one.second == id; }));
          pending.erase(id);
        }
        ASSERT_TRUE(expected.empty());
      }
      TimePoint next = kNever;
      for (const auto& [id, due] : pending) next = std::min(next, due);
      ASSERT_EQ(next, deadlines.next(isPending));
    }
    EXPECT_GT(dropped, 0U);
  });
}

// Each call has a deadline of its own: what one costs does not grow with the number of those that are pending.
TEST(Deadlines, looksAtEachCallAFewTimesOnly) {
  constexpr uint64_t kCalls = 100'000;
  Deadlines deadlines;
  uint64_t looks = 0;
  const auto isPending = [&](uint64_t) {
    ++looks;
    return true;
  };
  for (uint64_t id = 1; id <= kCalls; ++id) deadlines.add(at(id), id, id, isPending);
  for (uint64_t now = 1; now <= kCalls; ++now) {
    ASSERT_EQ(1U, deadlines.takeDue(at(now), isPending).size());
    ASSERT_EQ(now < kCalls ? at(now + 1) : kNever, deadlines.next(isPending));
  }
  EXPECT_LE(looks, 3 * kCalls);
}

TEST(Deadlines, keepsFewEntriesOfCallsThatHaveEnded) {
  Deadlines deadlines;
  uint64_t last = 0;
  size_t most = 0;
  for (uint64_t id = 1; id <= 100'000; ++id) {
    last = id;
    deadlines.add(at(id), id, 1, [&](uint64_t one) { return one == last; });
    most = std::max(most, deadlines.size());
  }
  EXPECT_LE(most, 2000U);
}

}  // namespace
}  // namespace treadle::rpc::deadlines_test
