// Blocks for parts: large enough, apart from each other, and used again.

#include "treadle/core/summation/part_memory.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "tests/support/bytes.h"

namespace treadle::summation::part_memory_test {
namespace {

TEST(PartMemory, YieldsBlocksThatShareNoByte) {
  test::forSeeds(5, [](test::Random& random) {
    PartMemory memory;
    std::vector<MutableBytes> taken;
    for (int i = 0; i < 300; ++i) {
      if (!taken.empty() && test::pick(random, 3) == 0) {
        const size_t one = test::pick(random, taken.size());
        memory.giveBack(taken[one]);
        taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(one));
        continue;
      }
      const uint64_t bytes = 1 + test::pick(random, uint64_t{1} << (4 + test::pick(random, 17)));
      taken.push_back(memory.take(bytes));
      EXPECT_GE(taken.back().size(), bytes);
      EXPECT_EQ(PartMemory::sizeFor(bytes), taken.back().size());
    }
    for (size_t i = 0; i < taken.size(); ++i) std::memset(taken[i].data(), static_cast<int>(i % 251), taken[i].size());
    for (size_t i = 0; i < taken.size(); ++i) EXPECT_TRUE(test::allBytesAre(taken[i], static_cast<int>(i % 251))) << i;
  });
}

TEST(PartMemory, UsesABlockAgainAndTheLastOneFirst) {
  PartMemory memory;
  const MutableBytes first = memory.take(100'000), second = memory.take(100'000);
  memory.giveBack(first);
  memory.giveBack(second);
  EXPECT_EQ(second.data(), memory.take(70'000).data());
  EXPECT_EQ(first.data(), memory.take(131'072).data());
}

// Many small parts take no more memory than they are counted for.
TEST(PartMemory, CutsSmallBlocksFromLargeOnes) {
  PartMemory memory;
  std::set<uintptr_t> pages;
  for (int i = 0; i < 1024; ++i) pages.insert(reinterpret_cast<uintptr_t>(memory.take(1000).data()) >> 12);
  EXPECT_EQ(1024u, pages.size());
  EXPECT_EQ(1023u, *pages.rbegin() - *pages.begin()) << "4 MiB in one piece";
}

// Whatever sizes parts had before, as much memory as is open at a time is enough where all of it was given back.
TEST(PartMemory, JoinsWhatIsFreeBeforeItMapsMore) {
  constexpr size_t kOpen = size_t{16} << 20, kPage = size_t{4} << 10;
  PartMemory memory;
  std::set<uintptr_t> pages;
  test::Random random(7);
  for (size_t size = kPage; size <= (size_t{4} << 20); size *= 2) {
    std::vector<MutableBytes> taken;
    for (size_t open = 0; open < kOpen; open += size) taken.push_back(memory.take(size));
    for (const MutableBytes& block : taken) pages.insert(reinterpret_cast<uintptr_t>(block.data()) / kPage);
    for (const MutableBytes& block : taken) std::memset(block.data(), 1, block.size());
    std::shuffle(taken.begin(), taken.end(), random);
    for (const MutableBytes& block : taken) memory.giveBack(block);
  }
  EXPECT_LE(pages.size(), kOpen / kPage) << "pages in which a block began";
}

}  // namespace
}  // namespace treadle::summation::part_memory_test
