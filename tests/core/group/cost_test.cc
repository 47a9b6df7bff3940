// What an operation costs, counted from its plans, against the closed forms of the algorithms.

#include "treadle/core/group/cost.h"

#include <bit>

#include "tests/core/group/group_job.h"
#include "treadle/core/group/choice.h"

namespace treadle::group::cost_test {
namespace {

uint64_t log2Down(int size) { return static_cast<uint64_t>(std::bit_width(static_cast<unsigned>(size)) - 1); }
uint64_t log2Up(int size) { return static_cast<uint64_t>(std::bit_width(static_cast<unsigned>(size - 1))); }

class CostTest : public ::testing::TestWithParam<int> {
 protected:
  // With a chunk for each transfer.
  Cost cost(Algorithm algorithm, OperationKind operation, uint64_t count, uint64_t chunkBytes = UINT64_MAX) const {
    Description what{operation, DataType::kFloat32, ReduceOp::kSum, 0, count, 0, 65'536, chunkBytes, algorithm};
    EXPECT_TRUE(serves(algorithm, what, Placement::onOneHost(size_))) << nameOf(algorithm);
    return costOf(what, Placement::onOneHost(size_));
  }
  Cost cost(Algorithm algorithm, OperationKind operation = OperationKind::kAllReduce) const {
    return cost(algorithm, operation, count_);
  }
  void expect(const Cost& cost, uint64_t messages, uint64_t bytes, uint64_t steps) const {
    EXPECT_EQ(cost.messages, messages);
    EXPECT_EQ(cost.bytes, bytes);
    EXPECT_EQ(cost.steps, steps);
  }

  const int size_ = GetParam();
  const uint64_t others_ = static_cast<uint64_t>(size_ - 1), count_ = 50 * static_cast<uint64_t>(size_);
  const uint64_t bytes_ = count_ * sizeof(float), blockBytes_ = 50 * sizeof(float);
  // Of the agreement: the messages that one member sends at most, and the steps.
  const bool inTree_ = size_ > kMostAllToAll;
  const uint64_t starts_ = inTree_ ? log2Up(size_) : others_, agreed_ = inTree_ ? 2 * log2Down(size_) : 1;
};

TEST_P(CostTest, OfARing) {
  expect(cost(Algorithm::kRing), starts_ + 2 * others_, 2 * others_ * blockBytes_, agreed_ + 2 * others_);
  expect(cost(Algorithm::kRing, OperationKind::kBroadcast), starts_ + 1, bytes_, agreed_ + others_);
}

TEST_P(CostTest, OfRounds) {
  const Cost rounds = cost(Algorithm::kCirculant);
  EXPECT_EQ(rounds.bytes, 2 * others_ * blockBytes_);
  EXPECT_EQ(rounds.steps, agreed_ + 2 * log2Up(size_));
  // One message in a round, two where its elements go around the last one.
  EXPECT_GE(rounds.messages, starts_ + 2 * log2Up(size_));
  EXPECT_LE(rounds.messages, starts_ + 4 * log2Up(size_));
}

// A reduce-scatter sends other blocks in each round, so those of one round at most go around the last element. In an
// all-gather it is so for those that a member receives.
TEST_P(CostTest, OfHalfTheRounds) {
  const uint64_t rounds = log2Up(size_);
  for (OperationKind operation : {OperationKind::kReduceScatter, OperationKind::kAllGather}) {
    const Cost half = cost(Algorithm::kCirculant, operation);
    EXPECT_EQ(half.bytes, others_ * blockBytes_);
    EXPECT_EQ(half.steps, agreed_ + rounds);
    EXPECT_GE(half.messages, starts_ + rounds);
    EXPECT_LE(half.messages, starts_ + (operation == OperationKind::kAllGather ? 2 * rounds : rounds + 1));
    const auto members = static_cast<uint64_t>(size_), allStarts = inTree_ ? 2 * others_ : members * others_;
    EXPECT_GE(half.allMessages, allStarts + members * rounds);
    EXPECT_LE(half.allMessages, allStarts + members * (rounds + 1));
  }
}

TEST_P(CostTest, OfDirectOperations) {
  expect(cost(Algorithm::kDirect), starts_ + 2 * others_, 2 * others_ * blockBytes_, agreed_ + 2);
  expect(cost(Algorithm::kDirect, OperationKind::kReduceScatter), starts_ + others_, others_ * blockBytes_,
         agreed_ + 1);
  expect(cost(Algorithm::kDirect, OperationKind::kAllGather), starts_ + others_, others_ * blockBytes_, agreed_ + 1);
  expect(cost(Algorithm::kDirect, OperationKind::kAllToAll), starts_ + others_, others_ * blockBytes_, agreed_ + 1);
  expect(cost(Algorithm::kDirect, OperationKind::kAllToAllV), starts_ + others_, others_ * blockBytes_, agreed_ + 1);
}

TEST_P(CostTest, OfOneMemberThatCombines) {
  const Cost all = cost(Algorithm::kRoot), one = cost(Algorithm::kRoot, OperationKind::kReduce);
  EXPECT_EQ(all.bytes, log2Up(size_) * bytes_);
  EXPECT_EQ(all.steps, agreed_ + 1 + log2Down(size_));
  EXPECT_EQ(one.bytes, bytes_);
  EXPECT_EQ(one.steps, agreed_ + 1);
  EXPECT_LE(one.messages, starts_ + 1);
}

TEST_P(CostTest, OfDataWithTheStarts) {
  if (inTree_) {
    expect(cost(Algorithm::kTree), log2Up(size_), log2Up(size_) * bytes_, 2 * log2Down(size_));
    expect(cost(Algorithm::kTree, OperationKind::kBarrier, 0), log2Up(size_), 0, 2 * log2Down(size_));
  } else {
    expect(cost(Algorithm::kExchange), others_, others_ * bytes_, 1);
    expect(cost(Algorithm::kExchange, OperationKind::kBarrier, 0), others_, 0, 1);
  }
}

TEST_P(CostTest, CountsChunks) {
  const Cost whole = cost(Algorithm::kRing), cut = cost(Algorithm::kRing, OperationKind::kAllReduce, count_, 80);
  EXPECT_EQ(cut.messages, starts_ + 3 * (whole.messages - starts_)) << "blocks of 200 bytes in chunks of 80";
  EXPECT_EQ(cut.bytes, whole.bytes);
}

INSTANTIATE_TEST_SUITE_P(Members, CostTest, ::testing::Values(2, 3, 4, 5, 8, 9, 16, 17, 33, 64),
                         [](const auto& info) { return std::to_string(info.param) + "Members"; });

}  // namespace
}  // namespace treadle::group::cost_test
