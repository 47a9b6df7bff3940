#include "treadle/tensor/bridge/tensor_memory.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>

#include "tests/support/gate.h"
#include "tests/support/tensor_job.h"
#include "treadle/core/memory/block_pool.h"
#include "treadle/core/memory/warm_cache.h"
#include "treadle/tensor/bridge/tensor_codec.h"

namespace treadle::tensor_memory_test {
namespace {

constexpr int64_t kElements = 1 << 18;  // 1 MiB of float
constexpr int kThere = 1;

at::Tensor identity(at::Tensor tensor) { return tensor; }
at::Tensor kept;  // by the callee
at::Tensor keepAndReturn(const at::Tensor& tensor) { return kept = tensor; }
double sumOfKept() { return kept.sum().item<double>(); }
double sumOf(const at::Tensor& tensor) { return tensor.sum().item<double>(); }
at::Tensor made(double value) { return treadle::emptyShared({kElements}).fill_(value); }

Functions functions() {
  return Functions()
      .add<&identity>("identity")
      .add<&keepAndReturn>("keepAndReturn")
      .add<&sumOfKept>("sumOfKept")
      .add<&sumOf>("sumOf")
      .add<&made>("made");
}

uint64_t allocations() { return memory::BlockPool::ofProcess()->counters().allocations; }

// Workers share memory from a moment after they have joined on.
void waitUntilShared(Worker& worker) {
  for (TimePoint until = test::patience(); Clock::now() < until;) {
    at::Tensor tensor = treadle::emptyShared({kElements});
    const void* data = tensor.data_ptr();
    if (worker.call<&identity>(kThere, std::move(tensor)).data_ptr() == data) return;
  }
  FAIL() << "the workers do not share memory";
}

TEST(TensorMemory, ofEmptyIsAsAsked) {
  at::Tensor tensor = treadle::emptyShared({3, 1 << 14}, at::TensorOptions().dtype(at::kDouble).requires_grad(true));
  EXPECT_EQ((std::vector<int64_t>{3, 1 << 14}), tensor.sizes().vec());
  EXPECT_EQ(at::kDouble, tensor.scalar_type());
  EXPECT_TRUE(tensor.requires_grad() && tensor.is_leaf() && tensor.is_contiguous());
  EXPECT_EQ(0, treadle::emptyShared({0, 5}).numel());
  EXPECT_EQ(1, treadle::emptyShared({}).numel());
  EXPECT_THROW(treadle::emptyShared({-1}), ArgumentError);
  EXPECT_THROW(treadle::emptyShared({INT64_MAX, INT64_MAX}), ArgumentError);
  EXPECT_THROW(treadle::emptyShared({2}, at::TensorOptions().device(at::kCUDA)), ArgumentError);
}

TEST(TensorMemory, thatIsGivenTravelsThereAndBackWithoutACopy) {
  test::TensorJob job({"a", "b"}, functions());
  waitUntilShared(job[0]);
  at::Tensor tensor = treadle::emptyShared({kElements}).fill_(3.0);
  const void* data = tensor.data_ptr();
  uint64_t before = allocations();
  for (int i = 0; i < 10; ++i) {
    tensor = job[0].call<&identity>(kThere, std::move(tensor));
    ASSERT_EQ(data, tensor.data_ptr());
  }
  EXPECT_EQ(before, allocations());
  EXPECT_EQ(3.0 * kElements, tensor.sum().item<double>());
}

TEST(TensorMemory, thatSomebodyElseHoldsIsCopied) {
  test::TensorJob job({"a", "b"}, functions());
  waitUntilShared(job[0]);
  at::Tensor tensor = treadle::emptyShared({kElements}).fill_(3.0);
  at::Tensor other = tensor, view = tensor.view({2, -1});
  const void* data = tensor.data_ptr();
  EXPECT_NE(data, job[0].call<&identity>(kThere, std::move(tensor)).data_ptr());
  other.reset();
  at::Tensor base = view.flatten();  // shares the storage
  EXPECT_NE(data, job[0].call<&identity>(kThere, std::move(view)).data_ptr());
}

TEST(TensorMemory, thatTheCalleeKeepsIsNotGivenBack) {
  test::TensorJob job({"a", "b"}, functions());
  waitUntilShared(job[0]);
  at::Tensor answer = job[0].call<&keepAndReturn>(kThere, treadle::emptyShared({kElements}).fill_(3.0));
  answer.fill_(7.0);
  EXPECT_EQ(3.0 * kElements, job[0].call<&sumOfKept>(kThere));
  EXPECT_EQ(7.0 * kElements, answer.sum().item<double>());
}

TEST(TensorMemory, ofAResultTravelsWithoutACopy) {
  test::TensorJob job({"a", "b"}, functions());
  waitUntilShared(job[0]);
  uint64_t before = allocations();
  at::Tensor got = job[0].call<&made>(kThere, 2.5);
  EXPECT_EQ(before + 1, allocations());  // the one that the function made
  EXPECT_EQ(2.5 * kElements, got.sum().item<double>());
}

// By value, whatever the way: what is written after the call has begun is never seen there.
TEST(TensorMemory, isCapturedWhenTheCallReturns) {
  test::TensorJob job({"a", "b"}, functions());
  waitUntilShared(job[0]);
  for (bool own : {false, true}) {
    at::Tensor tensor = own ? treadle::emptyShared({4 * kElements}) : at::empty({4 * kElements});
    for (int i = 0; i < 50; ++i) {
      tensor.fill_(1.0);
      Future<double> sum = job[0].async<&sumOf>(kThere, tensor);
      tensor.fill_(100.0);
      ASSERT_EQ(4.0 * kElements, sum.wait());
    }
  }
}

// Two workers that use no other channels.
test::WorkerJob jobOver(const char* channels) {
  return test::WorkerJob(
      {"a", "b"}, functions(),
      [&](JoinOptions& options) { options.channels = valueOrThrow(Channels::parse(channels)); },
      [](JoinOptions options) { return treadle::join(std::move(options)); });
}

// The same on every other way, of one that takes long to leave.
TEST(TensorMemory, isCapturedWhateverWayItTakes) {
  for (const char* text : {"tcp", "tcp,lanes", "unix", "unix,lanes", "unix,cma", "unix,lanes,cma"}) {
    test::WorkerJob job = jobOver(text);
    at::Tensor tensor = at::empty({16 * kElements});
    for (int i = 0; i < 10; ++i) {
      tensor.fill_(1.0);
      Future<double> sum = job[0].async<&sumOf>(kThere, tensor);
      tensor.fill_(100.0);
      ASSERT_EQ(16.0 * kElements, sum.wait()) << text;
    }
  }
}

TEST(TensorMemory, ofOrdinaryOperationsIsSharedOnRequest) {
  test::TensorJob job({"a", "b"}, functions());
  waitUntilShared(job[0]);
  useSharedAllocator(true);
  at::Tensor tensor = at::full({kElements}, 2.0) + 1.0;
  useSharedAllocator(false);
  const void* data = tensor.data_ptr();
  tensor = job[0].call<&identity>(kThere, std::move(tensor));
  EXPECT_EQ(data, tensor.data_ptr());
  at::Tensor ordinary = at::full({kElements}, 3.0);
  EXPECT_EQ(nullptr, bridge::memoryToGive(ordinary));
}

memory::WarmCounters warm() { return memory::WarmCache::ofProcess().counters(); }

TEST(TensorMemory, ofOrdinaryOperationsIsKeptWarm) {
  test::TensorJob job({"a", "b"}, functions());
  at::Tensor tensor = at::full({kElements}, 2.0);
  const memory::WarmCounters before = warm();
  for (int i = 0; i < 10; ++i) tensor = tensor + 1.0;
  const memory::WarmCounters after = warm();
  EXPECT_EQ(before.taken + 10, after.taken);
  EXPECT_LE(before.reused + 9, after.reused) << "there are never more than two";
  EXPECT_EQ(12.0 * kElements, tensor.sum().item<double>());
  EXPECT_LE(kElements * sizeof(float), job[0].metrics().warm.usedBytes);
  const size_t used = warm().usedBytes;
  tensor.reset();
  EXPECT_GT(used, warm().usedBytes);
}

TEST(TensorMemory, thatNobodyNeedsGoesBackToTheSystem) {
  test::TensorJob job({"a", "b"}, functions());
  at::full({kElements}, 2.0);
  EXPECT_LT(0U, warm().keptBytes);
  trimMemory();
  EXPECT_EQ(0U, warm().keptBytes);
  at::full({kElements}, 2.0);
  EXPECT_TRUE(test::eventually([] { return warm().keptBytes == 0; })) << "after " << memory::WarmCache::kIdle.count();
}

// As libtorch's own code asks for memory without a tensor.
TEST(TensorMemory, withoutATensorIsGivenBackToWhereItCameFrom) {
  test::TensorJob job({"a", "b"}, functions());
  c10::Allocator* allocator = c10::GetCPUAllocator();
  const size_t used = warm().usedBytes;
  void *small = allocator->raw_allocate(100), *large = allocator->raw_allocate(memory::WarmCache::kSmallest);
  EXPECT_LT(used, warm().usedBytes);
  allocator->raw_deallocate(large);
  EXPECT_EQ(used, warm().usedBytes);
  allocator->raw_deallocate(small);
}

// A process has one allocator, so each of these is a process of its own.
void joinAlone(bool warmMemory) {
  test::WorkerJob job(
      {"a", "b"}, functions(), [&](JoinOptions& options) { options.warmMemory = warmMemory; },
      [](JoinOptions options) { return treadle::join(std::move(options)); });
}

[[noreturn]] void joinWithoutWarmMemory() {
  joinAlone(false);
  const bool left = c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator();
  std::quick_exit(left && warm().taken == 0 ? 0 : 1);
}

[[noreturn]] void joinWithAnAllocatorOfTheProgram(bool joinBefore) {
  if (joinBefore) joinAlone(true);
  class : public c10::Allocator {
    c10::DataPtr allocate(size_t sizeBytes) override { return c10::GetDefaultCPUAllocator()->allocate(sizeBytes); }
    void copy_data(void* to, const void* from, size_t sizeBytes) const override {
      default_copy_data(to, from, sizeBytes);
    }
  } own;
  c10::SetCPUAllocator(&own);
  joinAlone(true);
  std::quick_exit(c10::GetCPUAllocator() == &own ? 0 : 1);
}

TEST(TensorMemory, isLeftToLibtorchOnRequest) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(joinWithoutWarmMemory(), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(joinWithAnAllocatorOfTheProgram(false), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(joinWithAnAllocatorOfTheProgram(true), ::testing::ExitedWithCode(0), "");
}

TEST(TensorMemory, isTakenWhereChannelsAllowNoSharing) {
  for (const char* text : {"tcp", "tcp,lanes", "unix", "unix,lanes", "unix,tcp", "unix,cma", "unix,lanes,cma"}) {
    test::WorkerJob job = jobOver(text);
    at::Tensor tensor = at::arange(3 * kElements);
    EXPECT_TRUE(at::equal(tensor, job[0].call<&identity>(kThere, tensor))) << text;
    at::Tensor given = treadle::emptyShared({kElements}).fill_(4.0);
    EXPECT_EQ(4.0 * kElements, job[0].call<&sumOf>(kThere, std::move(given))) << text;
    // Nobody holds these but the call, or not in the order in which they travel.
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(12.0 * kElements, job[0].call<&sumOf>(kThere, at::ones({4 * kElements}) * 3)) << text;
      at::Tensor moved = at::ones({4 * kElements});
      EXPECT_EQ(4.0 * kElements, job[0].call<&sumOf>(kThere, std::move(moved))) << text;
      EXPECT_EQ(4.0 * kElements, job[0].call<&sumOf>(kThere, at::ones({4, kElements}).t())) << text;
    }
  }
}

}  // namespace
}  // namespace treadle::tensor_memory_test
