// Large data among slow members: nothing piles up and nothing locks up.

#include <atomic>

#include "tests/core/group/group_job.h"
#include "tests/core/group/sparse_rows.h"
#include "treadle/core/group/half.h"

namespace treadle::flow_test {
namespace {

using test::GroupJob;

// What all workers have queued for all others.
size_t mostQueued(test::LocalJob& job) {
  size_t most = 0;
  for (int from = 0; from < job.size(); ++from)
    for (int to = 0; to < job.size(); ++to) {
      auto connection = job.worker(from).membership->outgoing(to);
      if (connection.ok()) most = std::max(most, (*connection)->queuedBytes());
    }
  return most;
}

TEST(FlowTest, AHundredMegabytesEachWayThroughSmallSockets) {
  GroupJob job(2, {.sendBufferBytes = 16 << 10});
  std::vector<ProcessGroup> groups = job.makeAll();
  const size_t count = 100'000'000 / sizeof(float);
  std::vector<std::vector<float>> data = {std::vector<float>(count, 1), std::vector<float>(count, 2)};
  std::vector<Future<void>> futures = {allReduce(groups[0], std::span(data[0])),
                                       allReduce(groups[1], std::span(data[1]))};
  size_t most = 0;
  while (!futures[0].ready() || !futures[1].ready()) {
    most = std::max(most, mostQueued(job.local()));
    try {
      for (auto& future : futures) future.wait(std::chrono::milliseconds(2));
    } catch (const TimeoutError&) {}
  }
  test::waitAll(futures);
  EXPECT_LE(most, 8U << 20);
  for (auto& mine : data)
    for (float value : mine) ASSERT_EQ(value, 3);
}

// 26 MB of rows on each of three members, and as many of sums.
TEST(FlowTest, SparseRowsThroughSmallSockets) {
  constexpr uint64_t kRows = 100'000, kWidth = 64;
  GroupJob job(3, {.sendBufferBytes = 16 << 10});
  const std::vector<ProcessGroup> groups = job.makeAll();
  test::SparseMembers<float> members(3);
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < 3; ++rank) {
    for (uint64_t row = 0; row < kRows; ++row) members[rank].add(row, kWidth, 1);
    futures.push_back(members[rank].start(groups[rank], {{kRows, kWidth}, 1}));
  }
  size_t most = 0;
  for (Future<void>& future : futures)
    while (!future.ready()) {
      most = std::max(most, mostQueued(job.local()));
      try {
        future.wait(std::chrono::milliseconds(2));
      } catch (const TimeoutError&) {}
    }
  test::waitAll(futures);
  EXPECT_LE(most, 8U << 20);
  test::expectSums({{kRows, kWidth}, 1}, members);
}

TEST(FlowTest, HalvesOfThreeMembersThroughSmallSockets) {
  constexpr size_t kCount = 10'000'000;
  GroupJob job(3, {.sendBufferBytes = 16 << 10});
  std::vector<ProcessGroup> groups = job.makeAll();
  std::vector<std::vector<group::BFloat16>> data;
  for (float value : {1.0F, 2.0F, 3.0F}) data.emplace_back(kCount, group::toBFloat16(value));
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < 3; ++rank) futures.push_back(allReduce(groups[rank], std::span(data[rank])));
  test::waitAll(futures);
  for (auto& mine : data)
    for (group::BFloat16 value : mine) ASSERT_EQ(group::toFloat(value), 6);
}

template <class T>
class LateMemberTest : public ::testing::Test {};
using Types = ::testing::Types<double, group::BFloat16>;
TYPED_TEST_SUITE(LateMemberTest, Types);

template <class T>
T valueOf(float value) {
  if constexpr (std::is_same_v<T, group::BFloat16>) {
    return group::toBFloat16(value);
  } else {
    return value;
  }
}
double toDouble(double value) { return value; }
double toDouble(group::BFloat16 value) { return group::toFloat(value); }

// Twenty large operations of which one member starts none: the others send it nothing but that they have begun.
TYPED_TEST(LateMemberTest, GetsNothing) {
  GroupJob job(3, {.sendBufferBytes = 16 << 10});
  std::vector<ProcessGroup> groups = job.makeAll();
  std::vector<std::vector<TypeParam>> data(60, std::vector<TypeParam>(200'000, valueOf<TypeParam>(1)));
  std::vector<Future<void>> futures;
  auto startAll = [&](size_t rank) {
    for (size_t i = 0; i < 20; ++i) futures.push_back(allReduce(groups[rank], std::span(data[rank * 20 + i])));
  };
  startAll(0);
  startAll(1);
  EXPECT_THROW(futures[0].wait(std::chrono::milliseconds(50)), TimeoutError);
  EXPECT_LE(mostQueued(job.local()), 4U << 20);  // rank 0 may send to rank 1: two operations, their first segments
  startAll(2);
  test::waitAll(futures);
  for (auto& mine : data)
    for (TypeParam value : mine) ASSERT_EQ(toDouble(value), 3);
}

TEST(FlowTest, MixedSizesFromManyGroupsAtOnce) {
  constexpr size_t kGroups = 5, kEach = 12;
  std::mt19937 random(test::seedOfRun());
  GroupJob job(3, {.sendBufferBytes = 32 << 10});
  std::vector<size_t> counts;
  for (size_t i = 0; i < kGroups * kEach; ++i)
    counts.push_back(random() % 3 == 0 ? random() % 200'000 : random() % 5000);
  std::vector<std::vector<int32_t>> data;
  for (size_t rank = 0; rank < 3; ++rank)
    for (size_t count : counts) data.emplace_back(count, static_cast<int32_t>(rank + 1));
  std::vector<Future<void>> futures;
  for (size_t which = 0; which < kGroups; ++which) {
    std::vector<ProcessGroup> groups = job.makeAll();
    for (size_t rank = 0; rank < 3; ++rank)
      for (size_t i = 0; i < kEach; ++i)
        futures.push_back(allReduce(groups[rank], std::span(data[rank * counts.size() + which * kEach + i])));
  }
  test::waitAll(futures);
  for (auto& mine : data)
    for (int32_t value : mine) ASSERT_EQ(value, 6);
}

}  // namespace
}  // namespace treadle::flow_test
