// The scenarios of docs/protocol/references.md one by one, with what the links do to chosen messages on the way: A, B
// and C are workers, O owns the value.

#include <string>

#include "tests/core/rpc/reference_network.h"
#include "tests/support/expect_error.h"
#include "tests/support/seeds.h"

namespace treadle::rpc::references_scenarios_test {
namespace {

using simulated::Fate;
using simulated::Kind;
using simulated::Message;
using simulated::Network;

constexpr int O = 0, A = 1, B = 2, C = 3;
constexpr int kWorkers = 4;

const char* nameOf(int rank) { return std::array{"O", "A", "B", "C"}.at(static_cast<size_t>(rank)); }
const char* nameOf(RefNotice notice) {
  return std::array{"", "fork added", "fork known", "child accepted", "fork deleted", "deletion known"}.at(
      static_cast<size_t>(notice));
}

// One value, of O's, that A has asked for.
class Stage : public Network {
 public:
  explicit Stage(simulated::Hook first = nullptr)
      : Network([](size_t) -> size_t { return 0; }, kWorkers, false), chosen_(std::move(first)) {
    setHook([this](int from, int to, const Message& message) {
      if (message.kind == Kind::kNotice)
        notices_.push_back(std::string(nameOf(from)) + ">" + nameOf(to) + " " + nameOf(message.notice));
      return chosen_ ? chosen_(from, to, message) : Fate::kDeliver;
    });
    make(A, O);
    ref_ = node(A).held.front()->entry().ref;
  }

  // What happens from now on to the messages for which `which` holds.
  void always(Fate fate, std::function<bool(int from, int to, const Message&)> which) {
    chosen_ = [fate, which = std::move(which)](int from, int to, const Message& message) {
      return which(from, to, message) ? fate : Fate::kDeliver;
    };
  }
  void always(Fate fate, RefNotice notice) {
    always(fate, [notice](int, int, const Message& message) {
      return message.kind == Kind::kNotice && message.notice == notice;
    });
  }
  void always(Fate fate, Kind kind) {
    always(fate, [kind](int, int, const Message& message) { return message.kind == kind; });
  }
  void asUsual() { chosen_ = nullptr; }

  void pass(int from, int to) {
    send(from, to, {Kind::kPass, {}, node(from).references->fork(node(from).held.front(), to)});
  }
  void letGo(int rank) { node(rank).held.clear(); }
  size_t startFetch(int rank) {
    fetch(rank);
    return lastNumber_;
  }
  // Until nothing is under way that is not held.
  void settle() {
    while (deliverOne() || makeOne(O)) {}
  }
  void failToMake(const Status& why) {
    while (deliverOne()) {}
    ASSERT_TRUE(makeOne(O, why));
  }
  void releaseAndSettle() {
    asUsual();
    release();
    settle();
  }
  // Only these two, and not for good: each is alive.
  void separate(int one, int other) {
    for (auto [at, gone] : {std::pair{one, other}, std::pair{other, one}}) {
      node(at).knowsDead[static_cast<size_t>(gone)] = true;
      for (bool answer : {false, true}) channels_[{gone, at, answer}].clear();
      node(at).references->onLost(gone, peerLost(nameOf(gone), "they cannot reach each other"));
      endMakesOf(gone, at);
    }
  }
  using Network::die;
  using Network::resendAll;
  using Network::tellOfDeath;

  bool valueLives() { return values_.contains(ref_) && !values_.at(ref_)->gone; }
  // Null: not answered.
  const Status* answerOf(size_t fetch) { return outcomes_.contains(fetch) ? &outcomes_.at(fetch) : nullptr; }
  std::optional<Code> codeOf(size_t fetch) {
    const Status* answer = answerOf(fetch);
    return answer != nullptr ? std::optional(answer->code()) : std::nullopt;
  }
  Status failureAt(int rank) { return node(rank).references->failureOf(node(rank).held.front()); }
  References::Counts countsAt(int rank) { return node(rank).references->counts(); }
  size_t heldAt(int rank) { return node(rank).held.size(); }
  // Since it was last asked for.
  std::vector<std::string> notices() { return std::exchange(notices_, {}); }
  void end() {
    for (int rank = 0; rank < size(); ++rank) letGo(rank);
    run(0);
  }

 private:
  std::vector<std::string> notices_;
  simulated::Hook chosen_;
  RefId ref_;
};

using Notices = std::vector<std::string>;

TEST(ReferenceScenario, _1_madeAndRead) {
  Stage stage;
  const size_t fetch = stage.startFetch(A);
  stage.settle();
  EXPECT_EQ(Code::kOk, stage.codeOf(fetch));
  EXPECT_TRUE(stage.notices().empty());
  stage.letGo(A);
  stage.settle();
  EXPECT_EQ((Notices{"A>O fork deleted", "O>A deletion known"}), stage.notices());
  EXPECT_FALSE(stage.valueLives());
  stage.end();
}

TEST(ReferenceScenario, _2_passedOn) {
  Stage stage;
  stage.settle();
  stage.pass(A, B);
  stage.settle();
  EXPECT_EQ((Notices{"B>O fork added", "O>B fork known", "B>A child accepted"}), stage.notices());
  stage.letGo(A);
  stage.settle();
  EXPECT_TRUE(stage.valueLives()) << "B has it";
  stage.notices();
  stage.letGo(B);
  stage.settle();
  EXPECT_EQ((Notices{"B>O fork deleted", "O>B deletion known"}), stage.notices());
  EXPECT_FALSE(stage.valueLives());
  stage.end();
}

TEST(ReferenceScenario, _3_passedOnAndDroppedAtOnce) {
  for (RefNotice late : {RefNotice::kForkAdded, RefNotice::kForkKnown, RefNotice::kChildAccepted}) {
    SCOPED_TRACE(nameOf(late));
    Stage stage;
    stage.settle();
    stage.always(Fate::kHold, late);
    stage.pass(A, B);
    stage.letGo(A);
    stage.settle();
    for (const std::string& notice : stage.notices()) EXPECT_NE("A>O fork deleted", notice) << "it has a child";
    EXPECT_TRUE(stage.valueLives());
    stage.releaseAndSettle();
    EXPECT_EQ("O>A deletion known", stage.notices().back());
    EXPECT_TRUE(stage.valueLives()) << "B has it";
    stage.end();
  }
}

TEST(ReferenceScenario, _4_theReceiverDiesBeforeItSaidAnything) {
  Stage stage;
  stage.settle();
  stage.always(Fate::kHold, Kind::kPass);
  stage.pass(A, B);
  stage.letGo(A);
  stage.settle();
  EXPECT_TRUE(stage.valueLives());
  stage.die(B);
  stage.tellOfDeath(A);
  stage.settle();
  EXPECT_EQ((Notices{"A>O fork deleted", "O>A deletion known"}), stage.notices());
  EXPECT_FALSE(stage.valueLives());
  stage.end();
}

TEST(ReferenceScenario, _5_theSenderDiesAfterItPassedTheReferenceOn) {
  Stage stage;
  stage.settle();
  stage.always(Fate::kHold, RefNotice::kForkAdded);
  stage.pass(A, B);
  stage.settle();
  stage.die(A);
  stage.tellOfDeath(O);
  EXPECT_FALSE(stage.valueLives()) << "nobody else is known to hold it";
  const size_t fetch = stage.startFetch(B);
  stage.releaseAndSettle();
  EXPECT_EQ(Code::kPeerLost, stage.codeOf(fetch));
  stage.end();
}

TEST(ReferenceScenario, _5_theSenderDiesAndTheOwnerKnewOfTheReceiver) {
  Stage stage;
  stage.settle();
  stage.pass(A, B);
  stage.settle();
  stage.die(A);
  stage.tellOfDeath(O);
  EXPECT_TRUE(stage.valueLives());
  const size_t fetch = stage.startFetch(B);
  stage.settle();
  EXPECT_EQ(Code::kOk, stage.codeOf(fetch));
  stage.end();
}

// C, which neither made the value nor owns it, dies with the last reference that O knows.
TEST(ReferenceScenario, _5_aThirdWorkerDiesAfterItPassedTheReferenceOn) {
  for (bool ownerKnewOfIt : {true, false}) {
    SCOPED_TRACE(ownerKnewOfIt);
    Stage stage;
    stage.settle();
    if (!ownerKnewOfIt) stage.always(Fate::kHold, RefNotice::kForkAdded);
    stage.pass(A, C);
    stage.settle();
    stage.always(Fate::kHold, RefNotice::kForkAdded);
    stage.pass(C, B);
    stage.letGo(A);
    stage.settle();
    EXPECT_TRUE(stage.valueLives());
    stage.die(C);
    for (int rank : {O, A}) stage.tellOfDeath(rank);
    stage.asUsual();
    stage.always(Fate::kHold, RefNotice::kForkAdded);
    stage.settle();
    EXPECT_FALSE(stage.valueLives()) << "nobody else is known to hold it";
    const size_t fetch = stage.startFetch(B);
    stage.releaseAndSettle();
    ASSERT_EQ(Code::kPeerLost, stage.codeOf(fetch));
    EXPECT_EQ(std::to_string(C), stage.answerOf(fetch)->worker());
    stage.end();
  }
}

TEST(ReferenceScenario, _6_aFetchOvertakesTheRequestThatMakesTheValue) {
  Stage stage([](int from, int to, const Message&) { return from == A && to == O ? Fate::kHold : Fate::kDeliver; });
  stage.asUsual();
  stage.pass(A, B);
  stage.settle();
  const size_t fetch = stage.startFetch(B);
  stage.settle();
  EXPECT_FALSE(stage.codeOf(fetch)) << "O waits on B's behalf";
  stage.releaseAndSettle();
  EXPECT_EQ(Code::kOk, stage.codeOf(fetch));
  stage.end();
}

TEST(ReferenceScenario, _7_theMakingFails) {
  Stage stage;
  stage.pass(A, B);
  stage.failToMake(internalError("no memory for it"));
  stage.settle();
  EXPECT_EQ(Code::kInternal, stage.failureAt(A).code());
  const size_t fetch = stage.startFetch(B);
  stage.settle();
  ASSERT_NE(nullptr, stage.answerOf(fetch));
  EXPECT_EQ("no memory for it", stage.answerOf(fetch)->message());
  stage.end();
}

TEST(ReferenceScenario, _8_aReferenceComesHome) {
  Stage stage;
  stage.settle();
  stage.pass(A, B);
  stage.settle();
  stage.notices();
  stage.pass(B, O);
  stage.settle();
  EXPECT_EQ((Notices{"O>B child accepted"}), stage.notices());
  stage.letGo(A);
  stage.letGo(B);
  stage.settle();
  EXPECT_EQ(0U, stage.countsAt(O).forks);
  EXPECT_TRUE(stage.valueLives()) << "its owner has a handle";
  stage.letGo(O);
  EXPECT_FALSE(stage.valueLives());
  stage.end();
}

TEST(ReferenceScenario, _9_ownerAndReceiverLoseEachOther) {
  Stage stage;
  stage.settle();
  stage.always(Fate::kHold, RefNotice::kForkAdded);
  stage.pass(A, B);
  stage.settle();
  stage.asUsual();
  stage.separate(O, B);
  stage.pass(A, B);  // after it, too
  stage.letGo(A);
  stage.settle();
  EXPECT_EQ(2U, stage.heldAt(B));
  EXPECT_EQ(Code::kPeerLost, stage.failureAt(B).code());
  EXPECT_EQ("O>A deletion known", stage.notices().back()) << "A is not kept waiting";
  EXPECT_FALSE(stage.valueLives());
  stage.end();
}

// ---- what links do to chosen messages

TEST(ReferenceFaults, aDeletionIsToldUntilItArrives) {
  for (RefNotice lost : {RefNotice::kForkDeleted, RefNotice::kDeletionKnown}) {
    SCOPED_TRACE(nameOf(lost));
    Stage stage;
    stage.settle();
    stage.always(Fate::kDrop, lost);
    stage.letGo(A);
    for (int i = 0; i < 5; ++i) {
      stage.settle();
      EXPECT_TRUE(stage.resendAll()) << "it is not acknowledged";
    }
    EXPECT_EQ(lost == RefNotice::kForkDeleted, stage.valueLives());
    stage.asUsual();
    stage.resendAll();
    stage.settle();
    EXPECT_FALSE(stage.resendAll());
    EXPECT_FALSE(stage.valueLives());
    stage.end();
  }
}

TEST(ReferenceFaults, aReferenceIsOfUseWhileTheWordThatItIsKnownIsStuck) {
  Stage stage;
  stage.settle();
  stage.always(Fate::kHold, RefNotice::kForkKnown);
  stage.pass(A, B);
  stage.settle();
  const size_t fetch = stage.startFetch(B);
  stage.settle();
  EXPECT_EQ(Code::kOk, stage.codeOf(fetch));
  stage.pass(B, C);
  stage.letGo(B);
  stage.letGo(A);
  stage.settle();
  EXPECT_TRUE(stage.valueLives()) << "C has it";
  stage.releaseAndSettle();
  EXPECT_TRUE(stage.valueLives());
  stage.letGo(C);
  stage.settle();
  EXPECT_FALSE(stage.valueLives());
  stage.end();
}

// Everything that is told, told twice.
TEST(ReferenceFaults, noticesThatComeTwiceChangeNothing) {
  Stage stage;
  stage.always(Fate::kDouble, Kind::kNotice);
  stage.settle();
  stage.pass(A, B);
  stage.pass(A, C);
  stage.letGo(A);
  stage.settle();
  stage.pass(B, O);
  stage.letGo(B);
  stage.settle();
  EXPECT_TRUE(stage.valueLives());
  stage.letGo(C);
  stage.settle();
  EXPECT_TRUE(stage.valueLives()) << "O has it";
  stage.letGo(O);
  stage.settle();
  EXPECT_FALSE(stage.valueLives());
  stage.end();
}

// Links stand still and go on, lose what they may and double what they tell, at random.
TEST(ReferenceFaults, nothingGoesEarlyOrStaysWhateverTheLinksDo) {
  test::forSeeds(2000, [](test::Random& random) {
    const auto below = [&random](size_t limit) { return test::pick(random, limit); };
    Network network(below, 2 + static_cast<int>(below(4)), below(2) == 0);
    network.setHook([&](int, int, const Message& message) {
      if (below(8) == 0) network.release();
      if (message.kind != Kind::kNotice) return below(10) == 0 ? Fate::kHold : Fate::kDeliver;
      if (Network::mayBeLost(message) && below(3) == 0) return Fate::kDrop;
      return std::array{Fate::kDeliver, Fate::kDouble, Fate::kHold}.at(below(3));
    });
    network.run(200);
  });
}

}  // namespace
}  // namespace treadle::rpc::references_scenarios_test
