// Counted references over random histories, and single steps of them.
#include "treadle/core/rpc/references.h"

#include <set>

#include "tests/core/rpc/reference_network.h"
#include "tests/support/expect_error.h"
#include "tests/support/seeds.h"

namespace treadle::rpc::references_test {
namespace {

using simulated::Network;

simulated::Choose byChance(test::Random& random) {
  return [&random](size_t below) { return test::pick(random, below); };
}

TEST(References, valuesLiveAsLongAsAnybodyRefersToThemAndNoLonger) {
  test::forSeeds(5000, [](test::Random& random) {
    Network(byChance(random), 1 + static_cast<int>(test::pick(random, 4)), false).run(150);
  });
}

TEST(References, nothingIsLeftOfWhatTheDeadHeldOwnedOrPassedOn) {
  test::forSeeds(5000, [](test::Random& random) {
    Network(byChance(random), 2 + static_cast<int>(test::pick(random, 3)), true).run(150);
  });
}

TEST(References, deletionsMayBeLostDoubledAndReordered) {
  test::forSeeds(3000, [](test::Random& random) {
    Network(byChance(random), 2 + static_cast<int>(test::pick(random, 3)), test::pick(random, 2) == 0, true).run(150);
  });
}

TEST(References, liveThroughALongHistoryOfManyWorkers) {
  test::forSeeds(
      2, [](test::Random& random) { Network(byChance(random), 8, false, test::pick(random, 2) == 0).run(30'000); });
}

TEST(References, aDeletionIsToldAgainUntilItIsAcknowledged) {
  std::vector<RefNotice> sent;
  auto user = std::make_shared<References>(0, [&](int, RefNotice notice, const ForkEntry&) { sent.push_back(notice); });
  HandlePtr handle = user->expect(1);
  ForkEntry entry = handle->entry();
  user->confirm(entry, {});
  EXPECT_FALSE(user->resendDeletions());
  handle.reset();
  EXPECT_EQ(std::vector{RefNotice::kForkDeleted}, sent);
  EXPECT_TRUE(user->resendDeletions()) << "it has only just been told";
  EXPECT_EQ(1U, sent.size());
  EXPECT_TRUE(user->resendDeletions());
  EXPECT_EQ(2U, sent.size());
  user->onNotice(2, RefNotice::kDeletionKnown, entry).ignore();
  EXPECT_EQ(1U, user->counts().pending) << "it is no business of others";
  user->onNotice(1, RefNotice::kDeletionKnown, entry).ignore();
  EXPECT_EQ(0U, user->counts().pending);
  EXPECT_FALSE(user->resendDeletions());
}

// Not all at once, and none is left out for it.
TEST(References, manyDeletionsAreToldAgainInTurn) {
  constexpr size_t kMany = 10'000;
  std::set<uint64_t> told;
  auto user =
      std::make_shared<References>(0, [&](int, RefNotice, const ForkEntry& entry) { told.insert(entry.fork.number); });
  for (size_t i = 0; i < kMany; ++i) {
    HandlePtr handle = user->expect(1);
    user->confirm(handle->entry(), {});
  }
  told.clear();
  EXPECT_TRUE(user->resendDeletions()) << "they have only just been told";
  EXPECT_TRUE(told.empty());
  size_t before = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(user->resendDeletions());
    EXPECT_LT(told.size() - before, kMany / 2);
    before = told.size();
  }
  EXPECT_EQ(kMany, told.size());
}

TEST(References, aWorkerSpeaksForItsOwnForksAlone) {
  auto owner = std::make_shared<References>(0, [](int, RefNotice, const ForkEntry&) {});
  HandlePtr handle = owner->own({std::make_shared<int>(1), &typeid(int), nullptr});
  const ForkEntry fork = owner->fork(handle, 2);
  handle.reset();
  owner->onNotice(1, RefNotice::kForkAdded, fork).ignore();  // says that it holds what worker 2 holds
  owner->adoptRequested(1, fork);                            // or asked for it
  owner->onNotice(1, RefNotice::kForkDeleted, fork).ignore();
  EXPECT_EQ(1U, owner->counts().owned) << "worker 2 still refers to it";
  owner->onNotice(2, RefNotice::kForkDeleted, fork).ignore();
  EXPECT_EQ(0U, owner->counts().owned);
}

TEST(References, ofOnePeerHaveALimitAndOneThatGoesOnToTwiceIsTold) {
  auto owner = std::make_shared<References>(0, [](int, RefNotice, const ForkEntry&) {}, 4);
  const auto fork = [](uint64_t number) { return ForkEntry{{1, number}, 0, {1, 100 + number}}; };
  for (uint64_t i = 0; i < 3; ++i) owner->adoptRequested(1, fork(i));
  EXPECT_TRUE(owner->onNotice(1, RefNotice::kForkAdded, fork(3)).ok());
  EXPECT_TRUE(owner->onNotice(1, RefNotice::kForkAdded, fork(3)).ok()) << "the same again";
  EXPECT_TRUE(owner->roomFor(1, 0).ok());
  EXPECT_EQ(Code::kResourceExhausted, owner->roomFor(1, 1).code());
  EXPECT_TRUE(owner->roomFor(2, 4).ok()) << "another peer has its own";
  EXPECT_TRUE(owner->onNotice(1, RefNotice::kForkDeleted, fork(3)).ok());
  EXPECT_TRUE(owner->roomFor(1, 1).ok());
  uint64_t next = 3;
  while (next < 20) owner->adoptRequested(1, fork(next++));
  EXPECT_EQ(8U, owner->counts().forks) << "those of requests that were refused are no more";
  const Status flood = owner->onNotice(1, RefNotice::kForkAdded, fork(next));
  EXPECT_EQ(Code::kResourceExhausted, flood.code());
  EXPECT_TRUE(test::contains(flood.message(), "referenceLimit")) << flood.message();
  owner->onLost(1, cancelled("gone"));
  EXPECT_EQ(0U, owner->counts().forks);
}

// After a loss the owner remembers which values have gone, the newest 65,536 of them.
TEST(References, remembersABoundedNumberOfTheValuesThatHaveGoneAfterALoss) {
  constexpr size_t kValues = 70'000, kRemembered = 65'536;
  auto owner = std::make_shared<References>(0, [](int, RefNotice, const ForkEntry&) {});
  owner->onLost(2, peerLost("w2", "w2 is lost"));
  std::vector<RefId> gone;
  for (size_t i = 0; i < kValues; ++i) {
    HandlePtr handle = owner->own({std::make_shared<int>(1), &typeid(int), nullptr});
    gone.push_back(handle->entry().ref);
  }
  EXPECT_EQ(0U, owner->counts().owned);
  // A reference to a remembered value fails with the name of the lost worker. The newest value is asked for first: a
  // question about a forgotten one makes the owner remember it again.
  size_t remembered = 0;
  for (auto ref = gone.rbegin(); ref != gone.rend(); ++ref) {
    Status outcome;
    EXPECT_EQ(0U, owner->whenReady(*ref, [&](Result<OwnedValue> value) { outcome = value.status(); }));
    if (outcome.code() != Code::kPeerLost) {
      EXPECT_EQ(Code::kNotFound, outcome.code()) << outcome.message();
      break;
    }
    EXPECT_EQ("w2", outcome.worker());
    ++remembered;
  }
  EXPECT_EQ(kRemembered, remembered);
}

TEST(References, whatIsPassedOnIsKeptUntilItsReceiverHasSaidSo) {
  std::vector<RefNotice> sent;
  auto user = std::make_shared<References>(0, [&](int, RefNotice notice, const ForkEntry&) { sent.push_back(notice); });
  HandlePtr handle = user->expect(1);
  const ForkEntry mine = handle->entry(), child = user->fork(handle, 2);
  handle.reset();
  user->onNotice(2, RefNotice::kForkKnown, mine).ignore();  // not the owner's word
  user->onNotice(1, RefNotice::kForkKnown, mine).ignore();
  user->onNotice(1, RefNotice::kChildAccepted, child).ignore();  // not who it was sent to
  EXPECT_TRUE(sent.empty());
  user->onNotice(2, RefNotice::kChildAccepted, child).ignore();
  EXPECT_EQ(std::vector{RefNotice::kForkDeleted}, sent);
}

// The loss cancels the request, and who learns of the reference only then is told the cause.
TEST(References, toAValueWhoseMakingTheLossOfItsAskerCancelledSayThatItIsLost) {
  auto owner = std::make_shared<References>(0, [](int, RefNotice, const ForkEntry&) {});
  const ForkEntry ofTheLost{{1, 1}, 0, {1, 2}};
  owner->adoptRequested(1, ofTheLost);
  owner->onLost(1, peerLost("asker", "gone"));
  Status why;
  owner->whenReady(ofTheLost.ref, [&](const Result<OwnedValue>& value) { why = value.status(); });
  owner->fulfil(ofTheLost.ref, cancelled("the caller gave up"));
  EXPECT_EQ(Code::kPeerLost, why.code()) << why.toString();
  EXPECT_EQ("asker", why.worker());
}

TEST(References, whatPeersGiveHasNumbersOfTheirOwn) {
  auto owner = std::make_shared<References>(0, [](int, RefNotice, const ForkEntry&) {});
  const HandlePtr mine = owner->own({std::make_shared<int>(1), &typeid(int), nullptr});
  const RefId known = mine->entry().ref, unborn{0, known.number + 9}, theirs{1, 5};
  EXPECT_TRUE(owner->checkGiven(1, {{known, 0, {1, 6}}, {theirs, 1, {1, 7}}, {{2, 8}, 2, {1, 9}}}).ok());
  EXPECT_EQ(Code::kDataLoss, owner->checkGiven(1, {{theirs, 1, {2, 6}}}).code()) << "a third worker's number";
  EXPECT_EQ(Code::kDataLoss, owner->checkGiven(1, {{theirs, 1, {0, 6}}}).code()) << "or this worker's";
  EXPECT_EQ(Code::kDataLoss, owner->checkGiven(1, {{unborn, 0, {1, 6}}}).code());
  EXPECT_EQ(Code::kDataLoss, owner->onNotice(1, RefNotice::kForkAdded, {unborn, 0, {1, 6}}).code());
  const ForkEntry asked{theirs, 0, {1, 6}};
  EXPECT_TRUE(owner->checkGiven(1, {}, &asked).ok());
  for (ForkEntry forged : {ForkEntry{{2, 5}, 0, {1, 6}}, {{1, 5}, 0, {2, 6}}, {{1, 5}, 2, {1, 6}}, {unborn, 0, {1, 6}}})
    EXPECT_EQ(Code::kDataLoss, owner->checkGiven(1, {}, &forged).code());
  EXPECT_EQ(1U, owner->counts().owned) << "and nothing is there of what was refused";
}

TEST(References, thatAPeerGivesHaveALimitThatEndsWithThem) {
  auto user = std::make_shared<References>(0, [](int, RefNotice, const ForkEntry&) {}, 4);
  const auto fork = [](int owner, uint64_t number) { return ForkEntry{{owner, number}, owner, {1, 100 + number}}; };
  std::vector<HandlePtr> held;
  for (uint64_t i = 0; i < 6; ++i) {
    const std::vector<ForkEntry> one = {fork(i % 2 == 0 ? 1 : 2, i)};
    ASSERT_TRUE(user->checkGiven(1, one).ok());
    for (HandlePtr& handle : user->adopt(1, one)) held.push_back(std::move(handle));
  }
  const Status flood = user->checkGiven(1, {fork(1, 6)});
  EXPECT_EQ(Code::kResourceExhausted, flood.code());
  EXPECT_TRUE(test::contains(flood.message(), "referenceLimit")) << flood.message();
  EXPECT_TRUE(user->checkGiven(3, {{{1, 9}, 1, {3, 9}}}).ok()) << "another peer has its own";
  held.erase(held.begin());
  EXPECT_FALSE(user->checkGiven(1, {fork(1, 6)}).ok()) << "its owner has not acknowledged the end of it";
  user->onNotice(1, RefNotice::kDeletionKnown, fork(1, 0)).ignore();
  EXPECT_TRUE(user->checkGiven(1, {fork(1, 6)}).ok());
  held.clear();
  user->onLost(1, cancelled("gone"));
  user->onLost(2, cancelled("gone"));
  EXPECT_EQ(0U, user->counts().held + user->counts().pending);
}

// The loss comes between the making of the reference and the refusal of its request, or after that.
TEST(References, whoseOwnerIsLostBeforeItIsAskedAreNotSentOn) {
  for (const bool isLostFirst : {true, false}) {
    auto user = std::make_shared<References>(0, [](int, RefNotice, const ForkEntry&) {});
    HandlePtr handle = user->expect(1);
    const Status why = peerLost("w1", "w1 is lost");
    if (isLostFirst) user->onLost(1, why);
    user->notAsked(handle->entry());
    user->confirm(handle->entry(), why);
    if (!isLostFirst) user->onLost(1, why);
    EXPECT_EQ(why.toString(), user->failureUnknownToOwner(*handle).toString());
    handle.reset();
    EXPECT_EQ(0U, user->counts().held + user->counts().pending);
  }
}

TEST(References, aWaitThatIsEndedIsToldWhy) {
  auto owner = std::make_shared<References>(0, [](int, RefNotice, const ForkEntry&) {});
  std::vector<Code> told;
  const auto note = [&](Result<OwnedValue> value) { told.push_back(value.status().code()); };
  const uint64_t number = owner->whenReady({1, 5}, note);
  owner->endWait({1, 5}, number, deadlineExceeded("late"));
  owner->endWait({1, 5}, number, deadlineExceeded("late"));
  EXPECT_EQ(std::vector{Code::kDeadlineExceeded}, told);
  EXPECT_EQ(0U, owner->counts().owned);
}

TEST(References, aForkThatIsGivenTwiceIsHeldOnce) {
  std::vector<RefNotice> sent;
  auto user = std::make_shared<References>(0, [&](int, RefNotice notice, const ForkEntry&) { sent.push_back(notice); });
  const ForkEntry fork{{1, 5}, 1, {1, 6}};
  std::vector<HandlePtr> first = user->adopt(1, {fork}), second = user->adopt(2, {{{2, 9}, 2, fork.fork}});
  EXPECT_EQ(1U, user->counts().held);
  second.clear();
  EXPECT_TRUE(sent.empty()) << "the fork of another is not let go of";
  first.clear();
  EXPECT_EQ(std::vector{RefNotice::kForkDeleted}, sent);
}

TEST(References, aNoticeThatComesTwiceOrForNothingIsHarmless) {
  std::vector<RefNotice> sent;
  auto owner =
      std::make_shared<References>(0, [&](int, RefNotice notice, const ForkEntry&) { sent.push_back(notice); });
  HandlePtr handle = owner->own({std::make_shared<int>(1), &typeid(int), nullptr});
  ForkEntry fork = owner->fork(handle, 1);
  for (int i = 0; i < 2; ++i) owner->onNotice(1, RefNotice::kForkAdded, fork).ignore();
  EXPECT_EQ(1U, owner->counts().forks);
  for (int i = 0; i < 2; ++i) owner->onNotice(1, RefNotice::kForkDeleted, fork).ignore();
  for (RefNotice notice : {RefNotice::kForkKnown, RefNotice::kChildAccepted, RefNotice::kForkDeleted})
    owner->onNotice(1, notice, {{1, 77}, 0, {1, 78}}).ignore();
  EXPECT_EQ(1U, owner->counts().owned);
  handle.reset();
  EXPECT_EQ(0U, owner->counts().owned);
}

// Two workers may lose each other while a third one has both: it is not kept waiting by what it passed between them.
TEST(References, whoLosesTheOwnerLetsThePasserGo) {
  using Told = std::tuple<int, RefNotice, ForkId>;
  std::vector<Told> sent;
  auto record = [&](int rank, RefNotice notice, const ForkEntry& entry) {
    sent.emplace_back(rank, notice, entry.fork);
  };
  auto receiver = std::make_shared<References>(2, record);
  const ForkEntry early{{0, 1}, 0, {1, 5}}, late{{0, 1}, 0, {1, 6}}, direct{{0, 2}, 0, {0, 3}};
  auto handles = receiver->adopt(1, {early});
  auto fromOwner = receiver->adopt(0, {direct});
  EXPECT_EQ(std::vector{Told(0, RefNotice::kForkAdded, early.fork)}, sent);
  sent.clear();
  receiver->onLost(0, peerLost("owner", "gone"));
  EXPECT_EQ(std::vector{Told(1, RefNotice::kChildAccepted, early.fork)}, sent);
  sent.clear();
  auto lateHandles = receiver->adopt(1, {late});
  EXPECT_EQ(std::vector{Told(1, RefNotice::kChildAccepted, late.fork)}, sent);
  EXPECT_EQ(Code::kPeerLost, receiver->failureOf(lateHandles.at(0)).code());
  EXPECT_EQ(0U, receiver->counts().held);
}

TEST(References, clearEndsEveryWait) {
  auto references = std::make_shared<References>(0, [](int, RefNotice, const ForkEntry&) {});
  std::vector<Code> codes;
  references->whenReady({1, 5}, [&](Result<OwnedValue> value) { codes.push_back(value.status().code()); });
  HandlePtr held = references->expect(1);
  references->clear(cancelled("over"));
  references->whenReady({1, 6}, [&](Result<OwnedValue> value) { codes.push_back(value.status().code()); });
  EXPECT_EQ((std::vector<Code>{Code::kCancelled, Code::kCancelled}), codes);
  EXPECT_EQ(Code::kFailedPrecondition, references->failureOf(held).code());
}

}  // namespace
}  // namespace treadle::rpc::references_test
