// A member is killed in each phase of a sum by name. The others end with the sum if they have all that they need, and
// else with the loss of that member.

#include <set>

#include "tests/core/group/push_pull_tensors.h"
#include "tests/core/group/tapped_job.h"

namespace treadle::push_pull_phases_test {
namespace {

using group::Message;
using group::MessageKind;
using test::failureOf;
using test::TappedJob;

constexpr size_t kMembers = 3, kSmall = 10, kLarge = 300'000;  // floats: with the starts, or in several chunks

class PushPullPhase : public ::testing::Test {
 protected:
  void offerAll(TappedJob& job, size_t count) {
    for (size_t rank = 0; rank < kMembers; ++rank) data_.push_back(test::valuesOf(rank, 0, count));
    for (size_t rank = 0; rank < kMembers; ++rank)
      futures_.push_back(pushPull(job.groups()[rank], "a", std::span(data_[rank])));
  }
  static test::Tap::Rule ofKinds(std::set<MessageKind> kinds) {
    return [kinds = std::move(kinds)](int, const Message& message) { return kinds.contains(message.kind); };
  }

  void expectSumOf(int rank) {
    const auto self = static_cast<size_t>(rank);
    EXPECT_TRUE(failureOf(futures_[self]).ok());
    EXPECT_EQ(data_[self], test::sumOf(kMembers, 0, data_[self].size()));
  }
  void expectLossOn(const std::vector<int>& ranks, int lost) {
    for (int rank : ranks) TappedJob::expectLoss(futures_[static_cast<size_t>(rank)], lost);
  }

  std::vector<std::vector<float>> data_;
  std::vector<Future<void>> futures_;
};

TEST_F(PushPullPhase, OffersThatHaveNotReachedRankZero) {
  TappedJob job(kMembers);
  job.hold(0, [](int from, const Message& message) { return from == 2 && message.kind == MessageKind::kOffers; });
  offerAll(job, kSmall);
  job.waitUntilHeld(0, 1);
  job.kill(2);
  expectLossOn({0, 1}, 2);
}

TEST_F(PushPullPhase, OffersToARankZeroThatIsLost) {
  TappedJob job(kMembers);
  job.hold(0, ofKinds({MessageKind::kOffers}));
  offerAll(job, kSmall);
  job.waitUntilHeld(0, 2);
  job.kill(0);
  expectLossOn({1, 2}, 0);
}

TEST_F(PushPullPhase, OrdersThatHaveNotReachedTheMember) {
  for (size_t count : {kSmall, kLarge}) {
    data_.clear(), futures_.clear();
    TappedJob job(kMembers);
    job.hold(2, ofKinds({MessageKind::kOrders}));
    offerAll(job, count);
    job.waitUntilHeld(2, 1);
    job.kill(2);
    expectLossOn({0, 1}, 2);
  }
}

TEST_F(PushPullPhase, OrdersOfARankZeroThatIsLost) {
  TappedJob job(kMembers);
  job.hold(1, ofKinds({MessageKind::kOrders}));
  offerAll(job, kSmall);
  job.waitUntilHeld(1, 1);
  job.kill(0);
  expectLossOn({1, 2}, 0);
}

// Its values have gone with its starts.
TEST_F(PushPullPhase, ASmallSumThatTheMemberHasBegun) {
  for (int victim : {0, 2}) {
    data_.clear(), futures_.clear();
    TappedJob job(kMembers);
    job.hold(victim, ofKinds({MessageKind::kStart}));
    offerAll(job, kSmall);
    job.waitUntilHeld(victim, 2);
    for (int rank = 0; rank < 3; ++rank)
      if (rank != victim) expectSumOf(rank);
    job.kill(victim);
  }
}

TEST_F(PushPullPhase, ALargeSumWhoseChunksDoNotReachTheMember) {
  for (int victim : {0, 2}) {
    data_.clear(), futures_.clear();
    TappedJob job(kMembers);
    job.hold(victim, ofKinds({MessageKind::kChunk}));
    offerAll(job, kLarge);
    job.waitUntilHeld(victim, 1);
    job.kill(victim);
    for (int rank = 0; rank < 3; ++rank)
      if (rank != victim) expectLossOn({rank}, victim);
  }
}

TEST_F(PushPullPhase, ASumThatTheMemberHasAndAnotherHasNot) {
  TappedJob job(kMembers);
  job.hold(1, [](int from, const Message& message) { return from == 2 && message.kind == MessageKind::kStart; });
  offerAll(job, kSmall);
  job.waitUntilHeld(1, 1);
  expectSumOf(0);
  expectSumOf(2);
  job.kill(2);
  expectLossOn({1}, 2);
}

}  // namespace
}  // namespace treadle::push_pull_phases_test
