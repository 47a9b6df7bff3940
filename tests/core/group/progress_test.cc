// What Progress allows, chunk by chunk, and what it refuses of what no member does.

#include "treadle/core/group/progress.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "treadle/core/group/circulant.h"
#include "treadle/core/group/direct.h"
#include "treadle/core/group/ring.h"

namespace treadle::group::progress_test {
namespace {

Place elements(uint64_t begin, uint64_t end) { return {Area::kOutput, {begin, end}}; }

// Sends ten elements, and receives ten that are passed on.
Plan passedOn() {
  Plan plan;
  plan.send(1, elements(0, 10));
  const Received received = plan.receive(1, elements(10, 20));
  plan.send(1, elements(10, 20), received);
  plan.setWindow(4);
  return plan;
}

class ProgressTest : public ::testing::Test {
 protected:
  int sendAll() {
    int sent = 0;
    while (progress_.send(0)) ++sent;
    return sent;
  }

  const Plan plan_ = passedOn();
  Progress progress_{plan_, 2};  // five chunks a transfer
};

TEST_F(ProgressTest, SendsAWindowAtMost) {
  EXPECT_EQ(sendAll(), 4);
  EXPECT_TRUE(progress_.acknowledged(0, 3));
  EXPECT_EQ(sendAll(), 1) << "what is to be passed on has not been received";
  EXPECT_TRUE(progress_.acknowledged(0, 5));
  EXPECT_EQ(sendAll(), 0);
}

TEST_F(ProgressTest, PassesOnChunkByChunk) {
  EXPECT_EQ(sendAll(), 4);
  EXPECT_TRUE(progress_.acknowledged(0, 4));
  EXPECT_EQ(sendAll(), 1);
  ASSERT_TRUE(progress_.arrive(0, 0));
  EXPECT_EQ(sendAll(), 0) << "it has arrived, but was not taken";
  ASSERT_TRUE(progress_.take(0));
  EXPECT_FALSE(progress_.take(0));
  const auto chunk = progress_.send(0);
  ASSERT_TRUE(chunk);
  EXPECT_EQ(chunk->transfer, 1);
  EXPECT_EQ(chunk->count(), 2);
  EXPECT_EQ(sendAll(), 0);
}

TEST_F(ProgressTest, AcknowledgesHalfAWindowAndNotTheLastChunks) {
  std::vector<uint64_t> acknowledged;
  for (uint64_t position = 0; position < 5; ++position) {
    ASSERT_TRUE(progress_.arrive(0, position));
    ASSERT_TRUE(progress_.take(0));
    if (const auto taken = progress_.acknowledge(0)) acknowledged.push_back(*taken);
  }
  EXPECT_EQ(acknowledged, std::vector<uint64_t>({2, 4}));
}

TEST_F(ProgressTest, RefusesWhatIsNotDue) {
  EXPECT_FALSE(progress_.arrive(0, 1)) << "out of order";
  for (uint64_t position = 0; position < 4; ++position) ASSERT_TRUE(progress_.arrive(0, position));
  EXPECT_FALSE(progress_.arrive(0, 3)) << "twice";
  EXPECT_FALSE(progress_.arrive(0, 4)) << "more than a window that was not acknowledged";
  while (progress_.take(0)) {}
  ASSERT_TRUE(progress_.acknowledge(0));
  ASSERT_TRUE(progress_.arrive(0, 4));
  EXPECT_FALSE(progress_.arrive(0, 5)) << "beyond the last";
}

TEST_F(ProgressTest, RefusesAcknowledgementsOfWhatWasNotSentOrTwice) {
  EXPECT_FALSE(progress_.acknowledged(0, 1));
  EXPECT_EQ(sendAll(), 4);
  EXPECT_FALSE(progress_.acknowledged(0, 5));
  EXPECT_FALSE(progress_.acknowledged(0, 0));
  EXPECT_TRUE(progress_.acknowledged(0, 2));
  EXPECT_FALSE(progress_.acknowledged(0, 2));
}

TEST(ProgressAfterAll, WaitsForTheWholeTransferOfAnySize) {
  Plan plan;
  const Received received = plan.receive(1, elements(0, 5));
  plan.send(2, elements(10, 12), received.whole());
  Progress progress(plan, 2);
  for (uint64_t position = 0; position < 3; ++position) {
    EXPECT_FALSE(progress.send(1)) << position;
    ASSERT_TRUE(progress.arrive(0, position));
    ASSERT_TRUE(progress.take(0));
  }
  EXPECT_TRUE(progress.send(1));
  EXPECT_TRUE(progress.done());
}

// In the first of several rounds, with other peers in each.
TEST(ProgressWaits, ForWhatCouldBeTakenOrSentNow) {
  const Plan plan = circulantAllReduce({17, 0, 0, 170});
  const Progress progress(plan, 1000);
  for (size_t channel = 0; channel < plan.channels.size(); ++channel) {
    EXPECT_EQ(progress.waitsForChunk(channel), plan.channels[channel].peer == 8) << plan.channels[channel].peer;
    EXPECT_EQ(progress.waitsForAck(channel), plan.channels[channel].peer == 9) << plan.channels[channel].peer;
  }
}

TEST(ProgressCombining, WaitsForAllMembersAndTakesFromAllAtOnce) {
  const Plan plan = directAllReduce({3, 0, 0, 9});
  Progress progress(plan, 1);
  ASSERT_TRUE(progress.arrive(0, 0));
  EXPECT_FALSE(progress.take(0));
  ASSERT_TRUE(progress.arrive(1, 0));
  ASSERT_TRUE(progress.take(0));
  EXPECT_FALSE(progress.take(1)) << "taken with the other one";
  EXPECT_EQ(progress.taken(1), 1);
}

// The last chunk of a plan is not acknowledged, until the plan grows: then a window of one must open.
TEST(GrowingProgress, GoesOnWhereItWas) {
  Plan plan;
  plan.send(1, elements(0, 2));
  plan.receive(1, elements(0, 2));
  plan.setWindow(1);
  Progress progress(plan, 2);
  ASSERT_TRUE(progress.send(0));
  ASSERT_TRUE(progress.arrive(0, 0));
  ASSERT_TRUE(progress.take(0));
  EXPECT_FALSE(progress.acknowledge(0));
  EXPECT_FALSE(progress.acknowledged(0, 1));
  EXPECT_FALSE(progress.arrive(0, 1));
  EXPECT_TRUE(progress.done());
  plan.send(1, elements(2, 4));
  plan.receive(1, elements(2, 3));
  progress.grow(0);
  EXPECT_FALSE(progress.done());
  EXPECT_FALSE(progress.send(0)) << "the first chunk has not been taken";
  EXPECT_EQ(progress.acknowledge(0), 1U);
  EXPECT_TRUE(progress.acknowledged(0, 1));
  const auto sent = progress.send(0), due = progress.arrive(0, 1);
  ASSERT_TRUE(sent && due);
  EXPECT_EQ(sent->transfer, 1U);
  EXPECT_EQ(due->count(), 1U);
  ASSERT_TRUE(progress.take(0));
  EXPECT_TRUE(progress.done());
}

// Nothing is stored per element or chunk.
TEST(ProgressSizes, MayBeLargerThanAnyMemory) {
  constexpr uint64_t kCount = uint64_t{1} << 60, kChunk = uint64_t{1} << 56;
  const Plan plan = ringAllReduce({2, 0, 0, kCount});
  Progress progress(plan, kChunk);
  EXPECT_EQ(progress.sends(0), 2 * kCount / 2 / kChunk);
  uint64_t sent = 0;
  for (uint64_t position = 0; position < progress.receives(0); ++position) {
    for (auto chunk = progress.send(0); chunk; chunk = progress.send(0)) sent += chunk->count();
    ASSERT_TRUE(progress.arrive(0, position));
    ASSERT_TRUE(progress.take(0));
    progress.acknowledge(0);
    progress.acknowledged(0, std::min(progress.sent(0), progress.sends(0) - 1));
  }
  EXPECT_EQ(sent, kCount);
  EXPECT_TRUE(progress.done());
}

}  // namespace
}  // namespace treadle::group::progress_test
