// Counted references over random histories, and single steps of them.
#include "treadle/core/rpc/references.h"

#include "tests/core/rpc/reference_network.h"
#include "tests/support/seeds.h"

namespace treadle::rpc {
namespace {

using test::Network;

test::Choose byChance(treadle::test::Random& random) {
  return [&random](size_t below) { return treadle::test::pick(random, below); };
}

TEST(References, valuesLiveAsLongAsAnybodyRefersToThemAndNoLonger) {
  treadle::test::forSeeds(5000, [](treadle::test::Random& random) {
    Network(byChance(random), 1 + static_cast<int>(treadle::test::pick(random, 4)), false).run(150);
  });
}

TEST(References, nothingIsLeftOfWhatTheDeadHeldOwnedOrPassedOn) {
  treadle::test::forSeeds(5000, [](treadle::test::Random& random) {
    Network(byChance(random), 2 + static_cast<int>(treadle::test::pick(random, 3)), true).run(150);
  });
}

TEST(References, deletionsMayBeLostDoubledAndReordered) {
  treadle::test::forSeeds(3000, [](treadle::test::Random& random) {
    Network(byChance(random), 2 + static_cast<int>(treadle::test::pick(random, 3)), treadle::test::pick(random, 2) == 0,
            true)
        .run(150);
  });
}

TEST(References, liveThroughALongHistoryOfManyWorkers) {
  treadle::test::forSeeds(2, [](treadle::test::Random& random) {
    Network(byChance(random), 8, false, treadle::test::pick(random, 2) == 0).run(100'000);
  });
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
  user->onNotice(2, RefNotice::kDeletionKnown, entry);
  EXPECT_EQ(1U, user->counts().pending) << "it is no business of others";
  user->onNotice(1, RefNotice::kDeletionKnown, entry);
  EXPECT_EQ(0U, user->counts().pending);
  EXPECT_FALSE(user->resendDeletions());
}

TEST(References, aNoticeThatComesTwiceOrForNothingIsHarmless) {
  std::vector<RefNotice> sent;
  auto owner =
      std::make_shared<References>(0, [&](int, RefNotice notice, const ForkEntry&) { sent.push_back(notice); });
  HandlePtr handle = owner->own({std::make_shared<int>(1), &typeid(int), nullptr});
  ForkEntry fork = owner->fork(handle, 1);
  for (int i = 0; i < 2; ++i) owner->onNotice(1, RefNotice::kForkAdded, fork);
  EXPECT_EQ(1U, owner->counts().forks);
  for (int i = 0; i < 2; ++i) owner->onNotice(1, RefNotice::kForkDeleted, fork);
  for (RefNotice notice : {RefNotice::kForkKnown, RefNotice::kChildAccepted, RefNotice::kForkDeleted})
    owner->onNotice(1, notice, {{1, 77}, 0, {1, 78}});
  EXPECT_EQ(1U, owner->counts().owned);
  handle.reset();
  EXPECT_EQ(0U, owner->counts().owned);
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
}  // namespace treadle::rpc
