// The vote over random histories of a job: workers call each other, calls are nested, given up and answered late,
// messages of different sockets overtake each other, workers enter their shutdown when they like. The vote must never
// end while a request is under way, and must always end.
#include "treadle/core/cluster/shutdown_vote.h"

#include <algorithm>
#include <deque>
#include <map>

#include "tests/support/seeds.h"

namespace treadle::cluster {
namespace {

enum class Kind { kRequest, kAnswer, kIdle, kProbe, kProbeAnswer, kFinish };

struct Message {
  Kind kind;
  uint64_t round = 0;
  WorkCount count;
};

struct Node {
  uint64_t sent = 0, handled = 0;
  int pending = 0;  // answers that it awaits
  int givenUp = 0;  // answers that will come and that nobody awaits
  int running = 0;  // handlers
  bool inShutdown = false, finished = false;
};

class Job {
 public:
  Job(test::Random& random, int size) : random_(random), nodes_(static_cast<size_t>(size)), vote_(size) {}

  // Runs until nothing can happen any more.
  void run() {
    while (step()) {}
    for (const Node& node : nodes_) EXPECT_TRUE(node.finished) << "the vote never ended";
  }

 private:
  int size() const { return static_cast<int>(nodes_.size()); }
  Node& node(int rank) { return nodes_[static_cast<size_t>(rank)]; }
  bool chance(int inHundred) { return test::pick(random_, 100) < static_cast<uint64_t>(inHundred); }
  int anyRank() { return static_cast<int>(test::pick(random_, nodes_.size())); }

  // What a worker sends on the socket that it dialed, and what it answers on the one that the other dialed, are each in
  // order; nothing else is.
  void send(int from, int to, const Message& message) {
    channels_[{from, to, message.kind == Kind::kAnswer}].push_back(message);
  }

  bool step() {
    if (chance(40) && act(anyRank())) return true;
    std::vector<std::tuple<int, int, bool>> full;
    for (const auto& [key, queue] : channels_)
      if (!queue.empty()) full.push_back(key);
    if (!full.empty()) return deliver(full[test::pick(random_, full.size())]), true;
    for (int rank = 0; rank < size(); ++rank)
      if (act(rank)) return true;
    return false;
  }

  // Something that a worker does by itself; false when it has nothing to do.
  bool act(int rank) {
    Node& me = node(rank);
    bool mayCall = budget_ > 0 && (!me.inShutdown || me.running > 0);
    if (mayCall && chance(50)) {
      --budget_;
      ++me.sent;
      ++me.pending;
      send(rank, anyRank(), {Kind::kRequest, static_cast<uint64_t>(rank), {}});
    } else if (me.pending > 0 && chance(10)) {
      --me.pending;  // its time limit passes
      ++me.givenUp;
      reportIfIdle(rank);
    } else if (me.running > 0) {
      --me.running;
      ++me.handled;
      int caller = callers_[rank].front();
      callers_[rank].pop_front();
      send(rank, caller, {Kind::kAnswer, 0, {}});
      reportIfIdle(rank);
    } else if (!me.inShutdown) {
      me.inShutdown = true;
      reportIfIdle(rank);
    } else {
      return false;
    }
    return true;
  }

  WorkCount countOf(int rank) {
    Node& me = node(rank);
    return {me.sent, me.handled, me.inShutdown && me.pending == 0 && me.running == 0};
  }
  void reportIfIdle(int rank) {
    WorkCount count = countOf(rank);
    if (count.idle) send(rank, 0, {Kind::kIdle, 0, count});
  }

  void deliver(const std::tuple<int, int, bool>& channel) {
    auto [from, to, answer] = channel;
    Message message = channels_[channel].front();
    channels_[channel].pop_front();
    Node& me = node(to);
    switch (message.kind) {
      case Kind::kRequest:
        ++me.running;
        callers_[to].push_back(from);
        break;
      case Kind::kAnswer:
        if (me.givenUp > 0 && (me.pending == 0 || chance(50))) {
          --me.givenUp;
        } else {
          --me.pending;
          reportIfIdle(to);
        }
        break;
      case Kind::kIdle: react(vote_.report(from, message.count)); break;
      case Kind::kProbe: send(to, 0, {Kind::kProbeAnswer, message.round, countOf(to)}); break;
      case Kind::kProbeAnswer: react(vote_.answer(from, message.round, message.count)); break;
      case Kind::kFinish: me.finished = true; break;
    }
  }

  void react(ShutdownVote::Action action) {
    if (action == ShutdownVote::Action::kFinish) expectNothingUnderWay();
    if (action == ShutdownVote::Action::kNone) return;
    Kind kind = action == ShutdownVote::Action::kProbe ? Kind::kProbe : Kind::kFinish;
    for (int rank = 0; rank < size(); ++rank) send(0, rank, {kind, vote_.round(), {}});
  }

  void expectNothingUnderWay() {
    for (int rank = 0; rank < size(); ++rank) {
      EXPECT_TRUE(node(rank).inShutdown) << "rank " << rank;
      EXPECT_EQ(0, node(rank).running) << "rank " << rank;
      EXPECT_EQ(0, node(rank).pending) << "rank " << rank;
    }
    for (const auto& [key, queue] : channels_)
      for (const Message& message : queue) EXPECT_NE(Kind::kRequest, message.kind) << "a request is in flight";
  }

  test::Random& random_;
  std::vector<Node> nodes_;
  std::map<int, std::deque<int>> callers_;
  std::map<std::tuple<int, int, bool>, std::deque<Message>> channels_;
  ShutdownVote vote_;
  int budget_ = 30;
};

TEST(ShutdownVote, endsAlwaysAndNeverWhileARequestIsUnderWay) {
  test::forSeeds(5'000, [](test::Random& random) { Job(random, 1 + static_cast<int>(test::pick(random, 4))).run(); });
}

TEST(ShutdownVote, namesWhoHasNotReported) {
  ShutdownVote vote(3);
  EXPECT_EQ((std::vector<int>{0, 1, 2}), vote.waitingFor());
  EXPECT_EQ(ShutdownVote::Action::kNone, vote.report(1, {0, 0, true}));
  EXPECT_EQ((std::vector<int>{0, 2}), vote.waitingFor());
}

TEST(ShutdownVote, asksAgainBeforeItBelieves) {
  ShutdownVote vote(2);
  EXPECT_EQ(ShutdownVote::Action::kNone, vote.report(0, {1, 0, true}));
  EXPECT_EQ(ShutdownVote::Action::kProbe, vote.report(1, {0, 1, true}));
  EXPECT_EQ(ShutdownVote::Action::kNone, vote.answer(0, vote.round(), {1, 0, true}));
  EXPECT_EQ(ShutdownVote::Action::kNone, vote.answer(1, vote.round() - 1, {0, 1, true}));  // of another round
  EXPECT_EQ(ShutdownVote::Action::kFinish, vote.answer(1, vote.round(), {0, 1, true}));
}

}  // namespace
}  // namespace treadle::cluster
