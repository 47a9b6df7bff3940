#include "treadle/core/io/spin.h"

#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/gate.h"

namespace treadle::io::spin_test {
namespace {

TEST(Spin, looksForItsWindowAndNoLonger) {
  const Duration window = std::chrono::milliseconds(5);
  const TimePoint end = test::patience();
  Spin spin(window);
  while (spin.again()) ASSERT_LT(Clock::now(), end);
  EXPECT_FALSE(spin.again());
}

TEST(Spin, looksNotAtAllWithoutAWindow) {
  Spin spin(Duration::zero());
  EXPECT_FALSE(spin.again());
}

// Where every core has work, a thread that would spin sleeps instead: it looks a few times in a long window.
TEST(Spin, givesUpWhenAllCoresAreBusy) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> busy;
  for (unsigned i = 0; i < 4 * std::max(1U, std::thread::hardware_concurrency()); ++i)
    busy.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {}
    });
  // A Spin does not begin right after another one has given up.
  int looks = 0;
  bool gaveUp = false;
  for (const TimePoint end = test::patience(); looks == 0 && Clock::now() < end;) {
    const TimePoint begun = Clock::now();
    Spin spin(test::kHangs);
    while (spin.again()) ++looks;
    gaveUp = Clock::now() < begun + test::kHangs;
  }
  stop.store(true);
  for (std::thread& thread : busy) thread.join();
  EXPECT_GT(looks, 0);
  EXPECT_TRUE(gaveUp);
}

}  // namespace
}  // namespace treadle::io::spin_test
