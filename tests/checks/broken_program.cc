// Cases that are broken on purpose, each in one manner; reruns.py runs them one at a time. BROKEN_STATE names a file
// that counts how often a case has run.

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/gate.h"
#include "tests/support/seeds.h"

namespace treadle::broken_program {
namespace {

// How often the case has run before.
int runsBefore() {
  const std::string path = std::getenv("BROKEN_STATE");
  int runs = 0;
  std::ifstream(path) >> runs;
  std::ofstream(path) << runs + 1;
  return runs;
}

// Fails as a wait does whose event did not come in time.
void expectInTime(bool inTime) {
  if (!inTime) ADD_FAILURE() << test::waitedInVain("it did not become true").message();
}

TEST(Broken, isLateTheFirstTimeOnly) { expectInTime(runsBefore() > 0); }

TEST(Broken, isLateTheFirstTwoTimes) { expectInTime(runsBefore() > 1); }

TEST(Broken, hasAWrongValueOneTimeInTwo) { EXPECT_EQ(4, 4 + runsBefore() % 2) << "one time in two"; }

TEST(Broken, hasAWrongValueBeforeItIsLate) {
  EXPECT_EQ(4, 5) << "a wrong value";
  expectInTime(false);
}

TEST(Broken, isLateOnceWithAFixedSeed) {
  test::forSeeds(1, [](test::Random&) { expectInTime(runsBefore() > 0); });
}

TEST(Broken, waitsForAnEventThatNeverComes) {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// Passes alone, and not after the first half.
int halves = 0;
TEST(Broken, dependsOnOrderFirstHalf) { halves = 1; }
TEST(Broken, dependsOnOrderSecondHalf) { expectInTime(halves == 0); }

class FailsOutsideOfItsCases : public ::testing::Test {
 public:
  static void TearDownTestSuite() { EXPECT_GT(runsBefore(), 0) << "after the last case"; }
};
TEST_F(FailsOutsideOfItsCases, passes) {}

TEST(Broken, crashesOnce) {
  if (runsBefore() == 0) std::abort();
}

TEST(Broken, leaksOnce) {
  if (runsBefore() == 0) {
    // Volatile, or the compiler would leave the allocation out.
    void* volatile lost = std::malloc(1000);
    lost = nullptr;
    EXPECT_EQ(nullptr, lost);
  }
}

TEST(Broken, racesOnce) {
  if (runsBefore() > 0) return;
  int shared = 0;
  std::thread other([&] { shared = 1; });
  shared = 2;
  other.join();
  EXPECT_GT(shared, 0);
}

}  // namespace
}  // namespace treadle::broken_program
