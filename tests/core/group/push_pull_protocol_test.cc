// pushPull with a peer that sends what it likes.

#include <thread>

#include "tests/core/group/peer_of_names.h"
#include "tests/support/sanitizer.h"

namespace treadle::push_pull_protocol_test {
namespace {

using group::Failed;
using group::Message;
using group::MessageKind;
using group::Offer;
using group::Offers;
using group::Orders;
using test::contains;
using test::failureOf;
using test::floats;

class StrangeMember : public test::PeerOfRankZero {
 protected:
  Future<void> mine_ = offer("mine");
};

TEST_F(StrangeMember, BytesThatAreNoOffers) {
  sendBody(1, MessageKind::kOffers, {std::byte{1}, std::byte{2}});
  expectGroupFails(mine_, "a member's offers");
}

TEST_F(StrangeMember, NoOffers) {
  sendOffers({});
  expectGroupFails(mine_, "a member's offers");
}

TEST_F(StrangeMember, ATensorTwice) {
  sendOffers({{Offer{"a", floats(1)}, Offer{"a", floats(1)}}});
  expectGroupFails(mine_, "it offered a tensor twice");
}

TEST_F(StrangeMember, AWithdrawalOfWhatWasNotOffered) {
  sendOffers({{Failed{7, cancelled("x")}}});
  expectGroupFails(mine_, "it withdrew an offer that it had not made");
}

TEST_F(StrangeMember, OrdersToRankZero) {
  sendBody(1, MessageKind::kOrders, encode(Orders{true, {}, {}}));
  expectGroupFails(mine_, "that members exchange with rank 0");
}

TEST_F(StrangeMember, OffersInAnotherStream) {
  sendBody(1, MessageKind::kOffers, encode(Offers{{Offer{"a", floats(1)}}}), group::Stream::kAll);
  expectGroupFails(mine_, "a group's message");
}

TEST_F(StrangeMember, MoreOffersThanMayBeOpen) {
  for (size_t open = 0; open <= group::kMostOpenOffers; open += group::kMostEntries) {
    Offers offers;
    for (size_t i = 0; i < group::kMostEntries; ++i)
      offers.entries.emplace_back(Offer{"t" + std::to_string(open + i), floats(1)});
    sendOffers(offers);
  }
  expectGroupFails(mine_, "it has more offers open than members may have");
}

// Rank 0 keeps each name that it offers and withdraws until all others have offered it, which they never do.
TEST_F(StrangeMember, MoreFailedNamesThanAreKept) {
  for (uint64_t number = 0; number <= group::kMostOpenOffers; ++number)
    sendOffers({{Offer{"t" + std::to_string(number), floats(1)}, Failed{number, cancelled("x")}}});
  const Status why = failureOf(mine_);
  EXPECT_EQ(why.code(), Code::kResourceExhausted) << why.toString();
  EXPECT_TRUE(contains(why.message(), "each as often as the others"));
  EXPECT_EQ(failureOf(offer("later")).code(), Code::kResourceExhausted);
}

// What comes in place of the batch that was ordered is a mismatch, like that of any two operations.
TEST_F(StrangeMember, AnotherOperationThanTheOneThatWasOrdered) {
  sendOffers({{Offer{"mine", floats(100)}}});
  Message start = nextStart();
  start.description.count = 50;
  answer(start, std::vector<float>(50));
  const Status why = failureOf(mine_);
  EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
  EXPECT_TRUE(contains(why.message(), "pushPull of 'mine' in group 'pair': operation 0 of the batches of pushPull"));
}

// They wait while another thread handles an event. Small messages cost memory too.
TEST_F(StrangeMember, MoreMessagesThanAreKeptUnread) {
  if (test::kSanitized) GTEST_SKIP() << "half a million messages take too long";
  test::Gate holds, goesOn;
  sharedStateOf(mine_)->onReady([&] {
    holds.open();
    goesOn.wait();
  });
  std::thread handles([&] { mine_.cancel(); });
  holds.wait();
  for (int i = 0; i < 600'000; ++i) sendBody(1, MessageKind::kOffers, {std::byte{1}});
  listener_.lost.wait();
  goesOn.open();
  handles.join();
  const Status later = failureOf(offer("later"));
  EXPECT_EQ(later.code(), Code::kPeerLost) << later.toString();
  EXPECT_TRUE(contains(later.message(), "more about names than members send at a time"));
}

// All have offered it, and then one stands still.
TEST_F(StrangeMember, ThatDoesNotBeginIsNamedAtTheLimit) {
  const ProcessGroup hasty = group_.withTimeout(std::chrono::seconds(1));
  std::vector<float> a(10), b(10);
  Future<void> first = pushPull(hasty, "a", std::span(a)), second = pushPull(hasty, "b", std::span(b));
  sendOffers({{Offer{"a", floats(10)}, Offer{"b", floats(10)}}});
  for (const auto& [name, future] : {std::pair("'a'", first), std::pair("'b'", second)}) {
    const Status why = failureOf(future);
    EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
    EXPECT_TRUE(contains(why.message(), std::string("pushPull of ") + name + " in group 'pair'"));
    EXPECT_TRUE(contains(why.message(), "it has not been started by worker 'w1' (rank 1)"));
  }
}

// Whoever asks reads the answer as one about the stream.
TEST_F(StrangeMember, ThatAsksForAGroupThatIsNotMadeIsAnsweredInTheStream) {
  Message ask;
  ask.stream = group::Stream::kFused;
  ask.sequence = 5;
  ask.kind = MessageKind::kAsk;
  ++id_;
  send(1, ask);
  const Message answer = listener_.next(MessageKind::kAnswer);
  EXPECT_EQ(answer.stream, group::Stream::kFused);
  EXPECT_EQ(answer.sequence, 5U);
  EXPECT_FALSE(answer.begun);
}

class StrangeMembers : public test::PeerOfRankZero {
 protected:
  StrangeMembers() : PeerOfRankZero(3) {}

  // Rank 0 and rank 2 have offered a tensor. Rank 1 offers it too, in a message that is refused for what follows.
  void expectNoOrdersFor(const Offer& third) {
    Future<void> mine = offer("mine");
    sendOffers({{Offer{"mine", floats(100)}}}, 2);
    EXPECT_TRUE(group::parseOrders(listener_.next(MessageKind::kOrders).body)->answered);
    sendOffers({{third, Offer{"a", floats(1)}, Offer{"a", floats(1)}}}, 1);
    expectOnlyAnAbort();
    EXPECT_EQ(failureOf(mine).worker(), "w1");
    group_.core().close(cancelled("rank 0 has done with the message"));
    Message ask;
    ask.kind = MessageKind::kAsk;
    send(2, ask);  // which is answered with another abort
    expectOnlyAnAbort();
  }

 private:
  void expectOnlyAnAbort() {
    for (const Message& message : listener_.until(MessageKind::kAbort))
      EXPECT_FALSE(group::isOfNames(message.kind)) << "orders";
  }
};

TEST_F(StrangeMembers, AMessageThatIsRefusedCompletesNoTensor) { expectNoOrdersFor({"mine", floats(100)}); }

TEST_F(StrangeMembers, AMessageThatIsRefusedFailsNoTensor) { expectNoOrdersFor({"mine", floats(7)}); }

// Fusion did happen: many names, few operations.
TEST_F(StrangeMember, ThatOffersManyNamesIsOrderedThemTogether) {
  constexpr size_t kNames = 200;
  std::vector<std::vector<float>> data(kNames, std::vector<float>(10));
  std::vector<Future<void>> futures;
  for (size_t i = 0; i < kNames; ++i) futures.push_back(pushPull(group_, "t" + std::to_string(i), std::span(data[i])));
  Offers offers;
  for (size_t i = kNames; i > 0; --i) offers.entries.emplace_back(Offer{"t" + std::to_string(i - 1), floats(10)});
  sendOffers(offers);
  size_t parts = 0, batches = 0;
  for (; parts < kNames; ++batches) {
    const auto orders = group::parseOrders(listener_.next(MessageKind::kOrders).body);
    ASSERT_TRUE(orders.ok()) << orders.status().toString();
    parts += orders->parts.size();
  }
  EXPECT_EQ(parts, kNames);
  EXPECT_EQ(batches, 1U);
}

class StrangeRankZero : public test::PeerOfNames {
 protected:
  StrangeRankZero() : PeerOfNames(1) { listener_.next(MessageKind::kOffers); }
  void sendOrders(const Orders& orders) { sendBody(0, MessageKind::kOrders, encode(orders)); }

  Future<void> mine_ = offer("mine");
};

TEST_F(StrangeRankZero, BytesThatAreNoOrders) {
  sendBody(0, MessageKind::kOrders, {std::byte{7}});
  expectGroupFails(mine_, "rank 0's orders");
}

TEST_F(StrangeRankZero, NoOrders) {
  sendOrders({});
  expectGroupFails(mine_, "rank 0's orders");
}

TEST_F(StrangeRankZero, OffersToAMember) {
  sendBody(0, MessageKind::kOffers, encode(Offers{{Offer{"a", floats(1)}}}));
  expectGroupFails(mine_, "that members exchange with rank 0");
}

TEST_F(StrangeRankZero, AnAnswerTwice) {
  sendOrders({true, {}, {}});
  sendOrders({true, {}, {}});
  expectGroupFails(mine_, "it answered offers that were not sent");
}

TEST_F(StrangeRankZero, AnUnknownNumber) {
  sendOrders({true, {{1, {0, 100}}}, {}});
  expectGroupFails(mine_, "it ordered the sum of a tensor that is not open");
}

TEST_F(StrangeRankZero, ElementsThatTheTensorDoesNotHave) {
  sendOrders({true, {{0, {0, 101}}}, {}});
  expectGroupFails(mine_, "it ordered elements of a tensor that were not due");
}

TEST_F(StrangeRankZero, TheFailureOfAnUnknownOffer) {
  sendOrders({true, {}, {{1, cancelled("x")}}});
  expectGroupFails(mine_, "it failed an offer that was not sent");
}

TEST_F(StrangeRankZero, AFailureIsTheOffersAlone) {
  Future<void> other = offer("other");
  sendOrders({true, {}, {{0, invalidArgument("it differs")}}});
  EXPECT_EQ(failureOf(mine_).message(), "it differs");
  EXPECT_FALSE(other.ready());
  EXPECT_EQ(group::parseOffers(listener_.next(MessageKind::kOffers).body)->entries.size(), 1U);
}

// The limit of a tensor holds from its offer on, whatever is ordered before it.
TEST_F(StrangeRankZero, ATensorBehindOthersHasItsLimit) {
  std::vector<float> data(3);
  Future<void> a = pushPull(group_.withTimeout(kNoTimeout), "a", std::span(data).subspan(0, 1));
  Future<void> b = pushPull(group_.withTimeout(kNoTimeout), "b", std::span(data).subspan(1, 1));
  Future<void> c = pushPull(group_.withTimeout(std::chrono::seconds(1)), "c", std::span(data).subspan(2, 1));
  sendOrders({true, {}, {}});
  listener_.next(MessageKind::kOffers);
  for (const uint64_t number : {1U, 2U, 3U}) sendOrders({false, {{number, {0, 1}}}, {}});
  const Status why = failureOf(c);
  EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.toString();
  EXPECT_TRUE(contains(why.message(), "it has not been started by worker 'w0' (rank 0)"));
  EXPECT_FALSE(a.ready());
  EXPECT_FALSE(b.ready());
}

TEST_F(StrangeRankZero, SumsWithoutEndAheadOfTheMember) {
  std::vector<float> data(2000);
  Future<void> large = pushPull(group_, "large", std::span(data));
  sendOrders({true, {}, {}});
  listener_.next(MessageKind::kOffers);
  for (uint64_t i = 0; i < 1100; ++i) sendOrders({false, {{1, {i, i + 1}}}, {}});
  expectGroupFails(large, "it ordered too many sums ahead");
}

TEST_F(StrangeRankZero, DataOfABatchThatItHasNotOrdered) {
  Message chunk;
  chunk.stream = group::Stream::kFused;
  chunk.kind = MessageKind::kChunk;
  send(0, chunk);
  expectGroupFails(mine_, "the batches of pushPull in group 'pair'");
}

}  // namespace
}  // namespace treadle::push_pull_protocol_test
