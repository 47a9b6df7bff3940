// All-reduce against closed forms: 1 to 9 and 17 members, all types and reductions, small and large, the same bits on
// all members.

#include <cmath>
#include <cstring>
#include <thread>

#include "tests/core/group/group_job.h"
#include "treadle/core/group/half.h"

namespace treadle::all_reduce_test {
namespace {

using group::BFloat16;
using group::Bool;
using group::Float16;
using test::GroupJob;

// Numbers of every type through doubles that it can represent. A boolean says whether the number is above 1.
template <class T>
T fromDouble(double value) {
  if constexpr (std::is_same_v<T, Float16>) {
    return group::toFloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return group::toBFloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, Bool>) {
    return Bool{static_cast<uint8_t>(value > 1)};
  } else {
    return static_cast<T>(value);
  }
}
template <class T>
double toDouble(T value) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    return double{group::toFloat(value)};
  } else if constexpr (std::is_same_v<T, Bool>) {
    return value.value;
  } else if constexpr (requires { value.real(); }) {
    return value.real();
  } else {
    return static_cast<double>(value);
  }
}

// 1, 2 or 3, not the same on all ranks; sums and products of five ranks are exact in every type.
double valueOf(int rank, size_t i) { return static_cast<double>((i + static_cast<size_t>(rank)) % 3 + 1); }

double expected(ReduceOp op, int size, size_t i) {
  double result = valueOf(0, i);
  for (int rank = 1; rank < size; ++rank) {
    double value = valueOf(rank, i);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage: result += value; break;
      case ReduceOp::kMin: result = std::min(result, value); break;
      case ReduceOp::kMax: result = std::max(result, value); break;
      case ReduceOp::kProduct: result *= value; break;
    }
  }
  return op == ReduceOp::kAverage ? result / size : result;
}

template <class T>
void check(std::vector<ProcessGroup>& groups, ReduceOp op, size_t count) {
  int size = static_cast<int>(groups.size());
  std::vector<std::vector<T>> data(groups.size());
  std::vector<Future<void>> futures;
  for (int rank = 0; rank < size; ++rank) {
    auto& mine = data[static_cast<size_t>(rank)];
    for (size_t i = 0; i < count; ++i) mine.push_back(fromDouble<T>(valueOf(rank, i)));
    futures.push_back(allReduce(groups[static_cast<size_t>(rank)], std::span(mine), op));
  }
  test::waitAll(futures);
  for (size_t i = 0; i < count; ++i) {
    double want = toDouble(fromDouble<T>(expected(op, size, i)));
    ASSERT_EQ(toDouble(data[0][i]), want) << group::nameOf(op) << " of " << count << ", element " << i;
  }
  for (size_t rank = 1; rank < data.size() && count > 0; ++rank)
    ASSERT_EQ(std::memcmp(data[rank].data(), data[0].data(), count * sizeof(T)), 0) << "rank " << rank;
}

using Complex = std::complex<double>;

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

template <class T>
class AllReduceTest : public ::testing::Test {};
using Types = ::testing::Types<Float16, BFloat16, float, double, int8_t, int16_t, int32_t, int64_t, uint8_t, Bool,
                               uint16_t, uint32_t, uint64_t, std::complex<float>, Complex>;
TYPED_TEST_SUITE(AllReduceTest, Types);

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

TYPED_TEST(AllReduceTest, IsRightForEverySizeAndOperation) {
  for (int size = 1; size <= 5; ++size) {
    GroupJob job(size);
    // The ring, or direct blocks, with their edges (empty blocks, many chunks), and the one-step exchange.
    const Algorithm around = kIsHalf<TypeParam> ? Algorithm::kDirect : Algorithm::kRing;
    std::vector<ProcessGroup> ring = job.makeAll({.chunkBytes = 64, .algorithm = around});
    std::vector<ProcessGroup> exchange = job.makeAll();
    for (ReduceOp op : kOps) {
      if (!group::checkReduces(group::DataTypeOf<TypeParam>::kValue, op).ok()) continue;
      for (size_t count :
           {size_t{0}, size_t{1}, static_cast<size_t>(size - 1), static_cast<size_t>(size), size_t{1003}}) {
        check<TypeParam>(ring, op, count);
        check<TypeParam>(exchange, op, count);
        if (this->HasFatalFailure()) return;
      }
    }
  }
}

// The table of docs/protocol/group.md: sums of 16-bit floats are rounded once.
template <class T>
std::vector<Algorithm> algorithmsFor(int size) {
  std::vector<Algorithm> algorithms = {size > 16 ? Algorithm::kTree : Algorithm::kExchange, Algorithm::kRoot,
                                       Algorithm::kRing, Algorithm::kCirculant, Algorithm::kDirect};
  if (kIsHalf<T>) {
    algorithms = {Algorithm::kRoot, Algorithm::kDirect};
    if (size <= 16) algorithms.push_back(Algorithm::kExchange);
  }
  return algorithms;
}

TYPED_TEST(AllReduceTest, IsRightByEveryAlgorithm) {
  const ReduceOp op = std::is_same_v<TypeParam, Bool> ? ReduceOp::kMax : ReduceOp::kSum;
  for (int size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
    GroupJob job(size);
    for (Algorithm algorithm : algorithmsFor<TypeParam>(size)) {
      std::vector<ProcessGroup> groups = job.makeAll({.chunkBytes = 256, .algorithm = algorithm});
      const bool large = algorithm != Algorithm::kExchange && algorithm != Algorithm::kTree;
      std::vector<size_t> counts = {0, 1, 1009};
      if (large && size % 4 == 3) counts.push_back(40'009);  // many windows
      for (size_t count : counts) {
        SCOPED_TRACE(std::string(group::nameOf(algorithm)) + " among " + std::to_string(size));
        check<TypeParam>(groups, op, count);
        if (this->HasFatalFailure()) return;
      }
    }
  }
}

// The root of a reduce gets all elements, and each member of a reduce-scatter those from `rank * count` on.
template <class T>
void checkParts(std::vector<ProcessGroup>& groups, ReduceOp op, size_t count) {
  const Algorithm algorithm = groups[0].options().algorithm;
  const bool reduces = algorithm != Algorithm::kCirculant, scatters = algorithm != Algorithm::kRoot;
  const int size = static_cast<int>(groups.size()), root = size / 2;
  const size_t all = count * groups.size();
  std::vector<std::vector<T>> inputs(groups.size()), parts(groups.size(), std::vector<T>(count));
  std::vector<T> whole(all);
  std::vector<Future<void>> futures;
  for (int rank = 0; rank < size; ++rank) {
    const auto self = static_cast<size_t>(rank);
    for (size_t i = 0; i < all; ++i) inputs[self].push_back(fromDouble<T>(valueOf(rank, i)));
    const std::span<const T> input(inputs[self]);
    if (reduces)
      futures.push_back(reduce(groups[self], input, rank == root ? std::span<T>(whole) : std::span<T>(), root, op));
    if (scatters) futures.push_back(reduceScatter(groups[self], input, std::span<T>(parts[self]), op));
  }
  test::waitAll(futures);
  for (size_t i = 0; i < all; ++i) {
    const double want = toDouble(fromDouble<T>(expected(op, size, i)));
    if (reduces) {
      ASSERT_EQ(toDouble(whole[i]), want) << "reduce, element " << i;
    }
    if (scatters) {
      ASSERT_EQ(toDouble(parts[i / count][i % count]), want) << "reduceScatter, element " << i;
    }
  }
}

TYPED_TEST(AllReduceTest, AndItsPartsAreRightByEveryAlgorithm) {
  const ReduceOp op = std::is_same_v<TypeParam, Bool> ? ReduceOp::kMax : ReduceOp::kSum;
  for (int size : {1, 2, 5, 8, 17}) {
    GroupJob job(size);
    std::vector<Algorithm> algorithms = {Algorithm::kRoot, Algorithm::kDirect};
    if (size <= 16) algorithms.push_back(Algorithm::kExchange);
    if (!kIsHalf<TypeParam>) algorithms.push_back(Algorithm::kCirculant);
    for (Algorithm algorithm : algorithms) {
      SCOPED_TRACE(std::string(group::nameOf(algorithm)) + " among " + std::to_string(size));
      std::vector<ProcessGroup> groups = job.makeAll({.chunkBytes = 256, .algorithm = algorithm});
      for (size_t count : {size_t{0}, size_t{1}, size_t{101}}) checkParts<TypeParam>(groups, op, count);
      if (this->HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(AllReduceTest, IsRightForAMillionElements) {
  for (int size : {2, 3, 5}) {
    GroupJob job(size);
    std::vector<ProcessGroup> groups = job.makeAll();
    check<TypeParam>(groups, std::is_same_v<TypeParam, Bool> ? ReduceOp::kMax : ReduceOp::kAverage, 1'000'003);
  }
}

TEST(AllReduceComplexTest, AddsMultipliesAndAveragesComplexNumbers) {
  constexpr Complex kValues[] = {{1, 2}, {3, -1}, {-2, 2}};
  GroupJob job(3);
  std::vector<ProcessGroup> ring = job.makeAll({.chunkBytes = 64, .algorithm = Algorithm::kRing}),
                            exchange = job.makeAll();
  const auto result = [&](std::vector<ProcessGroup>& groups, ReduceOp op) {
    std::vector<std::vector<Complex>> data;
    std::vector<Future<void>> futures;
    for (const Complex& value : kValues) data.emplace_back(1003, value);
    for (size_t rank = 0; rank < data.size(); ++rank)
      futures.push_back(allReduce(groups[rank], std::span(data[rank]), op));
    test::waitAll(futures);
    for (const auto& mine : data) EXPECT_EQ(mine, std::vector<Complex>(1003, data[0][0]));
    return data[0][0];
  };
  for (auto* groups : {&ring, &exchange}) {
    EXPECT_EQ(result(*groups, ReduceOp::kSum), Complex(2, 3));
    EXPECT_EQ(result(*groups, ReduceOp::kAverage), Complex(2.0 / 3, 1));
    EXPECT_EQ(result(*groups, ReduceOp::kProduct), Complex(-20, 0));
  }
}

TEST(AllReduceTypesTest, ReductionsThatATypeLacksAreRefusedAtOnceAndCountForNothing) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll();
  Bool truth{1};
  Complex number{1, 2};
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kProduct})
    EXPECT_THROW(allReduce(groups[0], std::span(&truth, 1), op), ArgumentError);
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_THROW(allReduce(groups[0], std::span(&number, 1), op), ArgumentError);
    EXPECT_THROW(reduce(groups[0], std::span<const Complex>(&number, 1), std::span<Complex>(&number, 1), 0, op),
                 ArgumentError);
    EXPECT_THROW(reduceScatter(groups[0], std::span<const Complex>(&number, 1), std::span<Complex>(&number, 1), op),
                 ArgumentError);
  }
  std::vector<Future<void>> futures = {barrier(groups[0]), barrier(groups[1])};
  test::waitAll(futures);
}

// A byte that is no C++ bool, as a peer might send it, counts as true, and does not spread.
TEST(AllReduceTypesTest, AnyByteButZeroIsTrue) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll();
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    std::vector<std::vector<Bool>> data = {{Bool{2}, Bool{0}, Bool{7}}, {Bool{0}, Bool{0}, Bool{1}}};
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank < 2; ++rank) futures.push_back(allReduce(groups[rank], std::span(data[rank]), op));
    test::waitAll(futures);
    for (const auto& mine : data) {
      EXPECT_EQ(mine[0].value, op == ReduceOp::kMax ? 1 : 0);
      EXPECT_EQ(mine[1].value, 0);
      EXPECT_EQ(mine[2].value, 1);
    }
  }
}

// Random floats: the sum depends on the order of additions, and all must have taken the same one.
TEST(AllReduceBitsTest, AreTheSameOnAllRanksAndNearTheTruth) {
  std::mt19937 random(test::seedOfRun());
  std::normal_distribution<float> normal;
  for (int size : {2, 3, 4, 5}) {
    GroupJob job(size);
    std::vector<ProcessGroup> groups = job.makeAll();
    for (size_t count : {size_t{170}, size_t{300'001}}) {
      std::vector<std::vector<float>> data(groups.size(), std::vector<float>(count));
      std::vector<double> sum(count), scale(count);
      for (auto& mine : data)
        for (size_t i = 0; i < count; ++i) {
          mine[i] = normal(random);
          sum[i] += double{mine[i]};
          scale[i] += std::abs(double{mine[i]});
        }
      std::vector<Future<void>> futures;
      for (size_t rank = 0; rank < data.size(); ++rank)
        futures.push_back(allReduce(groups[rank], std::span(data[rank])));
      test::waitAll(futures);
      for (size_t i = 0; i < count; ++i) ASSERT_NEAR(double{data[0][i]}, sum[i], scale[i] * 1e-6);
      for (auto& other : data) ASSERT_EQ(std::memcmp(other.data(), data[0].data(), count * sizeof(float)), 0);
    }
  }
}

TEST(AllReduceManyTest, AnyNumberMayBeUnderWay) {
  constexpr int kSize = 3, kOperations = 1000;
  std::mt19937 random(test::seedOfRun());
  GroupJob job(kSize);
  std::vector<ProcessGroup> groups = job.makeAll();
  std::vector<size_t> counts;
  for (int i = 0; i < kOperations; ++i) counts.push_back(i % 50 == 0 ? 30'000 : random() % 300);
  std::vector<std::vector<std::vector<int64_t>>> data(kSize);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < kSize; ++rank)
    threads.emplace_back([&, rank] {
      std::vector<Future<void>> futures;
      for (size_t count : counts) data[rank].emplace_back(count, static_cast<int64_t>(count + rank));
      for (auto& one : data[rank]) futures.push_back(allReduce(groups[rank], std::span(one)));
      test::waitAll(futures);
    });
  for (std::thread& thread : threads) thread.join();
  for (auto& mine : data)
    for (size_t i = 0; i < counts.size(); ++i)
      for (int64_t value : mine[i]) ASSERT_EQ(value, static_cast<int64_t>(3 * counts[i] + 3));
}

TEST(AllReduceManyTest, GroupsMayOverlap) {
  GroupJob job(4);
  const std::vector<std::vector<int>> memberships = {{0, 1, 2, 3}, {0, 1}, {1, 2, 3}, {3, 0}, {2, 1, 0}};
  struct Part {
    ProcessGroup group;
    std::vector<double> data;
  };
  std::vector<std::vector<Part>> parts(memberships.size());
  std::vector<Future<void>> futures;
  for (size_t which = 0; which < memberships.size(); ++which) {
    std::vector<std::string> names;
    for (int rank : memberships[which]) names.push_back(test::LocalJob::nameOf(rank));
    for (int rank : memberships[which])
      parts[which].push_back(
          {ProcessGroup::make(job.worker(rank), names), std::vector<double>(50'000, static_cast<double>(rank + 1))});
  }
  for (size_t which = 0; which < parts.size(); ++which)
    for (Part& part : parts[which]) futures.push_back(allReduce(part.group, std::span(part.data)));
  test::waitAll(futures);
  for (size_t which = 0; which < parts.size(); ++which) {
    double sum = 0;
    for (int rank : memberships[which]) sum += rank + 1;
    for (Part& part : parts[which])
      for (double value : part.data) ASSERT_EQ(value, sum) << "group " << which;
  }
}

TEST(AllReduceManyTest, ContinuationsMayStartTheNext) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll();
  std::vector<int32_t> values = {1, 1};
  std::vector<Future<void>> ends;
  for (size_t rank = 0; rank < 2; ++rank) {
    auto first = allReduce(groups[rank], std::span(&values[rank], 1));
    ends.push_back(first.then([&, rank] { allReduce(groups[rank], std::span(&values[rank], 1)).wait(); }));
  }
  test::waitAll(ends);
  EXPECT_EQ(values, (std::vector<int32_t>{4, 4}));
}

}  // namespace
}  // namespace treadle::all_reduce_test
