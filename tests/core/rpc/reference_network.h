#pragma once
// Workers' references over a network of the test's: every node's References is the real one, messages of different
// sockets overtake each other, and nodes may die. What must hold: a value lives as long as anybody holds a reference to
// it, and when nobody does any more it is destroyed, and no table remembers it.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "treadle/core/rpc/references.h"

namespace treadle::rpc::test {

inline constexpr int kLong = 500;  // steps

// A number in [0, below): what happens next, by chance or one after the other.
using Choose = std::function<size_t(size_t below)>;

enum class Kind { kNotice, kPass, kMake, kMade, kFetch, kFetched };

struct Message {
  Kind kind;
  RefNotice notice = RefNotice::kForkAdded;
  ForkEntry entry;
  size_t fetch = 0;
};

// What became of a value.
struct Value {
  bool made = false, gone = false;
};

// A fetch that waits at a node for the value, and whose it is.
struct Asked {
  int from;
  RefId ref;
  uint64_t number;
};

struct Node {
  std::shared_ptr<References> references;
  std::vector<HandlePtr> held;
  std::vector<ForkEntry> toMake;        // requests that run here
  std::map<size_t, HandlePtr> fetches;  // and the reference that each is about
  std::vector<Asked> asked;
  bool dead = false;
  std::vector<bool> knowsDead;
};

class Network {
 public:
  // `lossy`: deletions and their acknowledgements are lost, doubled and overtake others.
  Network(Choose choose, int size, bool deaths, bool lossy = false)
      : choose_(std::move(choose)), deaths_(deaths), lossy_(lossy), nodes_(static_cast<size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) {
      node(rank).knowsDead.resize(nodes_.size());
      node(rank).references =
          std::make_shared<References>(rank, [this, rank](int to, RefNotice notice, const ForkEntry& entry) {
            send(rank, to, {Kind::kNotice, notice, entry});
          });
    }
  }
  ~Network() {
    over_ = true;
    for (Node& each : nodes_) each.references->clear(cancelled("the test is over"));
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      if (choose_(2) == 0) {
        act(anyRank());
      } else {
        deliverOne();
      }
      if (steps < kLong || i % kLong == 0) checkThatHeldValuesLive();  // it looks at all that is held
    }
    for (Node& each : nodes_) each.held.clear();
    // What is still to be done is done, in any order.
    for (bool busy = true; busy;) {
      busy = deliverOne();
      for (int rank = 0; rank < size(); ++rank) {
        node(rank).held.clear();
        busy = makeOne(rank) || tellOfDeath(rank) || busy;
      }
      if (!busy) busy = resendAll();
    }
    checkThatNothingIsLeft();
  }
  bool resendAll() {
    bool left = false;
    for (Node& each : nodes_) left = (!each.dead && each.references->resendDeletions()) || left;
    return left;
  }

 protected:
  int size() const { return static_cast<int>(nodes_.size()); }
  Node& node(int rank) { return nodes_[static_cast<size_t>(rank)]; }
  int anyRank() { return static_cast<int>(choose_(nodes_.size())); }

  // Requests and notices go on the socket that the sender dialed, answers on the one that the receiver dialed.
  void send(int from, int to, const Message& message, bool answer = false) {
    if (node(from).dead || node(from).knowsDead[static_cast<size_t>(to)]) return;
    std::deque<Message>& channel = channels_[{from, to, answer}];
    if (!lossy_ || !mayBeLost(message)) return channel.push_back(message);
    for (size_t copies = choose_(3); copies > 0; --copies)
      channel.insert(channel.begin() + static_cast<long>(choose_(channel.size() + 1)), message);
  }
  static bool mayBeLost(const Message& message) {
    return message.kind == Kind::kNotice &&
           (message.notice == RefNotice::kForkDeleted || message.notice == RefNotice::kDeletionKnown);
  }

  void act(int rank) {
    Node& me = node(rank);
    if (me.dead) return;
    switch (choose_(9)) {
      case 0: return me.held.push_back(me.references->own(newValue({rank, 0}, true)));
      case 1: return make(rank, anyRank());
      case 2: return (void)makeOne(rank);
      case 3:
      case 4: return pass(rank, anyRank());
      case 5: return drop(rank);
      case 6: return fetch(rank);
      case 7: return (void)tellOfDeath(rank);
      default:
        if (lossy_) (void)me.references->resendDeletions();
        if (deaths_ && choose_(40) == 0) die(rank);
    }
  }

  OwnedValue newValue(const RefId& ref, bool own) {
    auto state = std::make_shared<Value>(Value{true, false});
    std::shared_ptr<void> value(state.get(), [state](void*) { state->gone = true; });
    if (!own) values_[ref] = state;
    made_.push_back(state);
    return {value, &typeid(int), nullptr};
  }

  void make(int rank, int owner) {
    HandlePtr handle = node(rank).references->expect(owner);
    send(rank, owner, {Kind::kMake, {}, handle->entry()});
    if (node(rank).knowsDead[static_cast<size_t>(owner)])
      node(rank).references->confirm(handle->entry(), peerLost("dead", "it is dead"));
    node(rank).held.push_back(std::move(handle));
  }
  bool makeOne(int rank) {
    Node& me = node(rank);
    if (me.dead || me.toMake.empty()) return false;
    ForkEntry entry = me.toMake.front();
    me.toMake.erase(me.toMake.begin());
    me.references->fulfil(entry.ref, newValue(entry.ref, false));
    send(rank, entry.fork.rank, {Kind::kMade, {}, entry}, true);
    return true;
  }
  void pass(int rank, int to) {
    Node& me = node(rank);
    if (me.held.empty()) return;
    HandlePtr handle = me.held[choose_(me.held.size())];
    ForkEntry entry = me.references->fork(handle, to);
    bool notSent = choose_(10) == 0 || me.knowsDead[static_cast<size_t>(to)];
    if (notSent) return me.references->unfork({entry});
    send(rank, to, {Kind::kPass, {}, entry}, choose_(2) == 0);
  }
  void drop(int rank) {
    Node& me = node(rank);
    if (me.held.empty()) return;
    std::swap(me.held[choose_(me.held.size())], me.held.back());
    HandlePtr last = std::move(me.held.back());
    me.held.pop_back();
  }
  void fetch(int rank) {
    Node& me = node(rank);
    if (me.held.empty()) return;
    HandlePtr handle = me.held[choose_(me.held.size())];
    if (me.knowsDead[static_cast<size_t>(handle->entry().owner)]) return;
    me.fetches[++lastFetch_] = handle;
    send(rank, handle->entry().owner, {Kind::kFetch, {}, handle->entry(), lastFetch_});
  }

  void die(int rank) {
    Node& me = node(rank);
    me.dead = true;
    me.held.clear();
    me.fetches.clear();
    me.references->clear(cancelled("dead"));
  }
  // Lets a node notice a death. Nothing comes from the dead after that, and nothing goes to it.
  bool tellOfDeath(int rank) {
    Node& me = node(rank);
    if (me.dead) return false;
    for (int other = 0; other < size(); ++other) {
      if (!node(other).dead || me.knowsDead[static_cast<size_t>(other)]) continue;
      me.knowsDead[static_cast<size_t>(other)] = true;
      for (bool answer : {false, true}) {
        channels_[{other, rank, answer}].clear();
        channels_[{rank, other, answer}].clear();
      }
      stopFetchesOf(other, me);
      me.references->onLost(other, peerLost("dead", "it is dead"));
      std::erase_if(me.fetches, [&](const auto& one) { return one.second->entry().owner == other; });
      return true;
    }
    return false;
  }

  bool deliverOne() {
    std::vector<std::tuple<int, int, bool>> full;
    for (const auto& [key, queue] : channels_)
      if (!queue.empty() && !node(std::get<1>(key)).dead) full.push_back(key);
    if (full.empty()) return false;
    auto key = full[choose_(full.size())];
    Message message = channels_[key].front();
    channels_[key].pop_front();
    receive(std::get<0>(key), std::get<1>(key), message);
    return true;
  }

  void receive(int from, int at, const Message& message) {
    Node& me = node(at);
    switch (message.kind) {
      case Kind::kNotice: return me.references->onNotice(from, message.notice, message.entry);
      case Kind::kPass:
        for (HandlePtr& handle : me.references->adopt(from, {message.entry})) me.held.push_back(std::move(handle));
        return;
      case Kind::kMake: me.references->adoptRequested(from, message.entry); return me.toMake.push_back(message.entry);
      case Kind::kMade: return me.references->confirm(message.entry, {});
      case Kind::kFetch: return startFetch(from, at, message);
      case Kind::kFetched: me.fetches.erase(message.fetch);
    }
  }

  void startFetch(int from, int at, const Message& message) {
    uint64_t number =
        node(at).references->whenReady(message.entry.ref, [this, at, from, message](Result<OwnedValue> value) {
          // The asker holds a reference until it has the answer: only a death may have taken the value.
          EXPECT_TRUE(value.ok() || anyDead() || over_) << value.status().toString();
          send(at, from, {Kind::kFetched, {}, message.entry, message.fetch}, true);
        });
    if (number != 0) node(at).asked.push_back({from, message.entry.ref, number});
  }
  void stopFetchesOf(int dead, Node& at) {
    for (const Asked& one : at.asked)
      if (one.from == dead) at.references->stopWaiting(one.ref, one.number);
  }

  void checkThatHeldValuesLive() {
    for (Node& each : nodes_)
      for (const HandlePtr& handle : each.held) {
        auto value = values_.find(handle->entry().ref);
        bool ownerLives = !node(handle->entry().owner).dead;
        if (value == values_.end() || !ownerLives || anyDead()) continue;
        EXPECT_FALSE(value->second->gone) << "destroyed too early";
      }
  }
  bool anyDead() const {
    return std::any_of(nodes_.begin(), nodes_.end(), [](const Node& each) { return each.dead; });
  }
  void checkThatNothingIsLeft() {
    for (int rank = 0; rank < size(); ++rank) {
      if (node(rank).dead) continue;
      EXPECT_TRUE(node(rank).fetches.empty()) << "a fetch was never answered at " << rank;
      References::Counts counts = node(rank).references->counts();
      EXPECT_EQ(0U, counts.owned) << "values at " << rank;
      EXPECT_EQ(0U, counts.forks) << "forks of values at " << rank;
      EXPECT_EQ(0U, counts.held) << "references held at " << rank;
      EXPECT_EQ(0U, counts.pending) << "references not settled at " << rank;
    }
    for (const auto& value : made_) EXPECT_TRUE(value->gone) << "a value was never destroyed";
  }

  const Choose choose_;
  const bool deaths_, lossy_;
  bool over_ = false;
  std::vector<Node> nodes_;
  std::map<std::tuple<int, int, bool>, std::deque<Message>> channels_;
  std::map<RefId, std::shared_ptr<Value>> values_;
  std::vector<std::shared_ptr<Value>> made_;
  size_t lastFetch_ = 0;
};

}  // namespace treadle::rpc::test
