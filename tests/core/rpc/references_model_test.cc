// All that can happen to a few references between three workers: every order in which what they do and the messages
// that follow from it can take place, with a death, a lost or a doubled deletion at any moment. The real References, no
// chance involved.
//
// What a node is like follows from what happened to it, in order, so two histories that are the same at each node have
// led to the same state: it is gone on from once.

#include <set>
#include <string>

#include "tests/core/rpc/reference_network.h"

namespace treadle::rpc::references_model_test {
namespace {

using simulated::Choose;
using simulated::Kind;
using simulated::Message;
using simulated::Network;
using simulated::Node;

// What one worker does, one after the other; each as soon as it can, or later.
struct Act {
  enum class What { kMake, kPass, kFetch, kCall, kGiveUp, kDrop, kDie } what;
  int other = -1;  // the owner, to whom, or whose function is given the reference
};
using Script = std::vector<std::vector<Act>>;  // by rank

struct Faults {
  int losses = 0, doubles = 0;  // of deletions and their acknowledgements
};

class ScriptedNetwork : public Network {
 public:
  ScriptedNetwork(Script script, Faults faults, Choose choose, std::set<std::string>& seen)
      : Network([](size_t) -> size_t { return 0; }, static_cast<int>(script.size()), false),
        script_(std::move(script)),
        faults_(faults),
        chooseStep_(std::move(choose)),
        seen_(seen),
        history_(script_.size()) {}

  // False when it came to where another run has been.
  bool play(const std::function<bool()>& onNewGround) {
    for (;;) {
      std::vector<std::function<void()>> steps = possible();
      if (steps.empty()) break;
      if (onNewGround() && !seen_.insert(fingerprint()).second) return false;
      steps[steps.size() == 1 ? 0 : chooseStep_(steps.size())]();
      checkThatHeldValuesLive();
      if (::testing::Test::HasFailure()) return true;
    }
    run(0);  // lets go of all and sees that nothing is left
    return true;
  }

 private:
  std::vector<std::function<void()>> possible() {
    std::vector<std::function<void()>> steps;
    for (int rank = 0; rank < size(); ++rank) {
      if (node(rank).dead) continue;
      if (canAct(rank)) steps.emplace_back([this, rank] { actNext(rank); });
      if (!node(rank).toMake.empty()) steps.emplace_back([this, rank] { note(rank, "make"), makeOne(rank); });
      if (!node(rank).toFetch.empty()) steps.emplace_back([this, rank] { note(rank, "fetch"), fetchOne(rank); });
      if (mayNoticeDeath(rank)) steps.emplace_back([this, rank] { note(rank, "death"), tellOfDeath(rank); });
    }
    for (auto& [key, queue] : channels_) addDeliveries(key, queue, steps);
    return steps;
  }

  void addDeliveries(std::tuple<int, int, bool> key, std::deque<Message>& queue,
                     std::vector<std::function<void()>>& steps) {
    auto [from, to, answer] = key;
    if (queue.empty() || node(to).dead) return;
    const std::string label = std::to_string(from) + (answer ? "a" : "r");
    steps.emplace_back([this, key, &queue, label] { note(std::get<1>(key), label), deliver(key, queue); });
    if (!mayBeLost(queue.front())) return;
    if (faults_.losses > 0)
      steps.emplace_back([this, &queue, to = to, label] {
        --faults_.losses;
        note(to, "lost" + label);
        queue.pop_front();
      });
    if (faults_.doubles > 0)
      steps.emplace_back([this, &queue, to = to, label] {
        --faults_.doubles;
        note(to, "doubled" + label);
        queue.push_back(queue.front());
      });
  }
  void deliver(std::tuple<int, int, bool> key, std::deque<Message>& queue) {
    Message message = queue.front();
    queue.pop_front();
    receive(std::get<0>(key), std::get<1>(key), message);
  }

  bool canAct(int rank) {
    if (script_[static_cast<size_t>(rank)].empty()) return false;
    Act::What what = script_[static_cast<size_t>(rank)].front().what;
    return what == Act::What::kMake || what == Act::What::kDie || what == Act::What::kGiveUp ||
           !node(rank).held.empty();
  }
  void actNext(int rank) {
    std::vector<Act>& left = script_[static_cast<size_t>(rank)];
    Act act = left.front();
    left.erase(left.begin());
    note(rank, "act");
    Node& me = node(rank);
    switch (act.what) {
      case Act::What::kMake: return make(rank, act.other);
      case Act::What::kFetch: return fetch(rank);
      case Act::What::kCall: return call(rank, act.other);
      case Act::What::kGiveUp: return giveUp(rank);
      case Act::What::kDrop: return me.held.pop_back();
      case Act::What::kDie: return die(rank);
      case Act::What::kPass: {
        if (me.knowsDead[static_cast<size_t>(act.other)]) return;
        ForkEntry entry = me.references->fork(me.held.back(), act.other);
        send(rank, act.other, {Kind::kPass, {}, entry});
      }
    }
  }
  bool mayNoticeDeath(int rank) {
    for (int other = 0; other < size(); ++other)
      if (node(other).dead && !node(rank).knowsDead[static_cast<size_t>(other)]) return true;
    return false;
  }

  void note(int rank, const std::string& what) { history_[static_cast<size_t>(rank)] += what + ","; }
  std::string fingerprint() const {
    std::string all;
    for (const std::string& one : history_) all += one + ";";
    return all;
  }

  Script script_;
  Faults faults_;
  const Choose chooseStep_;
  std::set<std::string>& seen_;
  std::vector<std::string> history_;  // by rank
};

// Plays the script in every order there is. The number of states that it came through.
size_t explore(const Script& script, Faults faults = {}) {
  std::vector<size_t> path, widths;  // what was chosen at each point, and of how many
  std::set<std::string> seen;
  do {
    size_t depth = 0;
    auto choose = [&](size_t below) {
      if (depth == path.size()) path.push_back(0), widths.push_back(below);
      return path[depth++];
    };
    ScriptedNetwork network(script, faults, choose, seen);
    network.play([&] { return depth == path.size(); });
    while (!path.empty() && path.back() + 1 == widths.back()) path.pop_back(), widths.pop_back();
    if (!path.empty()) ++path.back();
  } while (!path.empty() && !::testing::Test::HasFailure());
  return seen.size();
}

using What = Act::What;

constexpr size_t kFewActs = 5;

using Scripts = std::vector<std::pair<const char*, Script>>;

const Scripts& small() {
  static const Scripts all = {
      {"made, read and dropped", {{}, {{What::kMake, 0}, {What::kFetch}, {What::kDrop}}, {}}},
      {"passed on and dropped at once",
       {{}, {{What::kMake, 0}, {What::kPass, 2}, {What::kDrop}}, {{What::kFetch}, {What::kDrop}}}},
      {"passed on twice", {{}, {{What::kMake, 0}, {What::kPass, 2}, {What::kPass, 2}, {What::kDrop}}, {}}},
      {"passed home", {{{What::kDrop}}, {{What::kMake, 0}, {What::kPass, 0}, {What::kDrop}}, {}}},
      {"passed by the owner",
       {{{What::kPass, 2}, {What::kDrop}}, {{What::kMake, 0}, {What::kPass, 0}, {What::kDrop}}, {{What::kDrop}}}},
      {"given to a function of a third worker", {{}, {{What::kMake, 0}, {What::kCall, 2}, {What::kDrop}}, {}}},
      {"given to a function of its owner", {{}, {{What::kMake, 0}, {What::kCall, 0}, {What::kDrop}}, {}}},
      {"given to its owner, and the call given up",
       {{}, {{What::kMake, 0}, {What::kCall, 0}, {What::kDrop}, {What::kGiveUp}}, {}}},
      {"given to a function, and the call given up",
       {{}, {{What::kMake, 0}, {What::kCall, 2}, {What::kDrop}, {What::kGiveUp}}, {}}},
  };
  return all;
}

// With over ten messages.
const Scripts& larger() {
  static const Scripts all = {
      {"passed on and back",
       {{}, {{What::kMake, 0}, {What::kPass, 2}, {What::kDrop}}, {{What::kPass, 1}, {What::kDrop}}}},
      {"passed on and home",
       {{{What::kDrop}}, {{What::kMake, 0}, {What::kPass, 2}, {What::kDrop}}, {{What::kPass, 0}, {What::kDrop}}}},
  };
  return all;
}

void report(const std::string& what, size_t states) {
  std::printf("%8zu states: %s\n", states, what.c_str());
  EXPECT_GT(states, 1U) << "there is more than one order of even the fewest messages";
}

TEST(ReferencesModel, keepsValuesAsLongAsNeededInEveryOrder) {
  for (const Scripts* scripts : {&small(), &larger()})
    for (const auto& [name, script] : *scripts) report(name, explore(script));
}

TEST(ReferencesModel, bearsALostDeletionAnywhere) {
  for (const auto& [name, script] : small()) report(name, explore(script, {.losses = 1}));
}

TEST(ReferencesModel, bearsADoubledDeletionAnywhere) {
  for (const auto& [name, script] : small()) report(name, explore(script, {.doubles = 1}));
}

TEST(ReferencesModel, bearsADeathAtAnyMoment) {
  for (const auto& [name, script] : small())
    for (size_t rank = 0; rank < script.size(); ++rank) {
      // It dies between any two of its own acts; of messages, at any moment.
      for (size_t before = 0; before <= script[rank].size(); ++before) {
        Script dying = script;
        dying[rank].resize(before);
        dying[rank].push_back({What::kDie});
        report(std::string(name) + ", " + std::to_string(rank) + " dies after " + std::to_string(before),
               explore(dying));
      }
    }
}

// In the scripts with few acts: with more there are too many orders.
TEST(ReferencesModel, bearsADeathAndALostOrDoubledDeletion) {
  for (const auto& [name, script] : small())
    for (size_t rank = 0; rank < script.size(); ++rank) {
      Script dying = script;
      dying[rank].push_back({What::kDie});
      size_t acts = 0;
      for (const auto& each : dying) acts += each.size();
      if (acts > kFewActs) continue;
      report(std::string(name) + ", " + std::to_string(rank) + " dies",
             explore(dying, {.losses = 1}) + explore(dying, {.doubles = 1}));
    }
}

}  // namespace
}  // namespace treadle::rpc::references_model_test
