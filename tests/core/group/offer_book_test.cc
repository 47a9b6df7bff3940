// The messages of a member to rank 0, and which orders it accepts.

#include "treadle/core/group/offer_book.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "treadle/core/group/batch_cutter.h"

namespace treadle::group::offer_book_test {
namespace {

class OfferBookTest : public ::testing::Test {
 protected:
  uint64_t add(uint64_t elements, DataType type = DataType::kFloat32) {
    return book_.add({"t" + std::to_string(count_++), {type, ReduceOp::kSum, {elements}}});
  }
  // So many offers, sent and answered.
  void addAnswered(std::initializer_list<uint64_t> sizes) {
    for (uint64_t size : sizes) add(size);
    ASSERT_TRUE(book_.next());
    Orders answer{true, {}, {}};
    ASSERT_TRUE(book_.take(answer).ok());
  }
  void expectRefused(Orders orders, const std::string& why) {
    const std::vector<uint64_t> open = openOnes();
    const Status refused = book_.take(orders);
    EXPECT_EQ(refused.code(), Code::kDataLoss);
    EXPECT_TRUE(test::contains(refused.message(), why));
    EXPECT_EQ(openOnes(), open) << "nothing has changed";
  }

  std::vector<uint64_t> openOnes() const {
    std::vector<uint64_t> open;
    for (uint64_t number = 0; number < count_; ++number)
      if (book_.isOpen(number)) open.push_back(number);
    return open;
  }

  OfferBook book_;
  uint64_t count_ = 0;
};

TEST_F(OfferBookTest, SendsTheNextOffersWhenTheLastAreAnswered) {
  EXPECT_FALSE(book_.next());
  EXPECT_EQ(add(1), 0U);
  EXPECT_EQ(book_.next()->entries.size(), 1U);
  for (uint64_t number = 1; number < 400; ++number) EXPECT_EQ(add(1), number);
  EXPECT_FALSE(book_.next()) << "the first is not answered";
  Orders answer{true, {}, {}};
  EXPECT_TRUE(book_.take(answer).ok());
  EXPECT_EQ(book_.next()->entries.size(), kMostEntries);
  EXPECT_TRUE(book_.take(answer).ok());
  EXPECT_EQ(book_.next()->entries.size(), 399 - kMostEntries);
}

TEST_F(OfferBookTest, SendsWithdrawalsLikewise) {
  addAnswered({1, 1});
  book_.withdraw(1, cancelled("it was cancelled"));
  EXPECT_TRUE(book_.isOpen(1)) << "until rank 0 says so";
  const std::optional<Offers> sent = book_.next();
  ASSERT_TRUE(sent);
  ASSERT_EQ(sent->entries.size(), 1U);
  EXPECT_EQ(std::get<Failed>(sent->entries[0]).number, 1U);
  Orders verdict{true, {}, {{1, cancelled("it was cancelled")}}};
  EXPECT_TRUE(book_.take(verdict).ok());
  EXPECT_EQ(verdict.failures.size(), 1U);
  EXPECT_FALSE(book_.isOpen(1));
}

// A name may be offered again as soon as it has been withdrawn.
TEST_F(OfferBookTest, KeepsTheOrderOfOffersAndWithdrawals) {
  for (size_t i = 0; i < kMostEntries; ++i) add(1);
  book_.withdraw(kMostEntries - 1, cancelled("x"));
  add(1);
  EXPECT_EQ(book_.next()->entries.size(), kMostEntries);
  Orders answer{true, {}, {}};
  EXPECT_TRUE(book_.take(answer).ok());
  const std::optional<Offers> rest = book_.next();
  ASSERT_TRUE(rest);
  ASSERT_EQ(rest->entries.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<Failed>(rest->entries[0]));
  EXPECT_TRUE(std::holds_alternative<Offer>(rest->entries[1]));
}

TEST_F(OfferBookTest, AnOfferIsOpenUntilAllOfItIsOrdered) {
  addAnswered({100});
  Orders half{false, {{0, {0, 50}}}, {}}, rest{false, {{0, {50, 100}}}, {}};
  EXPECT_TRUE(book_.take(half).ok());
  EXPECT_TRUE(book_.isOpen(0));
  EXPECT_TRUE(book_.take(rest).ok());
  EXPECT_FALSE(book_.isOpen(0));
}

TEST_F(OfferBookTest, AFailureThatComesTooLateCountsForNothing) {
  addAnswered({100});
  Orders orders{false, {{0, {0, 100}}}, {{0, cancelled("too late")}}};
  EXPECT_TRUE(book_.take(orders).ok());
  EXPECT_TRUE(orders.failures.empty());
}

TEST_F(OfferBookTest, TakesATensorWithoutElementsOnce) {
  addAnswered({0, 7});
  expectRefused({false, {{0, {0, 0}}, {0, {0, 0}}}, {}}, "not due");
  Orders both{false, {{0, {0, 0}}, {1, {0, 7}}}, {}};
  EXPECT_TRUE(book_.take(both).ok());
  EXPECT_TRUE(openOnes().empty());
}

TEST_F(OfferBookTest, RefusesWhatRankZeroNeverSends) {
  expectRefused({true, {}, {}}, "answered offers that were not sent");
  addAnswered({100, 100});
  const uint64_t other = add(100, DataType::kInt32);
  expectRefused({true, {}, {}}, "answered offers that were not sent");
  expectRefused({false, {{7, {0, 100}}}, {}}, "not open");
  expectRefused({false, {{other, {0, 100}}}, {}}, "not open");
  expectRefused({false, {}, {{other, cancelled("x")}}}, "not sent");
  expectRefused({false, {}, {{UINT64_MAX, cancelled("x")}}}, "not sent");
  expectRefused({false, {{0, {1, 100}}}, {}}, "not due");
  expectRefused({false, {{0, {0, 101}}}, {}}, "not due");
  expectRefused({false, {{0, {0, 0}}}, {}}, "not due");
  expectRefused({false, {{0, {0, 50}}, {0, {50, 100}}}, {}}, "not due");
  ASSERT_TRUE(book_.next());
  Orders answer{true, {}, {}};
  ASSERT_TRUE(book_.take(answer).ok());
  expectRefused({false, {{0, {0, 100}}, {other, {0, 100}}}, {}}, "different types");
}

// What goes together takes memory here; one tensor is summed where it lies.
TEST_F(OfferBookTest, RefusesMoreTogetherThanABatchHolds) {
  const uint64_t half = kBatchBytes / 2 / sizeof(float);
  addAnswered({half, half + 1, 3 * half});
  expectRefused({false, {{0, {0, half}}, {1, {0, half + 1}}}, {}}, "too much together");
  Orders one{false, {{2, {0, 3 * half}}}, {}};
  EXPECT_TRUE(book_.take(one).ok());
}

}  // namespace
}  // namespace treadle::group::offer_book_test
