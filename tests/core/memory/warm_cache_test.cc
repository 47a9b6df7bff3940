#include "treadle/core/memory/warm_cache.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "gtest/gtest.h"
#include "tests/support/gate.h"
#include "tests/support/seeds.h"
#include "treadle/core/base/error.h"
#include "treadle/core/memory/block_pool.h"

namespace treadle::memory::warm_cache_test {
namespace {

constexpr size_t kMiB = 1U << 20;

WarmCache cacheOf(size_t limitBytes) { return WarmCache(std::make_shared<MemoryBudget>(limitBytes)); }

bool allAre(const std::byte* block, size_t sizeBytes, unsigned char value) {
  return block[0] == std::byte{value} && std::memcmp(block, block + 1, sizeBytes - 1) == 0;
}

TEST(WarmCache, takesTheBlockThatWasGivenLast) {
  WarmCache cache = cacheOf(64 * kMiB);
  std::byte *a = cache.take(kMiB), *b = cache.take(kMiB);
  ASSERT_TRUE(a != nullptr && b != nullptr && a != b);
  EXPECT_TRUE(cache.give(a));
  EXPECT_TRUE(cache.give(b));
  EXPECT_EQ(b, cache.take(kMiB));
  EXPECT_EQ(a, cache.take(kMiB - 100));
  EXPECT_EQ(2U, cache.counters().reused);
}

TEST(WarmCache, takesABlockOfTheNextClassBeforeFreshMemory) {
  WarmCache cache = cacheOf(64 * kMiB);
  std::byte *next = cache.take(kMiB + kMiB / 4), *far = cache.take(4 * kMiB);
  cache.give(far);
  cache.give(next);
  EXPECT_EQ(next, cache.take(kMiB));
  cache.take(kMiB);
  EXPECT_EQ(1U, cache.counters().reused) << "most of the other one would lie idle";
}

TEST(WarmCache, leavesOtherMemoryAlone) {
  WarmCache cache = cacheOf(64 * kMiB);
  std::byte other{};
  EXPECT_FALSE(cache.give(&other));
  EXPECT_FALSE(cache.give(nullptr));
  std::byte* block = cache.take(kMiB);
  EXPECT_FALSE(cache.give(block + 64));
  EXPECT_TRUE(cache.give(block));
  EXPECT_FALSE(cache.give(block)) << "it was given already";
}

TEST(WarmCache, hasNoMoreThanTheSystem) {
  WarmCache cache = cacheOf(SIZE_MAX);
  EXPECT_EQ(nullptr, cache.take(size_t{1} << 50)) << "more than an address space";
  EXPECT_EQ(nullptr, cache.take(SIZE_MAX));
  EXPECT_EQ(0U, cache.counters().usedBytes);
}

TEST(WarmCache, staysWithinItsLimit) {
  WarmCache cache = cacheOf(3 * kMiB);
  std::byte *a = cache.take(kMiB), *b = cache.take(kMiB), *c = cache.take(kMiB);
  ASSERT_TRUE(a != nullptr && b != nullptr && c != nullptr);
  EXPECT_EQ(nullptr, cache.take(kMiB));
  cache.give(a);
  cache.give(b);
  EXPECT_EQ(2 * kMiB, cache.counters().keptBytes);
  std::byte* large = cache.take(2 * kMiB);
  EXPECT_NE(nullptr, large);
  EXPECT_EQ(0U, cache.counters().keptBytes) << "what is kept gives way to fresh memory";
  cache.give(large);
  cache.give(c);
}

TEST(WarmCache, givesBackTheOldestFirst) {
  WarmCache cache = cacheOf(3 * kMiB);
  std::byte *a = cache.take(kMiB), *b = cache.take(kMiB), *c = cache.take(kMiB);
  for (std::byte* block : {b, a, c}) cache.give(block);
  std::byte* other = cache.take(kMiB / 2);  // which one of them has to make room for
  EXPECT_EQ(2 * kMiB, cache.counters().keptBytes);
  EXPECT_EQ(c, cache.take(kMiB));
  EXPECT_EQ(a, cache.take(kMiB));
  cache.give(other);
}

TEST(WarmCache, trimReturnsWhatIsKeptAndNothingElse) {
  WarmCache cache = cacheOf(64 * kMiB);
  std::byte *used = cache.take(kMiB), *kept = cache.take(kMiB);
  std::memset(used, 7, kMiB);
  cache.give(kept);
  cache.trim();
  EXPECT_EQ(0U, cache.counters().keptBytes);
  EXPECT_EQ(-1, ::madvise(kept, kMiB, MADV_NORMAL)) << "its pages are mapped still";
  EXPECT_TRUE(allAre(used, kMiB, 7));
}

TEST(WarmCache, trimIdleReturnsWhatNobodyTookForThatLong) {
  WarmCache cache = cacheOf(64 * kMiB);
  std::byte *a = cache.take(kMiB), *b = cache.take(2 * kMiB);
  cache.give(a);
  cache.give(b);
  cache.trimIdle(std::chrono::hours(1));
  EXPECT_EQ(3 * kMiB, cache.counters().keptBytes);
  cache.trimIdle(Duration::zero());
  EXPECT_EQ(0U, cache.counters().keptBytes);
}

// Against a list of what is in use, each block full of its own byte.
TEST(WarmCache, isRightForAnyOrderOfSizes) {
  test::forSeeds(30, [](test::Random& random) {
    constexpr size_t kLimit = 4 * kMiB;
    WarmCache cache = cacheOf(kLimit);
    struct Use {
      std::byte* block;
      size_t sizeBytes;
      unsigned char value;
    };
    std::vector<Use> uses;
    size_t peak = 0;
    for (int i = 0; i < 400; ++i) {
      if (uses.empty() || (uses.size() < 20 && test::pick(random, 2) == 0)) {
        const size_t size = WarmCache::kSmallest + test::pick(random, kMiB / 2);
        Use use{cache.take(size), size, static_cast<unsigned char>(i)};
        if (use.block == nullptr) continue;  // it is at its limit
        std::memset(use.block, use.value, size);
        uses.push_back(use);
      } else {
        std::swap(uses[test::pick(random, uses.size())], uses.back());
        ASSERT_TRUE(allAre(uses.back().block, uses.back().sizeBytes, uses.back().value));
        ASSERT_TRUE(cache.give(uses.back().block));
        uses.pop_back();
      }
      if (test::pick(random, 50) == 0) cache.trimIdle(std::chrono::microseconds(test::pick(random, 1000)));
      const WarmCounters now = cache.counters();
      size_t asked = 0;
      for (const Use& use : uses) asked += use.sizeBytes;
      peak = std::max(peak, now.usedBytes);
      ASSERT_GE(now.usedBytes, asked);
      ASSERT_LE(now.usedBytes + now.keptBytes, kLimit);
      ASSERT_LE(static_cast<double>(now.usedBytes + now.keptBytes),
                static_cast<double>(peak) * (1 + WarmCache::kMostBeyondPeak));
    }
    for (const Use& use : uses) ASSERT_TRUE(cache.give(use.block));
    ASSERT_EQ(0U, cache.counters().usedBytes);
  });
}

TEST(WarmCache, servesManyThreads) {
  WarmCache cache = cacheOf(64 * kMiB);
  std::vector<std::thread> threads;
  for (unsigned char value = 1; value <= 4; ++value) {
    threads.emplace_back([&cache, value] {
      test::Random random(value);
      for (int i = 0; i < 500; ++i) {
        const size_t size = WarmCache::kSmallest * (1 + test::pick(random, 4));
        std::byte* block = cache.take(size);
        ASSERT_NE(nullptr, block);
        std::memset(block, value, size);
        if (i % 100 == 0) cache.trim();
        if (i % 100 == 50) cache.trimIdle(Duration::zero());
        EXPECT_TRUE(allAre(block, size, value));
        EXPECT_TRUE(cache.give(block));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(0U, cache.counters().usedBytes);
}

constexpr size_t kForkedBytes = 128U << 10;

// The child's exit code: what it found.
int inAForkedChild(std::byte* block) {
  ::alarm(20);  // instead of waiting for a lock that nobody holds here
  WarmCache& cache = WarmCache::ofProcess();
  if (!allAre(block, kForkedBytes, 1)) return 1;
  std::memset(block, 2, kForkedBytes);
  if (!cache.give(block)) return 2;
  std::byte* again = cache.take(kForkedBytes);
  if (again != block) return 3;
  std::memset(again, 3, kForkedBytes);
  return allAre(again, kForkedBytes, 3) ? 0 : 4;
}

TEST(WarmCache, ofAForkedChildIsACopy) {
  std::byte* block = WarmCache::ofProcess().take(kForkedBytes);
  ASSERT_NE(nullptr, block);
  std::memset(block, 1, kForkedBytes);
  std::atomic<bool> over = false;
  std::thread other([&over] {
    while (!over) WarmCache::ofProcess().give(WarmCache::ofProcess().take(kForkedBytes));
  });
  for (int i = 0; i < 50 && !HasFailure(); ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(inAForkedChild(block));
    int status = -1;
    EXPECT_EQ(child, ::waitpid(child, &status, 0));
    EXPECT_EQ(0, status) << "after fork " << i;
    EXPECT_TRUE(allAre(block, kForkedBytes, 1)) << "the child wrote to its parent's memory";
  }
  over = true;
  other.join();
  EXPECT_TRUE(WarmCache::ofProcess().give(block));
}

// The first call in a process makes the cache, also while another thread forks.
[[noreturn]] void forkDuringTheFirstCall() {
  test::Gate over;
  std::thread([&over] {
    WarmCache::ofProcess().give(WarmCache::ofProcess().take(kForkedBytes));
    over.open();
  }).detach();  // a child that inherits the object of a thread can neither join nor detach it
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::_exit(WarmCache::ofProcess().take(kForkedBytes) != nullptr ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  over.wait();
  std::quick_exit(status == 0 ? 0 : 1);
}

TEST(WarmCache, isThereForAChildThatIsForkedDuringTheFirstCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // each is a process that has no cache yet
  for (int i = 0; i < 10; ++i) EXPECT_EXIT(forkDuringTheFirstCall(), ::testing::ExitedWithCode(0), "");
}

// Warm memory and tensors that travel have one limit.
class OneBudget : public ::testing::Test {
 protected:
  std::shared_ptr<Block> travelling(size_t sizeBytes) {
    auto block = pool->allocate(sizeBytes);
    if (block) block->fill(std::vector<std::byte>(kMiB, std::byte{1}));
    return block;
  }
  size_t heldBytes() const {
    const PoolCounters blocks = pool->counters();
    const WarmCounters warm = cache.counters();
    return blocks.usedBytes + blocks.freeBytes + warm.usedBytes + warm.keptBytes;
  }

  std::shared_ptr<BlockPool> pool = valueOrThrow(BlockPool::make(8 * kMiB));
  const std::shared_ptr<MemoryBudget> budget = pool->budget();
  WarmCache cache{budget};
};

TEST_F(OneBudget, leavesWarmMemoryWhatTravellingTensorsDoNotUse) {
  auto travels = travelling(7 * kMiB);
  EXPECT_EQ(kMiB, budget->roomBytes());
  std::byte *a = cache.take(kMiB), *b = cache.take(kMiB);
  EXPECT_NE(nullptr, a);
  EXPECT_EQ(nullptr, b);
  travels.reset();
  EXPECT_EQ(0U, budget->roomBytes()) << "a block that is kept counts too";
  pool->trim();
  EXPECT_EQ(7 * kMiB, budget->roomBytes());
  EXPECT_TRUE(cache.give(a));
  pool->limitTo(0);
  EXPECT_EQ(0U, cache.counters().keptBytes);
  EXPECT_EQ(nullptr, cache.take(kMiB));
}

TEST_F(OneBudget, leavesTravellingTensorsWhatWarmMemoryDoesNotUse) {
  std::byte* warm = cache.take(6 * kMiB);
  ASSERT_NE(nullptr, warm);
  EXPECT_EQ(nullptr, travelling(4 * kMiB)) << "both together would be over the limit";
  EXPECT_EQ(1U, pool->counters().refused);
  auto travels = travelling(2 * kMiB);
  EXPECT_NE(nullptr, travels);
  EXPECT_EQ(8 * kMiB, heldBytes());
  EXPECT_TRUE(cache.give(warm));
}

TEST_F(OneBudget, givesIdleWarmMemoryUpForTravellingTensors) {
  std::byte *used = cache.take(2 * kMiB), *old = cache.take(2 * kMiB), *last = cache.take(3 * kMiB);
  EXPECT_TRUE(cache.give(old));
  EXPECT_TRUE(cache.give(last));
  auto travels = travelling(2 * kMiB);
  EXPECT_NE(nullptr, travels);
  EXPECT_EQ(3 * kMiB, cache.counters().keptBytes) << "the block that was idle for longest gives way";
  auto more = travelling(4 * kMiB);
  EXPECT_NE(nullptr, more);
  EXPECT_EQ(0U, cache.counters().keptBytes);
  EXPECT_EQ(8 * kMiB, heldBytes());
  EXPECT_TRUE(cache.give(used));
}

TEST_F(OneBudget, takesNothingAwayForABlockThatCannotBe) {
  std::byte *used = cache.take(4 * kMiB), *kept = cache.take(kMiB);
  EXPECT_TRUE(cache.give(kept));
  travelling(kMiB).reset();
  EXPECT_EQ(nullptr, travelling(5 * kMiB));
  EXPECT_EQ(kMiB, cache.counters().keptBytes);
  EXPECT_EQ(kMiB, pool->counters().freeBytes);
  auto travels = travelling(4 * kMiB);
  EXPECT_NE(nullptr, travels) << "with both given up there is room";
  EXPECT_TRUE(cache.give(used));
}

// The locks of both are taken in one order, and no byte is lost or counted twice.
TEST_F(OneBudget, isTakenFromByManyThreads) {
  auto travel = [this](uint64_t seed) {
    test::Random random(seed);
    for (int i = 0; i < 300; ++i) {
      travelling(kMiB + test::pick(random, 2 * kMiB));
      if (i % 50 == 0) pool->trim();
    }
  };
  auto warm = [this](uint64_t seed) {
    test::Random random(seed);
    for (int i = 0; i < 300; ++i) {
      std::byte* block = cache.take(WarmCache::kSmallest + test::pick(random, 3 * kMiB));
      EXPECT_TRUE(block == nullptr || cache.give(block));
      if (i % 50 == 0) cache.trim();
    }
  };
  const uint64_t seed = test::seedOfRun();
  std::array<std::thread, 4> threads = {std::thread(travel, seed), std::thread(travel, seed + 1),
                                        std::thread(warm, seed + 2), std::thread(warm, seed + 3)};
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(heldBytes(), 8 * kMiB);
  EXPECT_EQ(8 * kMiB - heldBytes(), budget->roomBytes());
}

// A random program: the budget agrees with the counters of both, and never with more than the limit.
TEST(PoolAndCache, keepOneBudgetInAnyOrder) {
  test::forSeeds(20, [](test::Random& random) {
    constexpr size_t kLimit = 8 * kMiB;
    auto pool = valueOrThrow(BlockPool::make(kLimit));
    WarmCache cache(pool->budget());
    std::vector<std::shared_ptr<Block>> blocks;
    std::vector<std::byte*> warm;
    for (int i = 0; i < 400; ++i) {
      const size_t size = WarmCache::kSmallest + test::pick(random, 2 * kMiB);
      switch (test::pick(random, 5)) {
        case 0:
          if (auto block = pool->allocate(size)) {
            block->data()[0] = std::byte{1};
            blocks.push_back(std::move(block));
          }
          break;
        case 1:
          if (std::byte* block = cache.take(size)) warm.push_back(block);
          break;
        case 2:
          if (!blocks.empty()) blocks.erase(blocks.begin() + static_cast<ptrdiff_t>(test::pick(random, blocks.size())));
          break;
        case 3:
          if (warm.empty()) break;
          std::swap(warm[test::pick(random, warm.size())], warm.back());
          ASSERT_TRUE(cache.give(warm.back()));
          warm.pop_back();
          break;
        default:
          if (test::pick(random, 20) == 0) test::pick(random, 2) == 0 ? cache.trim() : pool->trim();
      }
      const PoolCounters travelling = pool->counters();
      const WarmCounters kept = cache.counters();
      const size_t held = travelling.usedBytes + travelling.freeBytes + kept.usedBytes + kept.keptBytes;
      ASSERT_LE(held, kLimit);
      ASSERT_EQ(kLimit - held, pool->budget()->roomBytes());
    }
    for (std::byte* block : warm) ASSERT_TRUE(cache.give(block));
  });
}

}  // namespace
}  // namespace treadle::memory::warm_cache_test
