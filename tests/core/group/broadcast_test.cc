#include <atomic>
#include <numeric>
#include <thread>

#include "tests/core/group/group_job.h"

namespace treadle::broadcast_test {
namespace {

using test::GroupJob;

TEST(BroadcastTest, BringsTheRootsBytesEverywhere) {
  for (int size = 1; size <= 5; ++size) {
    GroupJob job(size);
    std::vector<ProcessGroup> ring = job.makeAll({.smallBytes = 0, .chunkBytes = 1024});
    std::vector<ProcessGroup> exchange = job.makeAll();
    for (auto* groups : {&ring, &exchange})
      for (int root = 0; root < size; ++root)
        for (size_t count : {size_t{0}, size_t{1}, size_t{999}, size_t{100'003}}) {
          std::vector<std::vector<int32_t>> data(static_cast<size_t>(size), std::vector<int32_t>(count, -1));
          std::iota(data[static_cast<size_t>(root)].begin(), data[static_cast<size_t>(root)].end(), root);
          std::vector<Future<void>> futures;
          for (size_t rank = 0; rank < data.size(); ++rank)
            futures.push_back(broadcast((*groups)[rank], std::span(data[rank]), root));
          test::waitAll(futures);
          for (auto& mine : data) ASSERT_EQ(mine, data[static_cast<size_t>(root)]);
        }
  }
}

TEST(BroadcastTest, ARootThatIsNoneIsRefusedAtOnceAndCountsForNothing) {
  GroupJob job(2);
  std::vector<ProcessGroup> groups = job.makeAll();
  std::byte byte{};
  EXPECT_THROW(broadcast(groups[0], MutableBytes(&byte, 1), 2), ArgumentError);
  EXPECT_THROW(broadcast(groups[0], MutableBytes(&byte, 1), -1), ArgumentError);
  std::vector<Future<void>> futures = {barrier(groups[0]), barrier(groups[1])};
  test::waitAll(futures);
}

TEST(BarrierTest, NobodyLeavesBeforeAllHaveCome) {
  constexpr int kSize = 4, kRounds = 50;
  GroupJob job(kSize);
  std::vector<ProcessGroup> groups = job.makeAll();
  std::atomic<int> arrived = 0;
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < kSize; ++rank)
    threads.emplace_back([&, rank] {
      for (int round = 1; round <= kRounds; ++round) {
        ++arrived;
        barrier(groups[rank]).wait(test::kPatience);
        EXPECT_GE(arrived.load(), round * kSize);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(BarrierTest, WaitsForTheLast) {
  GroupJob job(3);
  std::vector<ProcessGroup> groups = job.makeAll();
  std::vector<Future<void>> futures = {barrier(groups[0]), barrier(groups[1])};
  EXPECT_THROW(futures[0].wait(std::chrono::milliseconds(20)), TimeoutError);
  EXPECT_FALSE(futures[1].ready());
  futures.push_back(barrier(groups[2]));
  test::waitAll(futures);
}

}  // namespace
}  // namespace treadle::broadcast_test
