#include "treadle/core/group/row_block.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <set>

#include "tests/support/seeds.h"

namespace treadle::group::row_block_test {
namespace {

// A block with these rows; each byte of a row is its offset's lowest one.
RowBlock blockOf(const std::set<uint64_t>& offsets, uint64_t range, uint64_t rowBytes) {
  RowBlock block{{range, offsets.size(), rowBytes}, {}};
  block.allocate();
  RowWriter writer(block);
  for (auto next = offsets.begin(); next != offsets.end();) {
    const uint64_t begin = *next;
    uint64_t end = begin;
    for (; next != offsets.end() && *next == end; ++next) ++end;
    std::byte* place = writer.add(begin, end);
    for (uint64_t offset = begin; offset < end; ++offset, place += rowBytes)
      if (rowBytes > 0) std::memset(place, static_cast<int>(offset & 0xFF), rowBytes);
  }
  return block;
}

// As it is read; a run of several rows is stepped over in two steps.
std::set<uint64_t> offsetsOf(const RowBlock& block) {
  std::set<uint64_t> offsets;
  for (RowRuns runs(block); !runs.done();) {
    EXPECT_TRUE(offsets.empty() || runs.begin() > *offsets.rbegin());
    const uint64_t rows = (runs.end() - runs.begin() + 1) / 2;
    for (uint64_t row = 0; row < rows; ++row) {
      for (uint64_t i = 0; i < block.layout.rowBytes; ++i)
        EXPECT_EQ(runs.values()[row * block.layout.rowBytes + i], static_cast<std::byte>(runs.begin() + row));
      offsets.insert(runs.begin() + row);
    }
    runs.skip(rows);
  }
  return offsets;
}

std::set<uint64_t> everyNth(uint64_t range, uint64_t step) {
  std::set<uint64_t> offsets;
  for (uint64_t offset = step / 2; offset < range; offset += step) offsets.insert(offset);
  return offsets;
}

TEST(RowBlock, ReadsAsItWasWritten) {
  for (uint64_t range : {0, 1, 63, 64, 65, 128, 200, 1000})
    for (uint64_t step : {1, 2, 3, 63, 64, 65, 300})
      for (uint64_t rowBytes : {0, 1, 4, 24}) {
        const std::set<uint64_t> offsets = everyNth(range, step);
        const RowBlock block = blockOf(offsets, range, rowBytes);
        EXPECT_TRUE(block.isValid());
        EXPECT_EQ(offsetsOf(block), offsets) << range << " by " << step;
      }
}

TEST(RowBlock, ReadsRandomRowsAsTheyWereWritten) {
  test::forSeeds(200, [](test::Random& random) {
    const uint64_t range = 1 + test::pick(random, 500), rows = test::pick(random, range + 1);
    std::set<uint64_t> offsets;
    while (offsets.size() < rows) offsets.insert(test::pick(random, range));
    const RowBlock block = blockOf(offsets, range, 8);
    ASSERT_TRUE(block.isValid());
    ASSERT_EQ(offsetsOf(block), offsets);
  });
}

TEST(RowBlock, TakesTheLesserOfAWordForEachRowAndABitForEachOfItsRange) {
  const auto bytes = [](uint64_t range, uint64_t rows) { return RowLayout{range, rows, 100}.sizeBytes(); };
  EXPECT_EQ(bytes(640, 0), 0U);
  EXPECT_EQ(bytes(640, 9), 9U * 8 + 900);
  EXPECT_EQ(bytes(640, 10), 10U * 8 + 1000);
  EXPECT_EQ(bytes(640, 11), 10U * 8 + 1100);
  EXPECT_EQ(bytes(640, 640), 640U / 8 + 64'000);
  EXPECT_EQ(bytes(uint64_t{1} << 60, 2), 2U * 8 + 200);
}

TEST(RowBlock, TakesNoMoreMemoryThanTwiceWhatHasCome) {
  RowBlock block{{uint64_t{1} << 40, uint64_t{1} << 38, 8}, {}};
  block.growTo(100);
  EXPECT_EQ(block.bytes().size(), 100U);
  std::memset(block.memory.data, 7, 100);
  block.growTo(101);
  EXPECT_EQ(block.bytes().size(), 200U);
  for (size_t i = 0; i < 100; ++i) ASSERT_EQ(block.bytes()[i], std::byte{7});
  block.growTo(200);
  EXPECT_EQ(block.bytes().size(), 200U);
  block.growTo(1000);
  EXPECT_EQ(block.bytes().size(), 1000U);
}

TEST(RowBlock, GrowsToItsSizeAtMost) {
  RowBlock block{{10, 2, 100}, {}};
  ASSERT_EQ(block.layout.sizeBytes(), 208U);
  block.growTo(0);
  EXPECT_EQ(block.bytes().size(), 0U);
  block.growTo(150);
  EXPECT_EQ(block.bytes().size(), 150U);
  block.growTo(151);
  EXPECT_EQ(block.bytes().size(), 208U);
}

TEST(RowBlock, IsNotMadeLargerThanAnyMemory) {
  for (RowLayout layout : {RowLayout{uint64_t{1} << 63, uint64_t{1} << 62, 8}, RowLayout{UINT64_MAX, UINT64_MAX, 0},
                           RowLayout{UINT64_MAX, UINT64_MAX, UINT64_MAX}}) {
    RowBlock block{layout, {}};
    EXPECT_GE(layout.sizeBytes(), uint64_t{1} << 60);
    EXPECT_THROW(block.allocate(), std::bad_alloc);
  }
}

TEST(RowBlock, WithRowsThatCannotBeIsNotValid) {
  const auto valid = [](uint64_t range, const std::vector<uint64_t>& words, uint64_t rows) {
    RowBlock block{{range, rows, 0}, {}};
    block.allocate();
    EXPECT_EQ(block.layout.words(), words.size());
    std::memcpy(block.memory.data, words.data(), words.size() * sizeof(uint64_t));
    return block.isValid();
  };
  EXPECT_TRUE(valid(1000, {3, 999}, 2));
  EXPECT_FALSE(valid(1000, {3, 1000}, 2)) << "behind the range";
  EXPECT_FALSE(valid(1000, {UINT64_MAX}, 1));
  EXPECT_FALSE(valid(1000, {3, 3}, 2)) << "twice";
  EXPECT_FALSE(valid(1000, {4, 3}, 2)) << "downwards";
  EXPECT_TRUE(valid(70, {0b101, 0b100000}, 3));
  EXPECT_FALSE(valid(70, {0b101, 0b1000000}, 3)) << "behind the range";
  EXPECT_FALSE(valid(70, {0b101, 0b100000}, 4)) << "fewer bits than rows";
  EXPECT_FALSE(valid(70, {0b111, 0b100000}, 3)) << "more bits than rows";
  EXPECT_FALSE((RowBlock{{2, 3, 0}, {}}.isValid())) << "more rows than the range";
  EXPECT_FALSE((RowBlock{{2, 2, 0}, {}}.isValid())) << "no memory";
}

}  // namespace
}  // namespace treadle::group::row_block_test
