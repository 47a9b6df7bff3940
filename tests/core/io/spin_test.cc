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
  // One that did not give up would go on for an hour.
  int looks = 0;
  while (looks == 0) {  // right after it has given up once, it does not begin
    Spin spin(std::chrono::hours(1));
    while (spin.again()) ++looks;
  }
  stop.store(true);
  for (std::thread& thread : busy) thread.join();
  EXPECT_GT(looks, 0);
}

}  // namespace
}  // namespace treadle::io::spin_test
