// Sums of every type by the instructions of every processor kind: against a loop of plain additions, to the bit.

#include "treadle/core/summation/sum.h"

#include <bit>
#include <cstring>
#include <vector>

#include "tests/support/seeds.h"
#include "treadle/core/group/half.h"
#include "treadle/core/summation/sum_kernels.h"

namespace treadle::summation::sum_test {
namespace {

using group::BFloat16;
using group::DataType;
using group::Float16;
using test::pick;
using test::Random;

// One addition after the other, as the header says.
template <class T>
T added(const std::vector<std::vector<T>>& addends, size_t i) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    float all = group::toFloat(addends[0][i]);
    for (size_t one = 1; one < addends.size(); ++one) all += group::toFloat(addends[one][i]);
    return group::toHalf<T>(all);
  } else {
    T all = addends[0][i];
    for (size_t one = 1; one < addends.size(); ++one) all = static_cast<T>(all + addends[one][i]);
    return all;
  }
}

// Any bits but those of a NaN, which differ by processor. Few exponents, so that sums round in many ways.
template <class T>
T drawn(Random& random) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    return static_cast<T>(static_cast<int64_t>(random())) *
           static_cast<T>(std::ldexp(1.0, static_cast<int>(pick(random, 40)) - 70));
  } else if constexpr (std::is_same_v<T, Float16>) {
    return {static_cast<uint16_t>(random() & 0xF7FF)};  // below 2^15: a sum may become infinite, and no NaN
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return {static_cast<uint16_t>(random() & 0xBFFF)};
  } else {
    return static_cast<T>(random());
  }
}

std::vector<const SumKernels*> kernelsToTry() {
  std::vector<const SumKernels*> all = {&portableKernels()};
  for (const SumKernels* one : {avx2Kernels(), avx512Kernels()})
    if (one != nullptr) all.push_back(one);
  return all;
}

struct Counts {
  size_t addends, elements;
};
constexpr Counts kCounts[] = {{1, 0}, {1, 1}, {2, 1}, {2, 7}, {3, 31}, {2, 64}, {5, 1000}, {9, 4099}, {2, 16'384}};

template <class T>
void expectSums(Kernel kernel, Random& random, const Counts& counts) {
  std::vector<std::vector<T>> addends(counts.addends, std::vector<T>(counts.elements));
  for (auto& one : addends)
    for (T& element : one) element = drawn<T>(random);
  std::vector<const std::byte*> pointers;
  for (const auto& one : addends) pointers.push_back(reinterpret_cast<const std::byte*>(one.data()));
  std::vector<T> sums(counts.elements);
  const size_t done = kernel(pointers, 0, counts.elements, reinterpret_cast<std::byte*>(sums.data()));
  ASSERT_LE(done, counts.elements);
  EXPECT_GT(done + 64 / sizeof(T), counts.elements) << "less than a vector is left";
  for (size_t i = 0; i < done; ++i) {
    const T expected = added(addends, i);
    ASSERT_EQ(0, std::memcmp(&expected, &sums[i], sizeof(T))) << "element " << i << " of " << counts.elements;
  }
}

TEST(SumKernels, AddAsPlainLoopsDoToTheBit) {
  test::forSeeds(20, [](Random& random) {
    for (const SumKernels* kernels : kernelsToTry()) {
      for (const Counts& counts : kCounts) {
        SCOPED_TRACE(std::string(kernels->name) + " " + std::to_string(counts.addends) + " addends");
        expectSums<Float16>(kernels->float16, random, counts);
        expectSums<BFloat16>(kernels->bfloat16, random, counts);
        expectSums<float>(kernels->float32, random, counts);
        expectSums<double>(kernels->float64, random, counts);
        expectSums<uint8_t>(kernels->int8, random, counts);
        expectSums<uint16_t>(kernels->int16, random, counts);
        expectSums<uint32_t>(kernels->int32, random, counts);
        expectSums<uint64_t>(kernels->int64, random, counts);
      }
    }
  });
}

// Each 16-bit float comes out of a sum of one as it went in, but for the bits of a NaN, which stays one.
TEST(SumKernels, ConvertEach16BitFloatThereAndBack) {
  std::vector<uint16_t> all(65'536), sums(65'536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const std::vector<const std::byte*> one = {reinterpret_cast<const std::byte*>(all.data())};
  for (const SumKernels* kernels : kernelsToTry()) {
    for (auto [kernel, exponent] : {std::pair(kernels->float16, 0x7C00), {kernels->bfloat16, 0x7F80}}) {
      EXPECT_EQ(all.size(), kernel(one, 0, all.size(), reinterpret_cast<std::byte*>(sums.data())));
      for (size_t i = 0; i < all.size(); ++i) {
        const bool isNan = (all[i] & 0x7FFF) > exponent;
        EXPECT_TRUE(isNan ? (sums[i] & 0x7FFF) > exponent : sums[i] == all[i]) << kernels->name << " " << i;
      }
    }
  }
}

TEST(Sum, IsOfAllElementsAndMayReplaceAnAddend) {
  for (size_t count : {1, 15, 1001}) {
    std::vector<float> a(count, 1.5F), b(count, 2);
    const std::vector<const std::byte*> addends = {reinterpret_cast<const std::byte*>(a.data()),
                                                   reinterpret_cast<const std::byte*>(b.data())};
    sum(DataType::kFloat32, addends, count, reinterpret_cast<std::byte*>(b.data()));
    EXPECT_EQ(std::vector<float>(count, 3.5F), b);
  }
}

TEST(Sum, OfComplexNumbersAddsBothParts) {
  std::vector<std::complex<double>> a(9, {1, 2}), b(9, {3, -5});
  const std::vector<const std::byte*> addends = {reinterpret_cast<const std::byte*>(a.data()),
                                                 reinterpret_cast<const std::byte*>(b.data())};
  sum(DataType::kComplex128, addends, a.size(), reinterpret_cast<std::byte*>(a.data()));
  EXPECT_EQ((std::vector<std::complex<double>>(9, {4, -3})), a);
}

// 2048 + 1 is no half, and rounds to even: a rounding after each addition would lose all the ones.
TEST(Sum, Of16BitFloatsRoundsOnce) {
  const std::vector<Float16> large(3, group::toFloat16(2048)), one(3, group::toFloat16(1));
  std::vector<const std::byte*> addends = {reinterpret_cast<const std::byte*>(large.data())};
  addends.resize(9, reinterpret_cast<const std::byte*>(one.data()));
  std::vector<Float16> result(3);
  sum(DataType::kFloat16, addends, 3, reinterpret_cast<std::byte*>(result.data()));
  EXPECT_EQ(2056, group::toFloat(result[2]));
}

TEST(SumDeathTest, OfBooleansIsAMistake) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::byte byte{1};
  const std::vector<const std::byte*> addends = {&byte};
  std::byte result{0};
  EXPECT_DEATH(sum(DataType::kBool, addends, 1, &result), "a sum of nothing, or of booleans");
}

}  // namespace
}  // namespace treadle::summation::sum_test
