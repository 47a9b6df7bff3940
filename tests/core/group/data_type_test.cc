#include "treadle/core/group/data_type.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/core/group/group_job.h"
#include "treadle/core/group/half.h"

namespace treadle::group::data_type_test {
namespace {

template <class T>
T reduced(ReduceOp op, T incoming, T own) {
  reduceInto(DataTypeOf<T>::kValue, op, &own, &incoming, 1);
  return own;
}

template <class T>
class IntegerTest : public ::testing::Test {};
using Integers = ::testing::Types<int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>;
TYPED_TEST_SUITE(IntegerTest, Integers);

TYPED_TEST(IntegerTest, WrapsAroundInsteadOfOverflowing) {
  using T = TypeParam;
  constexpr T kMost = std::numeric_limits<T>::max(), kLeast = std::numeric_limits<T>::min();
  EXPECT_EQ(reduced<T>(ReduceOp::kSum, kMost, 1), kLeast);
  EXPECT_EQ(reduced<T>(ReduceOp::kProduct, kMost, kMost), 1);
  EXPECT_EQ(reduced<T>(ReduceOp::kMin, kMost, kLeast), kLeast);
  EXPECT_EQ(reduced<T>(ReduceOp::kMax, kMost, kLeast), kMost);
}

TYPED_TEST(IntegerTest, AveragesAreCutTowardsZero) {
  using T = TypeParam;
  T values[] = {static_cast<T>(7), static_cast<T>(-7), 0};
  divide(DataTypeOf<T>::kValue, values, 3, 2);
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[1],
            std::is_signed_v<T> ? static_cast<T>(-3) : static_cast<T>(std::numeric_limits<T>::max() / 2 - 3));
  EXPECT_EQ(values[2], 0);
}

TEST(DataTypeTest, MinAndMaxKeepNaN) {
  const double nan = std::nan("");
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_TRUE(std::isnan(reduced(op, nan, 1.0)));
    EXPECT_TRUE(std::isnan(reduced(op, 1.0, nan)));
    EXPECT_TRUE(std::isnan(toFloat(reduced(op, toFloat16(1), toFloat16(NAN)))));
    EXPECT_TRUE(std::isnan(toFloat(reduced(op, toBFloat16(NAN), toBFloat16(1)))));
  }
}

template <class T>
float reducedAtOnce(ReduceOp op, std::vector<T> values) {
  std::vector<const std::byte*> members;
  for (T& value : values) members.push_back(reinterpret_cast<const std::byte*>(&value));
  reduceMembers(DataTypeOf<T>::kValue, op, members, 1, &values.back());
  return toFloat(values.back());
}

TEST(DataTypeTest, HalvesAreReducedInDouble) {
  EXPECT_EQ(1.25F, reducedAtOnce(ReduceOp::kSum, std::vector{toFloat16(1.5F), toFloat16(-0.25F)}));
  EXPECT_EQ(INFINITY, reducedAtOnce(ReduceOp::kProduct, std::vector{toFloat16(300), toFloat16(300)}));
  EXPECT_EQ(2048, reducedAtOnce(ReduceOp::kProduct, std::vector{toFloat16(256), toFloat16(512), toFloat16(1.0F / 64)}));
  // bfloat16 has 8 bits of precision, and rounds ties to even.
  EXPECT_EQ(256.0F, reducedAtOnce(ReduceOp::kSum, std::vector{toBFloat16(256), toBFloat16(1)}));
  EXPECT_EQ(258.0F, reducedAtOnce(ReduceOp::kSum, std::vector{toBFloat16(256), toBFloat16(1), toBFloat16(1)}));
  EXPECT_EQ(1.5F, reducedAtOnce(ReduceOp::kAverage, std::vector{toBFloat16(3), toBFloat16(0)}));
}

TEST(DataTypeTest, EveryHalfSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits <= UINT16_MAX; ++bits) {
    Float16 half{static_cast<uint16_t>(bits)};
    BFloat16 brain{static_cast<uint16_t>(bits)};
    if (std::isnan(toFloat(half))) {
      EXPECT_TRUE(std::isnan(toFloat(toFloat16(toFloat(half))))) << bits;
    } else {
      ASSERT_EQ(toFloat16(toFloat(half)).bits, bits);
    }
    if (std::isnan(toFloat(brain))) {
      EXPECT_TRUE(std::isnan(toFloat(toBFloat16(toFloat(brain))))) << bits;
    } else {
      ASSERT_EQ(toBFloat16(toFloat(brain)).bits, bits);
    }
  }
}

// The compiler's own 16-bit float is the oracle.
TEST(DataTypeTest, RoundsToHalfAsTheCompilerDoes) {
  std::mt19937 random(test::seedOfRun());
  auto check = [](uint32_t bits) {
    float value = std::bit_cast<float>(bits);
    if (std::isnan(value)) return;
    auto oracle = static_cast<_Float16>(value);
    uint16_t expected;
    std::memcpy(&expected, &oracle, sizeof expected);
    ASSERT_EQ(toFloat16(value).bits, expected) << "float bits " << bits;
  };
  for (int i = 0; i < 200'000; ++i) check(static_cast<uint32_t>(random()));
  // All ties and their neighbours, in the range of halves.
  for (uint32_t half = 0; half < 0x7C00U; ++half) {
    uint32_t bits = std::bit_cast<uint32_t>(toFloat(Float16{static_cast<uint16_t>(half)}));
    uint32_t next =
        std::bit_cast<uint32_t>(half + 1 < 0x7C00U ? toFloat(Float16{static_cast<uint16_t>(half + 1)}) : 65536.0F);
    float tie = (std::bit_cast<float>(bits) + std::bit_cast<float>(next)) / 2;
    for (int offset = -1; offset <= 1; ++offset) check(std::bit_cast<uint32_t>(tie) + static_cast<uint32_t>(offset));
  }
}

// Once, and not to a float in between: a double a little beside a tie must not end up on the wrong side of it.
TEST(DataTypeTest, RoundsDoublesOnce) {
  const auto check = [](double value) {
    const auto oracle = static_cast<_Float16>(value);
    uint16_t expected;
    std::memcpy(&expected, &oracle, sizeof expected);
    ASSERT_EQ(rounded<Float16>(value).bits, expected) << value;
  };
  const auto nearest = [](double value, BFloat16 rounded) {
    const double distance = std::abs(double{toFloat(rounded)} - value);
    for (int step : {-1, 1}) {
      const double other = toFloat(BFloat16{static_cast<uint16_t>(rounded.bits + step)});
      if (std::isnan(other)) continue;
      ASSERT_LE(distance, std::abs(other - value)) << value;
    }
  };
  for (uint32_t half = 0; half + 1 < 0x7C00U; ++half) {
    const double low = toFloat(Float16{static_cast<uint16_t>(half)});
    const double high = toFloat(Float16{static_cast<uint16_t>(half + 1)}), tie = (low + high) / 2;
    for (double value : {low, tie, std::nextafter(tie, low), std::nextafter(tie, high)})
      for (int sign : {-1, 1}) check(sign * value);
  }
  for (uint32_t bits = 1; bits + 1 < 0x7F80U; ++bits) {
    const double low = toFloat(BFloat16{static_cast<uint16_t>(bits)});
    const double high = toFloat(BFloat16{static_cast<uint16_t>(bits + 1)}), tie = (low + high) / 2;
    for (double value : {std::nextafter(tie, low), std::nextafter(tie, high)}) nearest(value, rounded<BFloat16>(value));
  }
  EXPECT_EQ(INFINITY, toFloat(rounded<Float16>(65520.0)));
  EXPECT_EQ(65504.0F, toFloat(rounded<Float16>(std::nextafter(65520.0, 0.0))));
  EXPECT_TRUE(std::isnan(toFloat(rounded<Float16>(std::nan("")))));
}

TEST(DataTypeTest, KnowsItsNumbers) {
  for (int value = 0; value < 256; ++value) {
    EXPECT_EQ(isDataType(static_cast<uint8_t>(value)), value >= 1 && value <= 15);
    EXPECT_EQ(isReduceOp(static_cast<uint8_t>(value)), value >= 1 && value <= 5);
  }
  EXPECT_EQ(sizeOf(DataType::kFloat16), 2U);
  EXPECT_EQ(sizeOf(DataType::kFloat64), 8U);
  EXPECT_EQ(sizeOf(DataType::kUint8), 1U);
  EXPECT_EQ(sizeOf(DataType::kBool), 1U);
  EXPECT_EQ(sizeOf(DataType::kComplex64), 8U);
  EXPECT_EQ(sizeOf(DataType::kComplex128), 16U);
}

}  // namespace
}  // namespace treadle::group::data_type_test
