#include "treadle/core/io/spin.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace treadle::io::spin_test {
namespace {

TEST(Spin, looksForItsWindowAndNoLonger) {
  const Duration window = std::chrono::milliseconds(5);
  TimePoint begin = Clock::now();
  Spin spin(window);
  while (spin.again()) ASSERT_LT(Clock::now() - begin, std::chrono::seconds(30));
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
  int longest = 0;
  bool gaveUp = false;
  for (int round = 0; round < 1000 && !gaveUp; ++round) {
    TimePoint begin = Clock::now();
    Spin spin(std::chrono::seconds(1));
    int looks = 0;
    while (spin.again()) ++looks;
    gaveUp = Clock::now() - begin < std::chrono::seconds(1);
    longest = std::max(longest, looks);
  }
  stop.store(true);
  for (std::thread& thread : busy) thread.join();
  EXPECT_TRUE(gaveUp) << longest;
}

}  // namespace
}  // namespace treadle::io::spin_test
