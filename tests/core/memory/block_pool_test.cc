#include "treadle/core/memory/block_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "tests/support/bytes.h"
#include "tests/support/gate.h"
#include "tests/support/readable.h"
#include "tests/support/resident.h"
#include "treadle/core/base/error.h"
#include "treadle/core/io/socket.h"

namespace treadle::memory::block_pool_test {
namespace {

using test::residentBytes;

constexpr size_t kMiB = 1U << 20;

std::shared_ptr<BlockPool> poolOf(size_t limitBytes) { return valueOrThrow(BlockPool::make(limitBytes)); }

TEST(BlockPool, takesTheBlockThatWasFreedLast) {
  auto pool = poolOf(16 * kMiB);
  auto a = pool->allocate(kMiB), b = pool->allocate(kMiB);
  size_t first = a->offset(), second = b->offset();
  ASSERT_NE(first, second);
  a->data()[0] = b->data()[0] = std::byte{1};
  a.reset();
  b.reset();
  b = pool->allocate(kMiB - 5);  // of the same class
  EXPECT_EQ(second, b->offset());
  a = pool->allocate(kMiB);
  EXPECT_EQ(first, a->offset());
  EXPECT_EQ(2U, pool->counters().reused);
}

TEST(BlockPool, takesAFreeBlockOfUpToTwiceTheSizeBeforeFreshMemory) {
  auto pool = poolOf(64 * kMiB);
  auto large = pool->allocate(2 * kMiB);
  const size_t offset = large->offset();
  large->data()[0] = std::byte{1};
  large.reset();
  auto half = pool->allocate(kMiB);
  EXPECT_EQ(offset, half->offset());
  half.reset();
  auto small = pool->allocate(kMiB - 256 * 1024);  // of a class below the half
  EXPECT_NE(offset, small->offset());
  EXPECT_EQ(2 * kMiB, pool->counters().freeBytes);
}

TEST(BlockPool, refusesWhatGoesOverItsLimitAndSaysSoInItsCounters) {
  auto pool = poolOf(4 * kMiB);
  auto a = pool->allocate(2 * kMiB), b = pool->allocate(2 * kMiB);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(nullptr, pool->allocate(1));
  EXPECT_EQ(nullptr, pool->allocate(5 * kMiB));
  b.reset();
  EXPECT_NE(nullptr, pool->allocate(1));
  EXPECT_EQ(2 * kMiB, pool->counters().usedBytes);
  EXPECT_LE(1U, pool->counters().refused);
}

TEST(BlockPool, staysBelowALimitThatWasLowered) {
  auto pool = poolOf(16 * kMiB);
  auto used = pool->allocate(4 * kMiB), freed = pool->allocate(2 * kMiB);
  used->data()[0] = freed->data()[0] = std::byte{1};
  freed.reset();
  pool->limitTo(2 * kMiB);
  pool->limitTo(8 * kMiB);  // never up again
  EXPECT_EQ(2 * kMiB, pool->limitBytes());
  EXPECT_EQ(0U, pool->counters().freeBytes);
  EXPECT_EQ(nullptr, pool->allocate(kMiB));
  used.reset();
  EXPECT_EQ(0U, pool->counters().freeBytes);  // what is over the limit is not kept
  EXPECT_NE(nullptr, pool->allocate(kMiB));
}

TEST(BlockPool, givesIdleBlocksOfOtherSizesUpForNewOnes) {
  auto pool = poolOf(4 * kMiB);
  auto large = pool->allocate(4 * kMiB);
  large->fill(std::vector<std::byte>(4 * kMiB, std::byte{7}));
  large.reset();
  EXPECT_EQ(4 * kMiB, pool->counters().freeBytes);
  auto small = pool->allocate(kMiB);
  ASSERT_NE(nullptr, small);
  PoolCounters counters = pool->counters();
  EXPECT_LE(counters.usedBytes + counters.freeBytes, 4 * kMiB);
}

TEST(BlockPool, trimGivesTheMemoryBackToTheSystem) {
  auto pool = poolOf(64 * kMiB);
  auto block = pool->allocate(8 * kMiB);
  block->fill(std::vector<std::byte>(8 * kMiB, std::byte{7}));
  const std::byte* data = block->data();
  EXPECT_EQ(8 * kMiB, residentBytes(data, 8 * kMiB));
  block.reset();
  EXPECT_EQ(8 * kMiB, residentBytes(data, 8 * kMiB));  // kept warm
  pool->trim();
  EXPECT_EQ(0U, residentBytes(data, 8 * kMiB));
  EXPECT_EQ(0U, pool->counters().freeBytes);
  EXPECT_NE(nullptr, pool->allocate(60 * kMiB));  // in one piece again
}

TEST(BlockPool, findsABlockWhileItIsInUse) {
  auto pool = poolOf(4 * kMiB);
  auto block = pool->allocate(kMiB);
  size_t offset = block->offset();
  EXPECT_EQ(block, pool->find(offset));
  EXPECT_EQ(nullptr, pool->find(offset + 4096));
  block.reset();
  EXPECT_EQ(nullptr, pool->find(offset));
}

TEST(BlockPool, holdsWhatItsBlocksAreFilledWithFreshAndWarm) {
  auto pool = poolOf(64 * kMiB);
  test::forSeeds(30, [&](test::Random& random) {
    std::vector<std::pair<std::shared_ptr<Block>, std::vector<std::byte>>> held;
    for (int i = 0; i < 4; ++i) {
      std::vector<std::byte> bytes = test::randomBytes(random, 1 + test::pick(random, 3 * kMiB));
      auto block = pool->allocate(bytes.size());
      ASSERT_NE(nullptr, block);
      block->fill(bytes);
      held.emplace_back(std::move(block), std::move(bytes));
    }
    for (const auto& [block, bytes] : held) EXPECT_TRUE(test::same(bytes, {block->data(), bytes.size()}));
    if (test::pick(random, 5) == 0) pool->trim();
  });
}

// Blocks never overlap, whatever threads take and give them back.
TEST(BlockPool, givesNoByteToTwoHolders) {
  auto pool = poolOf(32 * kMiB);
  std::vector<std::thread> threads;
  for (uint64_t id = 1; id <= 4; ++id)
    threads.emplace_back([&pool, id] {
      test::Random random(id);
      std::vector<std::pair<std::shared_ptr<Block>, std::byte>> held;
      for (int step = 0; step < 2000; ++step) {
        if (held.size() < 6 && test::pick(random, 2) == 0) {
          auto block = pool->allocate(1 + test::pick(random, 200'000));
          if (!block) continue;
          auto mark = static_cast<std::byte>(random());
          std::fill_n(block->data(), block->capacity(), mark);
          held.emplace_back(std::move(block), mark);
        } else if (!held.empty()) {
          auto [block, mark] = std::move(held.back());
          held.pop_back();
          bool same = std::all_of(block->data(), block->data() + block->capacity(),
                                  [mark = mark](std::byte byte) { return byte == mark; });
          ASSERT_TRUE(same);
        }
        if (step % 500 == 0) pool->trim();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(0U, pool->counters().usedBytes);
}

// A peer that was only stopped may still write to what it held: its blocks are used again when its process has ended.
TEST(BlockPool, usesTheBlocksOfALostPeerWhenItsProcessHasEnded) {
  auto pool = poolOf(16 * kMiB);
  std::array<int, 2> until{};
  ASSERT_EQ(0, ::pipe(until.data()));
  io::Address address = valueOrThrow(io::Address::parse("unix:block-pool-test-" + std::to_string(::getpid())));
  io::Fd listener = valueOrThrow(io::listenOn(address));
  pid_t child = ::fork();
  if (child == 0) {  // dials, and lives until it is told to end
    io::Fd dialed = valueOrThrow(io::connectTo(address, kNever));
    char end;
    ::close(until[1]);
    (void)!::read(until[0], &end, 1);
    ::_exit(0);
  }
  ASSERT_TRUE(test::readable(listener.get(), "a connection"));
  io::Fd accepted = valueOrThrow(io::acceptFrom(listener.get()));
  io::ProcessHandle holder = io::ProcessHandle::ofPeer(accepted.get());
  ASSERT_TRUE(holder.valid());
  EXPECT_FALSE(holder.ended());
  // A tensor here lies in what else the peer was lent.
  std::shared_ptr<Block> lent = pool->allocate(4 * kMiB), shared = pool->allocate(4 * kMiB);
  const size_t offset = lent->offset();
  pool->recover({std::move(lent), shared}, std::move(holder));
  lent.reset();
  EXPECT_EQ(8 * kMiB, pool->counters().lostBytes);
  EXPECT_EQ(nullptr, pool->allocate(8 * kMiB)) << "there is no room beside it";
  ::close(until[1]);
  ASSERT_EQ(child, ::waitpid(child, nullptr, 0));
  auto next = pool->allocate(4 * kMiB), other = pool->allocate(4 * kMiB);
  ASSERT_NE(nullptr, next);
  EXPECT_EQ(offset, next->offset());
  EXPECT_TRUE(other == nullptr || other->offset() != shared->offset()) << "this process has it still";
  shared.reset();
  other = pool->allocate(4 * kMiB);
  EXPECT_NE(nullptr, other);
  EXPECT_EQ(0U, pool->counters().lostBytes);
  ::close(until[0]);
}

// Its pages are there for good, and so they count.
TEST(BlockPool, neverUsesWhatSomebodyUnknownMayHold) {
  auto pool = poolOf(8 * kMiB);
  auto block = pool->allocate(4 * kMiB);
  size_t offset = block->offset();
  pool->recover({std::move(block)}, {});
  EXPECT_EQ(0U, pool->counters().usedBytes);
  EXPECT_EQ(0U, pool->counters().freeBytes);
  EXPECT_EQ(4 * kMiB, pool->counters().lostBytes);
  auto next = pool->allocate(4 * kMiB);
  ASSERT_NE(nullptr, next);
  EXPECT_NE(offset, next->offset());
  EXPECT_EQ(nullptr, pool->allocate(4 * kMiB));
}

// Its memory is the parent's, also when it lets go of what it has inherited and the pool is over its limit.
TEST(BlockPool, isNotTouchedByAChildOfFork) {
  auto pool = poolOf(kMiB);
  auto block = pool->allocate(kMiB);
  block->fill(std::vector<std::byte>(kMiB, std::byte{7}));
  pool->limitTo(0);
  pid_t child = ::fork();
  if (child == 0) {
    block.reset();
    ::_exit(0);
  }
  int status = -1;
  EXPECT_EQ(child, ::waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
  EXPECT_TRUE(std::all_of(block->data(), block->data() + kMiB, [](std::byte byte) { return byte == std::byte{7}; }));
}

// Also when another thread was just asking for its parent's.
TEST(BlockPool, isThereForEachChildOfFork) {
  std::atomic<bool> over = false;
  std::thread other([&] {
    while (!over) EXPECT_NE(nullptr, BlockPool::ofProcess());
  });
  for (int i = 0; i < 300; ++i) {
    pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);  // instead of waiting for a lock that nobody holds here
      ::_exit(BlockPool::ofProcess() != nullptr ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(child, ::waitpid(child, &status, 0));
    EXPECT_EQ(0, status);
    if (status != 0) break;
  }
  over = true;
  other.join();
}

TEST(BlockPool, prefaultsTheFirstPagesAndTrimGivesThemBack) {
  auto pool = poolOf(64 * kMiB);
  const std::byte* arena = pool->arena().bytes().data();
  pool->prefault(2 * kMiB);
  ASSERT_TRUE(test::eventually([&] { return residentBytes(arena, 2 * kMiB) == 2 * kMiB; }));
  EXPECT_EQ(0U, residentBytes(arena + 2 * kMiB, 2 * kMiB));
  auto block = pool->allocate(kMiB);
  block->fill(std::vector<std::byte>(kMiB, std::byte{7}));
  pool->trim();  // maybe between a step of the prefaulting and its mark that it is done
  EXPECT_TRUE(test::eventually([&] { return residentBytes(arena, 4 * kMiB) == kMiB; })) << "not the block's own only";
  EXPECT_EQ(std::byte{7}, block->data()[kMiB - 1]);
}

TEST(BlockPool, prefaultsAtMostASmallPartOfItsLimit) {
  auto pool = poolOf(32 * kMiB);
  const std::byte* arena = pool->arena().bytes().data();
  pool->prefault(1000 * kMiB);
  pool->prefault(1000 * kMiB);  // once is enough
  ASSERT_TRUE(test::eventually([&] { return residentBytes(arena, 2 * kMiB) == 2 * kMiB; }));
  pool.reset();  // ends it
}

// Blocks that are used while their pages are faulted in keep what was written to them.
TEST(BlockPool, prefaultsBesideTheUseOfItsBlocks) {
  test::forSeeds(20, [](test::Random& random) {
    auto pool = poolOf(256 * kMiB);
    pool->prefault(16 * kMiB);
    for (int round = 0; round < 20; ++round) {
      std::vector<std::byte> bytes = test::randomBytes(random, 1 + test::pick(random, 2 * kMiB));
      auto block = pool->allocate(bytes.size());
      block->fill(bytes);
      if (test::pick(random, 8) == 0) pool->trim();
      ASSERT_TRUE(test::same(bytes, {block->data(), bytes.size()}));
    }
  });
}

TEST(Copier, coversEveryByteOnceWhateverTheSize) {
  Copier copier;
  for (size_t size : {size_t{1}, size_t{4095}, kMiB - 1, kMiB, kMiB + 1, 5 * kMiB + 123}) {
    std::vector<std::atomic<char>> touched(size);
    copier.copy(size, [&](size_t begin, size_t length) {
      for (size_t at = begin; at < begin + length; ++at) ++touched[at];
    });
    EXPECT_TRUE(std::all_of(touched.begin(), touched.end(), [](const auto& one) { return one == 1; })) << size;
  }
}

TEST(Copier, servesManyThreadsAtOnce) {
  Copier copier;
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id)
    threads.emplace_back([&copier, id] {
      std::vector<char> from(3 * kMiB, static_cast<char>(id)), to(from.size());
      for (int round = 0; round < 20; ++round) {
        std::fill(to.begin(), to.end(), 99);
        copier.copy(from.size(), [&](size_t begin, size_t size) {
          std::copy_n(from.begin() + static_cast<ptrdiff_t>(begin), size, to.begin() + static_cast<ptrdiff_t>(begin));
        });
        ASSERT_EQ(from, to);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace treadle::memory::block_pool_test
