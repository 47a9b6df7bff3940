// Each moment of a rank belongs to one activity: the parts of a step add up to its length, whatever happens when.

#include <array>

#include "tests/support/seeds.h"
#include "treadle/train/ddp/step_clock.h"

namespace treadle::test::step_clock_test {
namespace {

using ddp::Activity;

Duration partOf(const DdpTimes& times, size_t activity) {
  return std::array{times.outside, times.compute, times.copies, times.exposed}.at(activity);
}

// Against sums that are kept by hand.
TEST(StepClock, GivesEachMomentToOneActivity) {
  forSeeds(20, [](Random& random) {
    TimePoint now(std::chrono::nanoseconds(1 + pick(random, 1000)));
    const TimePoint begin = now;
    ddp::StepClock clock(begin);
    size_t activity = 0;
    Duration inAllSteps{};
    for (int step = 0; step < 5; ++step) {
      std::array<Duration, 4> expected{};
      for (uint64_t turns = pick(random, 30); turns > 0; --turns) {
        const Duration length = std::chrono::nanoseconds(pick(random, 100));
        now += length;
        expected.at(activity) += length;
        const size_t next = pick(random, 4);
        EXPECT_EQ(clock.turnTo(static_cast<Activity>(next), now), static_cast<Activity>(activity));
        activity = next;
      }
      const Duration soFar = clock.times().step();
      const DdpTimes times = clock.endStep();
      for (size_t part = 0; part < expected.size(); ++part) EXPECT_EQ(partOf(times, part), expected.at(part)) << part;
      EXPECT_EQ(times.step(), soFar);
      EXPECT_EQ(clock.times().step(), Duration::zero());
      inAllSteps += times.step();
    }
    EXPECT_EQ(inAllSteps, now - begin);
  });
}

}  // namespace
}  // namespace treadle::test::step_clock_test
