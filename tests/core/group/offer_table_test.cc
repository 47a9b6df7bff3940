#include "treadle/core/group/offer_table.h"

#include <gtest/gtest.h>

namespace treadle::group::offer_table_test {
namespace {

class OfferTableTest : public ::testing::Test {
 protected:
  NamedTensor* add(int member, uint64_t number, const std::string& name) {
    return table_.add(member, number, {name, {DataType::kFloat32, ReduceOp::kSum, {3}}}, TimePoint());
  }

  OfferTable table_{3};
};

TEST_F(OfferTableTest, ATensorIsCompleteWhenAllHaveOfferedItsName) {
  NamedTensor* tensor = add(1, 0, "a");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->first, 1);
  EXPECT_EQ(tensor->missing(), (std::vector<int>{0, 2}));
  EXPECT_EQ(add(0, 5, "a"), tensor);
  EXPECT_NE(add(0, 6, "b"), tensor);
  EXPECT_FALSE(tensor->complete());
  EXPECT_EQ(add(2, 0, "a"), tensor);
  EXPECT_TRUE(tensor->complete());
  EXPECT_EQ(tensor->numbers, (std::vector<uint64_t>{5, 0, 0}));
  EXPECT_EQ(table_.find(0, 5), tensor);
  table_.drop(tensor->id);
  EXPECT_EQ(table_.find(0, 5), nullptr);
  EXPECT_EQ(table_.size(), 1U);
  EXPECT_EQ(table_.openOf(0), 1U);
  EXPECT_EQ(table_.openOf(1), 0U);
}

TEST_F(OfferTableTest, ANameIsOpenOncePerMember) {
  add(0, 0, "a");
  EXPECT_EQ(add(0, 1, "a"), nullptr);
  EXPECT_EQ(table_.openOf(0), 1U);
}

// Each round of a name is one tensor: the offer of a late member fails like those of the others in that round.
TEST_F(OfferTableTest, TheNthOfferOfANameMeetsTheNthOfTheOthers) {
  NamedTensor* first = add(0, 0, "a");
  table_.fail(*first, cancelled("it gave up"));
  EXPECT_EQ(table_.failed(), 1U);
  EXPECT_EQ(table_.openOf(0), 0U);
  NamedTensor* second = add(0, 1, "a");
  EXPECT_NE(second, first);
  EXPECT_EQ(add(1, 0, "a"), first);
  EXPECT_EQ(table_.openOf(1), 0U) << "it failed at once";
  EXPECT_EQ(add(1, 1, "a"), second);
  EXPECT_EQ(add(2, 0, "a"), first);
  ASSERT_TRUE(first->complete());
  table_.drop(first->id);
  EXPECT_EQ(table_.failed(), 0U);
  EXPECT_EQ(add(2, 1, "a"), second);
  EXPECT_TRUE(second->complete());
}

// One member gives a name up many times before the others offer it at all.
TEST_F(OfferTableTest, AllRoundsOfANameMeetInTheirOrder) {
  constexpr uint64_t kRounds = 2000;
  std::vector<uint64_t> ids;
  for (uint64_t round = 0; round < kRounds; ++round) {
    NamedTensor* tensor = add(0, round, "a");
    ASSERT_NE(tensor, nullptr);
    ids.push_back(tensor->id);
    table_.fail(*tensor, cancelled("it gave up"));
  }
  EXPECT_EQ(table_.failed(), kRounds);
  for (int member : {1, 2})
    for (uint64_t round = 0; round < kRounds; ++round) {
      const NamedTensor* tensor = add(member, round, "a");
      ASSERT_NE(tensor, nullptr);
      ASSERT_EQ(tensor->id, ids[round]);
      if (tensor->complete()) table_.drop(tensor->id);
    }
  EXPECT_EQ(table_.size(), 0U);
  EXPECT_FALSE(add(0, kRounds, "a")->complete());
}

TEST_F(OfferTableTest, AFailedTensorThatAllHaveOfferedIsGone) {
  NamedTensor* tensor = add(0, 0, "a");
  add(1, 0, "a");
  add(2, 0, "a");
  table_.fail(*tensor, cancelled("it gave up"));
  EXPECT_EQ(table_.size(), 0U);
  EXPECT_EQ(table_.failed(), 0U);
  EXPECT_NE(add(0, 1, "a"), nullptr);
}

}  // namespace
}  // namespace treadle::group::offer_table_test
