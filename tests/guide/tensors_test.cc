// The code of docs/guide/fast_tensors.md.
#include <treadle/rpc.h>

#include <iostream>

#include "tests/support/tensor_job.h"

namespace {

at::Tensor identity(at::Tensor x) { return x; }
// [result]
// The rows that a trainer asks for, written straight to where they travel.
at::Tensor rowsOf(const at::Tensor& indexes) {
  at::Tensor rows = treadle::emptyShared({indexes.size(0), 64});
  at::index_select_out(rows, at::ones({1000, 64}), 0, indexes);
  return rows;
}
// [/result]

treadle::Functions functions() {
  treadle::Functions all;
  all.add<&identity>("identity").add<&rowsOf>("rowsOf");
  return all;
}

class GuideTensors : public ::testing::Test {
 protected:
  treadle::test::TensorJob job{{"A", "B"}, functions()};
  treadle::Worker& worker = job[0];
};

TEST_F(GuideTensors, MadeToTravel) {
  // [given]
  at::Tensor batch = treadle::emptyShared({1024, 1024});  // uninitialised, like at::empty
  batch.uniform_();
  batch = worker.call<&identity>("B", std::move(batch));  // there and back: no byte is copied
  // [/given]
  EXPECT_EQ(1024, batch.size(0));
  EXPECT_EQ(64.0 * 3, (worker.call<&rowsOf>("B", at::arange(3)).sum().item<double>()));
}

TEST_F(GuideTensors, OfOrdinaryOperations) {
  // [allocator]
  treadle::useSharedAllocator(true);  // from now on, in this process
  at::Tensor activations = at::relu(at::rand({1024, 1024}) - 0.5);
  // [/allocator]
  treadle::useSharedAllocator(false);
  EXPECT_TRUE(at::equal(activations, worker.call<&identity>("B", activations)));
}

TEST(GuideMemory, IsLimitedWatchedAndGivenBack) {
  treadle::test::WorkerJob job(
      {"A", "B"}, functions(),
      [](treadle::JoinOptions& options) {
        // [limit]
        options.memoryLimitBytes = size_t{2} << 30;  // for tensors that travel and warm memory, of this process
        // [/limit]
      },
      [](treadle::JoinOptions options) { return treadle::join(std::move(options)); });
  treadle::Worker& worker = job[0];
  // [watch]
  {
    at::Tensor held = treadle::emptyShared({16, 1024, 1024});  // 64 MiB
    treadle::Metrics now = worker.metrics();
    std::cout << now.memory.usedBytes << " bytes used, " << now.memory.freeBytes << " kept, of " << now.memoryLimitBytes
              << '\n';
  }
  treadle::trimMemory();  // what is kept for the next tensors goes back to the system
  // [/watch]
  treadle::Metrics after = worker.metrics();
  EXPECT_LE(after.memoryLimitBytes, size_t{2} << 30);
  EXPECT_EQ(0U, after.memory.freeBytes);
}

}  // namespace
