// Sums and averages of 16-bit floats are rounded once, whatever the operation, the number of members and the algorithm:
// those of exact arithmetic where one member combines the values of all, and of float arithmetic where partial sums
// travel. Where they do not travel, they cost no more bytes than a ring of 16-bit values.

#include <cmath>
#include <cstring>

#include "tests/core/group/group_job.h"
#include "tests/support/descriptors.h"
#include "treadle/core/group/half.h"

namespace treadle::half_sums_test {
namespace {

using group::Algorithm;
using group::BFloat16;
using group::Float16;
using group::SumOrder;
using test::GroupJob;

template <class T>
struct Format;
template <>
struct Format<Float16> {
  static constexpr int kPrecision = 11, kLeastExponent = -14;
  static constexpr double kMost = 65504;
  static Float16 of(double value) { return group::rounded<Float16>(value); }
};
template <>
struct Format<BFloat16> {
  static constexpr int kPrecision = 8, kLeastExponent = -126;
  static constexpr double kMost = 0x1.FEp127;
  static BFloat16 of(double value) { return group::rounded<BFloat16>(value); }
};

// Half of the distance of the numbers around `value`.
template <class T>
double halfStep(double value) {
  const int exponent = std::max(value == 0 ? -1000 : std::ilogb(value), Format<T>::kLeastExponent);
  return std::ldexp(1, exponent - Format<T>::kPrecision);
}

// Values whose sums lose most when they are rounded on the way: large ones that cancel, small ones beside large ones,
// the largest that there is, some below the normal range.
template <class T>
T hostile(std::mt19937& random) {
  std::uniform_real_distribution<double> mantissa(-2, 2);
  switch (random() % 4) {
    case 0: return Format<T>::of(mantissa(random) * 10'000);
    case 1: return Format<T>::of(mantissa(random));
    case 2: return Format<T>::of(std::ldexp(mantissa(random), Format<T>::kLeastExponent - 2));
    default: return Format<T>::of(random() % 2 == 0 ? 512 : -511.5);
  }
}

template <class T>
void expectBits(const std::vector<T>& is, const std::vector<T>& wanted) {
  ASSERT_EQ(std::memcmp(is.data(), wanted.data(), wanted.size() * sizeof(T)), 0);
}

enum class Sums { kExact, kOfFloats };

// How far an average may be from that of exact arithmetic, where the values' magnitudes sum to `magnitudes`. n-1
// partial sums and the average are rounded to float: that is less than n roundings of `magnitudes`, divided by n.
template <class T>
double allowed(Sums sums, double average, double magnitudes) {
  return halfStep<T>(average) + (sums == Sums::kExact ? 0 : std::ldexp(magnitudes, -24));
}

// The same averages by a reduce and by a reduce-scatter.
template <class T>
void checkParts(std::vector<ProcessGroup>& groups, const std::vector<std::vector<T>>& inputs,
                const std::vector<T>& averages) {
  const size_t last = groups.size() - 1, count = averages.size(), each = count / groups.size();
  std::vector<uint64_t> counts(groups.size(), each);
  counts[last] = count - last * each;
  std::vector<T> reduced(count), scattered(count);
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    const std::span<const T> input(inputs[rank]);
    futures.push_back(reduce(groups[rank], input, std::span(reduced).first(rank == last ? count : 0),
                             static_cast<int>(last), ReduceOp::kAverage));
    futures.push_back(reduceScatter(groups[rank], input, std::span(scattered).subspan(rank * each, counts[rank]),
                                    ReduceOp::kAverage, counts));
  }
  test::waitAll(futures);
  expectBits(reduced, averages);
  expectBits(scattered, averages);
}

template <class T>
void checkAverages(std::vector<ProcessGroup>& groups, size_t count, std::mt19937& random, Sums sums = Sums::kExact) {
  std::vector<std::vector<T>> inputs(groups.size());
  std::vector<double> sum(count), magnitudes(count);
  const double most = sums == Sums::kExact ? Format<T>::kMost : std::min(Format<T>::kMost, 0x1p100);  // floats overflow
  for (auto& mine : inputs)
    for (size_t i = 0; i < count; ++i) {
      mine.push_back(i == 0 ? Format<T>::of(20'000) : i == 1 ? Format<T>::of(most) : hostile<T>(random));
      sum[i] += group::toFloat(mine.back());
      magnitudes[i] += std::abs(group::toFloat(mine.back()));
    }
  auto data = inputs;
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < groups.size(); ++rank)
    futures.push_back(allReduce(groups[rank], std::span(data[rank]), ReduceOp::kAverage));
  test::waitAll(futures);
  for (size_t i = 0; i < count; ++i) {
    const double want = sum[i] / static_cast<double>(groups.size());
    ASSERT_LE(std::abs(double{group::toFloat(data[0][i])} - want), allowed<T>(sums, want, magnitudes[i]))
        << "element " << i << ": " << want;
  }
  for (auto& other : data) expectBits(other, data[0]);
  if (sums == Sums::kExact) checkParts(groups, inputs, data[0]);
}

template <class T>
class HalfSums : public ::testing::Test {};
using Halves = ::testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(HalfSums, Halves);

TYPED_TEST(HalfSums, AreRoundedOnce) {
  std::mt19937 random(1);
  for (int size : {2, 3, 7}) {
    GroupJob job(size);
    std::vector<ProcessGroup> chunks = job.makeAll({.smallBytes = 0, .chunkBytes = 64, .sumOrder = SumOrder::kRank}),
                              usual = job.makeAll({.sumOrder = SumOrder::kRank});
    for (size_t count : {size_t{2}, static_cast<size_t>(size), size_t{1003}})
      for (auto* groups : {&chunks, &usual}) checkAverages<TypeParam>(*groups, count, random);
    checkAverages<TypeParam>(usual, 200'001, random);
  }
}

TYPED_TEST(HalfSums, AreRoundedOnceForManyMembers) {
  constexpr int kSize = 64;
  if (!test::mayHaveDescriptors(10'000)) GTEST_SKIP() << "this process may not have so many sockets";
  std::mt19937 random(1);
  GroupJob job(kSize);
  std::vector<ProcessGroup> groups =
      job.makeAll({.timeout = test::kPatience, .smallBytes = 0, .chunkBytes = 64, .sumOrder = SumOrder::kRank});
  checkAverages<TypeParam>(groups, 64 * 150 + 7, random);
}

TYPED_TEST(HalfSums, OfPartialSumsAreThoseOfFloatsRoundedOnce) {
  std::mt19937 random(1);
  for (const auto& [size, hosts, algorithm] :
       {std::tuple{2, 1, Algorithm::kRing}, std::tuple{7, 1, Algorithm::kRing}, std::tuple{7, 1, Algorithm::kCirculant},
        std::tuple{8, 2, Algorithm::kHierarchical}, std::tuple{17, 1, Algorithm::kTree}}) {
    SCOPED_TRACE(group::nameOf(algorithm));
    GroupJob job(size);
    job.spreadOver(hosts);
    const bool isLarge = algorithm != Algorithm::kTree;
    std::vector<ProcessGroup> groups =
        job.makeAll({.smallBytes = isLarge ? size_t{0} : size_t{1} << 16, .chunkBytes = 64, .algorithm = algorithm});
    for (size_t count : {size_t{2}, size_t{1003}}) checkAverages<TypeParam>(groups, count, random, Sums::kOfFloats);
  }
}

// A member without a block may give any memory for it.
TEST(HalfSumsMemory, OfAnEmptyOutputWhereTheInputBeginsIsNotTheInput) {
  GroupJob job(2);
  const std::vector<ProcessGroup> groups =
      job.makeAll({.smallBytes = 0, .chunkBytes = 64, .algorithm = Algorithm::kCirculant});
  constexpr size_t kCount = 100;
  const Float16 signalling{0x7D01};  // what float32 makes quiet
  std::vector<std::vector<Float16>> data(2, std::vector<Float16>(kCount, signalling));
  std::vector<Float16> sums(kCount);
  const std::vector<uint64_t> counts = {0, kCount};
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < 2; ++rank)
    futures.push_back(reduceScatter(groups[rank], std::span<const Float16>(data[rank]),
                                    rank == 0 ? std::span(data[0]).first(0) : std::span(sums), ReduceOp::kSum, counts));
  test::waitAll(futures);
  for (const Float16& value : data[0]) ASSERT_EQ(value.bits, signalling.bits);
}

// What bfloat16 loses when each addition is rounded.
TEST(HalfSumsValues, TakeInHalvesBesideFiveHundredAndTwelve) {
  GroupJob job(4);
  for (size_t smallBytes : {size_t{0}, size_t{1} << 16}) {
    std::vector<ProcessGroup> groups = job.makeAll({.smallBytes = smallBytes});
    std::vector<std::vector<BFloat16>> data;
    std::vector<Future<void>> futures;
    for (float value : {512.0F, 1.0F, 1.0F, 2.0F}) data.emplace_back(100, group::toBFloat16(value));
    for (size_t rank = 0; rank < 4; ++rank) futures.push_back(allReduce(groups[rank], std::span(data[rank])));
    test::waitAll(futures);
    EXPECT_EQ(516, group::toFloat(data[0][7]));
  }
}

// Sums and products likewise. NaN and infinity come through.
TYPED_TEST(HalfSums, OfWhatIsNoNumberAreNone) {
  GroupJob job(3);
  for (size_t smallBytes : {size_t{0}, size_t{1} << 16}) {
    std::vector<ProcessGroup> groups = job.makeAll({.smallBytes = smallBytes});
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kProduct}) {
      std::vector<std::vector<TypeParam>> data;
      std::vector<Future<void>> futures;
      for (double odd : {HUGE_VAL, 1.0, 1.0})
        data.push_back({Format<TypeParam>::of(NAN), Format<TypeParam>::of(odd), Format<TypeParam>::of(2)});
      for (size_t rank = 0; rank < 3; ++rank) futures.push_back(allReduce(groups[rank], std::span(data[rank]), op));
      test::waitAll(futures);
      EXPECT_TRUE(std::isnan(group::toFloat(data[0][0])));
      EXPECT_EQ(INFINITY, group::toFloat(data[0][1]));
      EXPECT_EQ(op == ReduceOp::kSum ? 6 : op == ReduceOp::kAverage ? 2 : 8, group::toFloat(data[0][2]));
    }
  }
}

uint64_t bytesSent(GroupJob& job, int rank) {
  uint64_t bytes = 0;
  for (int peer = 0; peer < job.size(); ++peer)
    bytes += valueOrThrow(job.local().worker(rank).membership->channels(peer)).unixSockets.sentBytes;
  return bytes;
}

TEST(HalfSumsCost, AsManyBytesAsARing) {
  constexpr int kSize = 4;
  constexpr size_t kCount = 1 << 20;
  GroupJob job(kSize);
  const std::vector<ProcessGroup> any = job.makeAll(), ring = job.makeAll({.algorithm = Algorithm::kRing});
  std::vector<std::vector<Float16>> data(kSize, std::vector<Float16>(kCount, group::toFloat16(1.0F)));
  const auto bytesOf = [&](ReduceOp op, const std::vector<ProcessGroup>& groups) {
    const uint64_t before = bytesSent(job, 0);
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank < kSize; ++rank) futures.push_back(allReduce(groups[rank], std::span(data[rank]), op));
    test::waitAll(futures);
    return bytesSent(job, 0) - before;
  };
  const uint64_t bytes = bytesOf(ReduceOp::kMax, any);
  EXPECT_EQ(bytes, 2 * (kSize - 1) * kCount * sizeof(Float16) / kSize) << "around the ring";
  EXPECT_EQ(bytesOf(ReduceOp::kAverage, any), bytes);
  EXPECT_EQ(bytesOf(ReduceOp::kMax, ring), bytes);
  EXPECT_EQ(bytesOf(ReduceOp::kAverage, ring), 2 * bytes) << "as float32";
}

}  // namespace
}  // namespace treadle::half_sums_test
