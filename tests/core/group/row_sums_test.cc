// The arithmetic of sparse all-reduces against maps of rows, in double.

#include "treadle/core/group/row_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "tests/support/seeds.h"
#include "treadle/core/group/half.h"

namespace treadle::group::row_sums_test {
namespace {

using Rows = std::map<uint64_t, std::vector<double>>;

template <class T>
T numberOf(double value) {
  if constexpr (std::is_same_v<T, Float16>) {
    return toFloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return toBFloat16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
double valueOf(T number) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    return toFloat(number);
  } else if constexpr (std::is_same_v<T, std::complex<double>>) {
    return number.real();
  } else {
    return static_cast<double>(number);
  }
}

// The nearest number of the type; integers wrap around.
template <class T>
double asNumber(double value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<double>(static_cast<T>(static_cast<int64_t>(value)));
  } else {
    return valueOf(numberOf<T>(value));
  }
}

// The rows of one member in any order, and what they add up to.
template <class T>
struct Member {
  std::vector<uint64_t> indices;
  std::vector<T> values;
  Rows sums;

  void add(uint64_t index, const std::vector<double>& row) {
    indices.push_back(index);
    std::vector<double>& sum = sums.try_emplace(index, row.size()).first->second;
    for (size_t i = 0; i < row.size(); ++i) {
      values.push_back(numberOf<T>(row[i]));
      sum[i] += row[i];
    }
  }
  Bytes bytes() const { return std::as_bytes(std::span(values)); }
};

// The rows of a block with numbers of type T, in the range of `owner`.
template <class T>
Rows rowsIn(const RowBlock& block, const RowRanges& ranges, int owner, uint64_t width) {
  Rows rows;
  EXPECT_TRUE(block.isValid());
  for (RowRuns runs(block); !runs.done(); runs.skip(1)) {
    std::vector<T> row(width);
    if (width > 0) std::memcpy(row.data(), runs.values(), width * sizeof(T));
    const uint64_t index = ranges.rowAt(owner, runs.begin());
    for (T number : row) rows[index].push_back(valueOf(number));
    rows.try_emplace(index);
  }
  return rows;
}

template <class T>
Member<T> randomMember(test::Random& random, uint64_t rows, uint64_t width) {
  Member<T> member;
  const uint64_t count = rows == 0 ? 0 : test::pick(random, 2 * rows);
  const bool isOrdered = test::pick(random, 2) == 0;
  for (uint64_t i = 0; i < count; ++i) {
    std::vector<double> row;
    for (uint64_t j = 0; j < width; ++j) row.push_back(static_cast<double>(test::pick(random, 100)));
    member.add(isOrdered ? i * rows / count : test::pick(random, rows), row);
  }
  return member;
}

template <class T>
class RowSumsTest : public ::testing::Test {};
using Types = ::testing::Types<float, double, int8_t, int64_t, uint16_t, Float16, BFloat16, std::complex<double>>;
TYPED_TEST_SUITE(RowSumsTest, Types);

// Small whole numbers, which all types but bfloat16 add exactly; its sums are rounded once.
TYPED_TEST(RowSumsTest, AreThoseOfTheRowsOfAllMembers) {
  using T = TypeParam;
  test::forSeeds(60, [](test::Random& random) {
    const uint64_t rows = test::pick(random, 300), width = test::pick(random, 4);
    const RowType type{width, DataTypeOf<T>::kValue};
    const auto members = static_cast<int>(1 + test::pick(random, 5));
    const RowRanges ranges(rows, members);
    std::vector<std::vector<RowBlock>> packed;
    Rows expected;
    for (int i = 0; i < members; ++i) {
      const Member<T> member = randomMember<T>(random, rows, width);
      packed.push_back(packRows(member.indices, member.bytes(), type, ranges));
      for (const auto& [index, row] : member.sums) {
        std::vector<double>& sum = expected.try_emplace(index, width).first->second;
        for (size_t j = 0; j < width; ++j) sum[j] += row[j];
      }
    }
    for (auto& [index, row] : expected)
      for (double& value : row) value = asNumber<T>(value);
    Rows sums;
    for (int owner = 0; owner < members; ++owner) {
      std::vector<RowBlock> blocks;
      for (const auto& own : packed) blocks.push_back(own[static_cast<size_t>(owner)]);
      sums.merge(rowsIn<T>(sumRows(blocks, type), ranges, owner, width));
    }
    ASSERT_EQ(sums, expected);
  });
}

TEST(RowSums, AreDividedByAllMembersForAnAverage) {
  const RowType type{1, DataType::kFloat64};
  const RowRanges one(10, 1);
  const std::vector<uint64_t> indices = {4};
  const std::vector<double> values = {6};
  const RowBlock present = packRows(indices, std::as_bytes(std::span(values)), type, one).front();
  const RowBlock absent = packRows({}, {}, type, one).front();
  const RowBlock average = sumRows(std::vector{present, absent, absent}, type, /*by=*/3);
  EXPECT_EQ(rowsIn<double>(average, one, 0, 1), (Rows{{4, {2}}}));
}

// (2^53 + 1) - 2^53 is 0 in double and 1 in another order.
TEST(RowSums, AreAddedInTheOrderOfTheInputAndThenOfRanks) {
  const RowType type{1, DataType::kFloat64};
  const RowRanges one(10, 1);
  const std::vector<uint64_t> thrice = {4, 4, 4}, once = {4};
  const std::vector<double> values = {0x1p53, 1, -0x1p53}, first = {0x1p53}, second = {1}, third = {-0x1p53};
  const auto block = [&](const std::vector<uint64_t>& indices, const std::vector<double>& numbers) {
    return packRows(indices, std::as_bytes(std::span(numbers)), type, one).front();
  };
  EXPECT_EQ(rowsIn<double>(block(thrice, values), one, 0, 1), (Rows{{4, {0}}}));
  const RowBlock a = block(once, first), b = block(once, second), c = block(once, third);
  EXPECT_EQ(rowsIn<double>(sumRows(std::vector{a, b, c}, type), one, 0, 1), (Rows{{4, {0}}}));
  EXPECT_EQ(rowsIn<double>(sumRows(std::vector{a, c, b}, type), one, 0, 1), (Rows{{4, {1}}}));
}

// 256 + 1 rounds to 256 in bfloat16, however often 1 is added; the sum in float does not.
TEST(RowSums, AreRoundedOnceInHalves) {
  const RowType type{1, DataType::kBFloat16};
  const RowRanges one(1, 1);
  Member<BFloat16> first, second;
  first.add(0, {256});
  for (int i = 0; i < 6; ++i) first.add(0, {1}), second.add(0, {1});
  const std::vector<RowBlock> blocks = {packRows(first.indices, first.bytes(), type, one).front(),
                                        packRows(second.indices, second.bytes(), type, one).front()};
  EXPECT_EQ(rowsIn<float>(blocks[0], one, 0, 1), (Rows{{0, {262}}})) << "travels as float";
  EXPECT_EQ(rowsIn<BFloat16>(sumRows(blocks, type), one, 0, 1), (Rows{{0, {268}}}));
  EXPECT_EQ(rowsIn<BFloat16>(sumRows(blocks, type, /*by=*/2), one, 0, 1), (Rows{{0, {134}}}));
}

// The sum of `values`, of which each member has one in the same row.
template <class Half>
double sumOf(const std::vector<double>& values) {
  const RowType type{1, DataTypeOf<Half>::kValue};
  const RowRanges one(1, 1);
  std::vector<RowBlock> blocks;
  for (double value : values) {
    Member<Half> member;
    member.add(0, {value});
    blocks.push_back(packRows(member.indices, member.bytes(), type, one).front());
  }
  return rowsIn<Half>(sumRows(blocks, type), one, 0, 1).at(0).front();
}

// The first two add up to the middle between two numbers. The third, which float32 cannot hold beside them, decides.
TEST(RowSums, AreThoseOfADenseAllReduceInHalves) {
  EXPECT_EQ(sumOf<Float16>({2048, 1, 0x1p-14}), 2050);
  EXPECT_EQ(sumOf<BFloat16>({256, 1, 0x1p-17}), 258);
  test::forSeeds(100, [](test::Random& random) {
    std::vector<double> values;
    std::vector<Float16> halves;
    for (int member = 0; member < 5; ++member) {
      const int exponent = static_cast<int>(test::pick(random, 24));
      halves.push_back(numberOf<Float16>(std::ldexp(static_cast<double>(test::pick(random, 2048)), exponent - 20)));
      values.push_back(valueOf(halves.back()));
    }
    std::vector<const std::byte*> members;
    for (const Float16& half : halves) members.push_back(reinterpret_cast<const std::byte*>(&half));
    Float16 dense;
    reduceMembers(DataType::kFloat16, ReduceOp::kSum, members, 1, &dense);
    ASSERT_EQ(sumOf<Float16>(values), valueOf(dense));
  });
}

}  // namespace
}  // namespace treadle::group::row_sums_test
