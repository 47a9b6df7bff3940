// A member is killed, or gets nothing any more, in each phase of a sum by name. The others end with the sum if they
// have all that they need, and else with the loss of that member, or at their limits with its name.

#include <set>

#include "tests/core/group/push_pull_tensors.h"
#include "tests/core/group/tapped_job.h"

namespace treadle::push_pull_phases_test {
namespace {

using group::Message;
using group::MessageKind;
using test::failureOf;
using test::TappedJob;

constexpr int kMembers = 3;
constexpr size_t kSmall = 10, kLarge = 300'000;  // floats: with the starts, or in several chunks

// `holder` gets none of the messages of the rule. When it lacks so many, and the members that are done have the sum,
// the victim is killed.
struct Moment {
  int victim, holder;
  test::Tap::Rule rule;
  int held = 1;
  size_t count = kSmall;
  std::vector<int> done = {};
};

class PushPullPhase : public ::testing::Test {
 protected:
  // Member 2 gets none of these messages. The others give up at their limits, for `reason`; then the name may be
  // offered again.
  static void expectToEndAtTheLimit(const test::Tap::Rule& rule, size_t count, const std::string& reason) {
    EXPECT_TRUE(test::withLongerLimits(std::chrono::milliseconds(250), [&](Duration limit) {
      TappedJob job(kMembers);
      job.hold(2, rule);
      test::Tensors data;
      for (size_t rank = 0; rank < kMembers; ++rank) data.push_back(test::valuesOf(rank, 0, count));
      const auto offer = [&](int rank, Duration timeout) {
        return pushPull(job.group(rank).withTimeout(timeout), "a", std::span(data[static_cast<size_t>(rank)]));
      };
      std::vector<Future<void>> futures;
      for (int rank = 0; rank < kMembers; ++rank) futures.push_back(offer(rank, rank == 2 ? kNoTimeout : limit));
      auto named = ::testing::AssertionSuccess();
      for (size_t rank : {size_t{0}, size_t{1}}) {
        const Status why = failureOf(futures[rank]);
        EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
        if (!test::contains(why.message(), reason)) named = ::testing::AssertionFailure() << why.message();
      }
      job.letGo();
      const Status late = failureOf(futures[2]);  // it may have all that it needs
      EXPECT_TRUE(late.ok() || late.code() == Code::kDeadlineExceeded) << late.toString();
      for (size_t rank = 0; rank < kMembers; ++rank) data[rank] = test::valuesOf(rank, 0, count);
      for (int rank = 0; rank < kMembers; ++rank) futures[static_cast<size_t>(rank)] = offer(rank, test::kPatience);
      test::waitAll(futures);
      for (const auto& sum : data) EXPECT_EQ(sum, test::sumOf(kMembers, 0, count));
      return named;
    }));
  }

  static test::Tap::Rule ofKind(MessageKind kind) {
    return [kind](int, const Message& message) { return message.kind == kind; };
  }
  static test::Tap::Rule fromTwo(MessageKind kind) {
    return [kind](int from, const Message& message) { return from == 2 && message.kind == kind; };
  }

  // The others than the victim that are not done fail with its loss.
  static void expectLoss(const Moment& moment) {
    test::Tensors data;
    std::vector<Future<void>> futures;
    TappedJob job(kMembers);
    job.hold(moment.holder, moment.rule);
    for (int rank = 0; rank < kMembers; ++rank)
      data.push_back(test::valuesOf(static_cast<size_t>(rank), 0, moment.count));
    for (int rank = 0; rank < kMembers; ++rank)
      futures.push_back(pushPull(job.group(rank), "a", std::span(data[static_cast<size_t>(rank)])));
    job.waitUntilHeld(moment.holder, moment.held);
    std::set<int> failing = {0, 1, 2};
    failing.erase(moment.victim);
    for (int rank : moment.done) {
      failing.erase(rank);
      EXPECT_TRUE(failureOf(futures[static_cast<size_t>(rank)]).ok());
      EXPECT_EQ(data[static_cast<size_t>(rank)], test::sumOf(kMembers, 0, moment.count));
    }
    job.kill(moment.victim);
    for (int rank : failing) TappedJob::expectLoss(futures[static_cast<size_t>(rank)], moment.victim);
  }
};

TEST_F(PushPullPhase, OffersThatHaveNotReachedRankZero) {
  expectLoss({.victim = 2, .holder = 0, .rule = fromTwo(MessageKind::kOffers)});
}

TEST_F(PushPullPhase, OffersToARankZeroThatIsLost) {
  expectLoss({.victim = 0, .holder = 0, .rule = ofKind(MessageKind::kOffers), .held = 2});
}

TEST_F(PushPullPhase, OrdersThatHaveNotReachedTheMember) {
  for (size_t count : {kSmall, kLarge})
    expectLoss({.victim = 2, .holder = 2, .rule = ofKind(MessageKind::kOrders), .count = count});
}

TEST_F(PushPullPhase, OrdersOfARankZeroThatIsLost) {
  expectLoss({.victim = 0, .holder = 1, .rule = ofKind(MessageKind::kOrders)});
}

TEST_F(PushPullPhase, ALargeSumWhoseChunksDoNotReachTheMember) {
  for (int victim : {0, 2})
    expectLoss({.victim = victim, .holder = victim, .rule = ofKind(MessageKind::kChunk), .count = kLarge});
}

TEST_F(PushPullPhase, ASumThatTheMemberHasAndAnotherHasNot) {
  expectLoss({.victim = 2, .holder = 1, .rule = fromTwo(MessageKind::kStart), .done = {0, 2}});
}

TEST_F(PushPullPhase, AMemberThatGetsNoOrdersIsNamed) {
  for (size_t count : {kSmall, kLarge})
    expectToEndAtTheLimit(ofKind(MessageKind::kOrders), count, "it has not been started by worker 'w2'");
}

// Around a ring each member waits for the one before.
TEST_F(PushPullPhase, ALargeSumThatAMemberDoesNotTakeEndsAtTheLimit) {
  expectToEndAtTheLimit(ofKind(MessageKind::kChunk), kLarge, "chunks have come from");
}

// Its values have gone with its starts.
TEST_F(PushPullPhase, ASmallSumThatTheMemberHasBegun) {
  for (int victim : {0, 2}) {
    std::vector<int> others = {0, 1, 2};
    std::erase(others, victim);
    expectLoss({.victim = victim, .holder = victim, .rule = ofKind(MessageKind::kStart), .held = 2, .done = others});
  }
}

}  // namespace
}  // namespace treadle::push_pull_phases_test
