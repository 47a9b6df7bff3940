// All-reduces beside their closed forms (reductions_test.cc): what a type lacks, the same bits on all members, and many
// at a time.

#include <cmath>
#include <complex>
#include <cstring>
#include <thread>

#include "tests/core/group/group_job.h"

namespace treadle::all_reduce_test {
namespace {

using group::Bool;
using test::GroupJob;

using Complex = std::complex<double>;

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
