// The vote over random histories of a job: workers call each other, calls are nested, given up and answered late,
// messages of different sockets overtake each other, workers enter their shutdown when they like, and die. The vote
// must never end while a request is under way, and must always end.
#include "treadle/core/cluster/shutdown_vote.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "tests/support/seeds.h"

namespace treadle::cluster::shutdown_vote_test {
namespace {

enum class Kind { kRequest, kAnswer, kIdle, kProbe, kProbeAnswer, kFinish, kLost };

struct Message {
  Kind kind;
  uint64_t round = 0;
  WorkCount count = {};
};

// What a worker counts of one other.
struct With {
  uint64_t sent = 0, handled = 0;
  int pending = 0;  // answers that it awaits
  int givenUp = 0;  // answers that will come and that nobody awaits
};

struct Node {
  std::map<int, With> with;
  std::deque<int> callers;  // of the handlers that it runs
  std::set<int> lost;
  bool inShutdown = false, finished = false, dead = false;
};

class Job {
 public:
  Job(test::Random& random, int size, int deaths)
      : random_(random), nodes_(static_cast<size_t>(size)), deaths_(std::min(deaths, size - 1)) {
    for (int rank = 0; rank < size; ++rank) vote_.add(rank);
  }

  // Runs until nothing can happen any more.
  void run() {
    while (step()) {}
    for (const Node& node : nodes_) EXPECT_TRUE(node.finished || node.dead) << "the vote never ended";
  }

 private:
  int size() const { return static_cast<int>(nodes_.size()); }
  Node& node(int rank) { return nodes_[static_cast<size_t>(rank)]; }
  bool chance(int inHundred) { return test::pick(random_, 100) < static_cast<uint64_t>(inHundred); }
  int anyRank() { return static_cast<int>(test::pick(random_, nodes_.size())); }

  // What a worker sends on the socket that it dialed, and what it answers on the one that the other dialed, are each in
  // order; nothing else is. The dead get nothing, and nobody sends to whom it has lost.
  void send(int from, int to, const Message& message) {
    if (node(to).dead || node(from).lost.contains(to)) return;
    channels_[{from, to, message.kind == Kind::kAnswer}].push_back(message);
  }

  bool step() {
    if (deaths_ > 0 && chance(2)) die(1 + static_cast<int>(test::pick(random_, nodes_.size() - 1)));
    if (chance(40) && act(anyRank())) return true;
    std::vector<std::tuple<int, int, bool>> full;
    for (const auto& [key, queue] : channels_)
      if (!queue.empty()) full.push_back(key);
    if (!full.empty()) return deliver(full[test::pick(random_, full.size())]), true;
    for (int rank = 0; rank < size(); ++rank)
      if (act(rank)) return true;
    return false;
  }

  // Never rank 0, which counts. What it had sent may still come, up to the moment at which its loss is noticed.
  void die(int rank) {
    if (node(rank).dead || node(rank).finished) return;
    --deaths_;
    node(rank).dead = true;
    for (int other = 0; other < size(); ++other) {
      channels_.erase({other, rank, false});
      channels_.erase({other, rank, true});
      if (!node(other).dead) channels_[{rank, other, false}].push_back({Kind::kLost});
    }
  }

  // Something that a worker does by itself; false when it has nothing to do.
  bool act(int rank) {
    Node& me = node(rank);
    if (me.dead) return false;
    const int other = anyRank();
    bool mayCall = budget_ > 0 && (!me.inShutdown || !me.callers.empty()) && !me.lost.contains(other);
    if (mayCall && chance(50)) {
      --budget_;
      ++me.with[other].sent;
      ++me.with[other].pending;
      send(rank, other, {Kind::kRequest});
    } else if (me.with[other].pending > 0 && chance(10)) {
      --me.with[other].pending;  // its time limit passes
      ++me.with[other].givenUp;
      reportIfIdle(rank);
    } else if (!me.callers.empty()) {
      int caller = me.callers.front();
      me.callers.pop_front();
      ++me.with[caller].handled;
      send(rank, caller, {Kind::kAnswer});
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
    WorkCount count{0, 0, me.inShutdown && me.callers.empty(), me.lost.size()};
    for (const auto& [other, with] : me.with) {
      if (me.lost.contains(other)) continue;
      count.sent += with.sent;
      count.handled += with.handled;
      count.idle = count.idle && with.pending == 0;
    }
    return count;
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
      case Kind::kRequest: me.callers.push_back(from); break;
      case Kind::kAnswer: onAnswer(to, me.with[from]); break;
      case Kind::kIdle: react(vote_.report(from, message.count)); break;
      case Kind::kProbe: send(to, 0, {Kind::kProbeAnswer, message.round, countOf(to)}); break;
      case Kind::kProbeAnswer: react(vote_.answer(from, message.round, message.count)); break;
      case Kind::kFinish: me.finished = true; break;
      case Kind::kLost:
        channels_.erase({from, to, true});  // what of it was not read yet
        me.lost.insert(from);
        if (to == 0) vote_.remove(from);
        reportIfIdle(to);
        break;
    }
  }

  void onAnswer(int rank, With& with) {
    if (with.givenUp > 0 && (with.pending == 0 || chance(50))) {
      --with.givenUp;
    } else {
      --with.pending;
      reportIfIdle(rank);
    }
  }

  void react(ShutdownVote::Action action) {
    if (action == ShutdownVote::Action::kFinish) expectNothingUnderWay();
    if (action == ShutdownVote::Action::kNone) return;
    Kind kind = action == ShutdownVote::Action::kProbe ? Kind::kProbe : Kind::kFinish;
    for (int rank = 0; rank < size(); ++rank) send(0, rank, {kind, vote_.round()});
  }

  // Of those that live and have not lost each other.
  void expectNothingUnderWay() {
    for (int rank = 0; rank < size(); ++rank) {
      if (node(rank).dead) continue;
      EXPECT_TRUE(node(rank).inShutdown) << "rank " << rank;
      EXPECT_TRUE(node(rank).callers.empty()) << "rank " << rank;
      for (const auto& [other, with] : node(rank).with)
        EXPECT_TRUE(with.pending == 0 || node(other).dead) << "rank " << rank << " awaits rank " << other;
    }
    for (const auto& [key, queue] : channels_)
      for (const Message& message : queue)
        EXPECT_TRUE(message.kind != Kind::kRequest || node(std::get<0>(key)).dead) << "a request is in flight";
  }

  test::Random& random_;
  std::vector<Node> nodes_;
  std::map<std::tuple<int, int, bool>, std::deque<Message>> channels_;
  ShutdownVote vote_;
  int budget_ = 30, deaths_;
};

TEST(ShutdownVote, endsAlwaysAndNeverWhileARequestIsUnderWay) {
  test::forSeeds(5'000,
                 [](test::Random& random) { Job(random, 1 + static_cast<int>(test::pick(random, 4)), 0).run(); });
}

// In an open job those that are left end it.
TEST(ShutdownVote, endsAlsoWhenWorkersDie) {
  test::forSeeds(5'000, [](test::Random& random) {
    Job(random, 2 + static_cast<int>(test::pick(random, 3)), 1 + static_cast<int>(test::pick(random, 2))).run();
  });
}

TEST(ShutdownVote, namesWhoHasNotReported) {
  ShutdownVote vote;
  for (int rank : {0, 1, 2}) vote.add(rank);
  EXPECT_EQ((std::vector<int>{0, 1, 2}), vote.waitingFor());
  EXPECT_EQ(ShutdownVote::Action::kNone, vote.report(1, {0, 0, true}));
  EXPECT_EQ((std::vector<int>{0, 2}), vote.waitingFor());
}

TEST(ShutdownVote, asksAgainBeforeItBelieves) {
  ShutdownVote vote;
  for (int rank : {0, 1}) vote.add(rank);
  EXPECT_EQ(ShutdownVote::Action::kNone, vote.report(0, {1, 0, true}));
  EXPECT_EQ(ShutdownVote::Action::kProbe, vote.report(1, {0, 1, true}));
  EXPECT_EQ(ShutdownVote::Action::kNone, vote.answer(0, vote.round(), {1, 0, true}));
  EXPECT_EQ(ShutdownVote::Action::kNone, vote.answer(1, vote.round() - 1, {0, 1, true}));  // of another round
  EXPECT_EQ(ShutdownVote::Action::kFinish, vote.answer(1, vote.round(), {0, 1, true}));
}

}  // namespace
}  // namespace treadle::cluster::shutdown_vote_test
