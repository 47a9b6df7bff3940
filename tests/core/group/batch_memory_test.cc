// Copies between tensors and the memory in which they are summed together.

#include "treadle/core/group/batch_memory.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/sanitizer.h"

namespace treadle::group::batch_memory_test {
namespace {

using test::contains;

class StagedBatchTest : public ::testing::Test {
 protected:
  StagedBatchTest() { std::iota(values_.begin(), values_.end(), 1.0F); }

  std::shared_ptr<OfferedTensor> tensor(size_t first, size_t count) {
    return std::make_shared<OfferedTensor>(
        "t" + std::to_string(first), Signature{DataType::kFloat32, ReduceOp::kSum, {count}},
        reinterpret_cast<std::byte*>(values_.data() + first), group::OfferLimit{kNoTimeout});
  }
  StagedBatch batchOfAll() {
    return {{{a_, {0, 3}}, {none_, {0, 0}}, {b_, {0, 4}}}, std::make_shared<BatchMemory>(), "worker 'w'"};
  }
  static std::span<float> floatsOf(MutableBytes memory) {
    return {reinterpret_cast<float*>(memory.data()), memory.size() / sizeof(float)};
  }

  std::vector<float> values_ = std::vector<float>(7);
  std::shared_ptr<OfferedTensor> a_ = tensor(0, 3), none_ = tensor(3, 0), b_ = tensor(3, 4);
};

TEST_F(StagedBatchTest, HoldsTheTensorsOneAfterTheOther) {
  StagedBatch batch = batchOfAll();
  const Result<group::Staged> filled = batch.fill();
  ASSERT_TRUE(filled.ok());
  const std::span<float> sums = floatsOf(filled->source);
  EXPECT_EQ(std::vector<float>(sums.begin(), sums.end()), (std::vector<float>{1, 2, 3, 4, 5, 6, 7}));
  for (float& sum : sums) sum *= 10;
  batch.putBack();
  EXPECT_EQ(values_, (std::vector<float>{10, 20, 30, 40, 50, 60, 70}));
}

TEST_F(StagedBatchTest, FailsWithTheReasonOfATensorThatIsReleased) {
  b_->release(cancelled("b is gone"));
  b_->release(cancelled("later reasons do not count"));
  EXPECT_EQ(batchOfAll().fill().status().message(), "b is gone");
}

TEST_F(StagedBatchTest, LeavesOutATensorThatIsReleasedMeanwhile) {
  StagedBatch batch = batchOfAll();
  const Result<group::Staged> filled = batch.fill();
  ASSERT_TRUE(filled.ok());
  for (float& sum : floatsOf(filled->source)) sum = 0;
  a_->release(cancelled("a is gone"));
  batch.putBack();
  EXPECT_EQ(values_, (std::vector<float>{1, 2, 3, 0, 0, 0, 0}));
}

TEST_F(StagedBatchTest, FailsWithoutMemory) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer ends a program that asks for so much";
  const auto huge =
      std::make_shared<OfferedTensor>("huge", Signature{DataType::kFloat32, ReduceOp::kSum, {uint64_t{1} << 58}},
                                      nullptr, group::OfferLimit{kNoTimeout});
  StagedBatch batch({{huge, {0, uint64_t{1} << 58}}}, std::make_shared<BatchMemory>(), "worker 'w'");
  const Status why = batch.fill().status();
  EXPECT_EQ(why.code(), Code::kResourceExhausted);
  EXPECT_TRUE(contains(why.message(), "worker 'w' has no memory for 1 tensors"));
}

// A sanitizer would see a copy to or from memory that is the caller's again.
TEST_F(StagedBatchTest, ReleaseWaitsForACopy) {
  for (int round = 0; round < 200; ++round) {
    auto memory = std::make_unique<std::vector<float>>(10'000, 1.0F);
    const auto shared =
        std::make_shared<OfferedTensor>("t", Signature{DataType::kFloat32, ReduceOp::kSum, {memory->size()}},
                                        reinterpret_cast<std::byte*>(memory->data()), group::OfferLimit{kNoTimeout});
    std::thread copies([&shared, size = memory->size()] {
      StagedBatch batch({{shared, {0, size}}}, std::make_shared<BatchMemory>(), "worker 'w'");
      if (batch.fill().ok()) batch.putBack();
    });
    shared->release(cancelled("it is the caller's again"));
    memory.reset();
    copies.join();
  }
}

TEST(BatchMemoryTest, OfLargeBatchesIsUsedAgain) {
  BatchMemory memory;
  Buffer first = memory.take(100'000), second = memory.take(300'000);
  const std::byte* const small = first.data;
  const std::byte* const large = second.data;
  EXPECT_NE(small, large);
  EXPECT_GE(second.sizeBytes, 300'000U);
  memory.giveBack(std::move(first));
  memory.giveBack(std::move(second));
  Buffer third = memory.take(300'000), fourth = memory.take(90'000);
  EXPECT_EQ(third.data, large);
  EXPECT_EQ(fourth.data, small);
}

}  // namespace
}  // namespace treadle::group::batch_memory_test
