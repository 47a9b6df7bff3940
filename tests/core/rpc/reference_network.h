#pragma once
// Workers' references over a network of the test's: every node's References is the real one, messages of different
// sockets overtake each other, and nodes may die. What must hold: a value lives as long as anybody holds a reference to
// it, and when nobody does any more it is destroyed, and no table remembers it. A test's hook says what the links do to
// each message.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "tests/core/rpc/reference_node.h"

namespace treadle::rpc::simulated {

inline constexpr int kLong = 500;  // steps

// A number in [0, below): what happens next, by chance or one after the other.
using Choose = std::function<size_t(size_t below)>;

// What a link does to a message. Only what may be lost is dropped (Network::mayBeLost); a copy comes right behind.
enum class Fate { kDeliver, kDrop, kDouble, kHold };
using Hook = std::function<Fate(int from, int to, const Message&)>;

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

  static bool mayBeLost(const Message& message) {
    return message.kind == Kind::kNotice &&
           (message.notice == RefNotice::kForkDeleted || message.notice == RefNotice::kDeletionKnown);
  }
  void setHook(Hook hook) { hook_ = std::move(hook); }
  // What is held arrives, in its turn.
  void release() {
    for (auto& [key, channel] : channels_)
      for (Message& message : channel) message.held = false;
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
    hook_ = nullptr;
    release();
    // What is still to be done is done, in any order.
    for (bool busy = true; busy;) {
      busy = deliverOne();
      for (int rank = 0; rank < size(); ++rank) {
        node(rank).held.clear();
        busy = makeOne(rank) || fetchOne(rank) || tellOfDeath(rank) || busy;
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
    if (message.kind == Kind::kPass) passers_[message.entry.ref].insert(from);
    std::deque<Message>& channel = channels_[{from, to, answer}];
    if (hook_) return sendAs(hook_(from, to, message), channel, message);
    if (!lossy_ || !mayBeLost(message)) return channel.push_back(message);
    for (size_t copies = choose_(3); copies > 0; --copies)
      channel.insert(channel.begin() + static_cast<long>(choose_(channel.size() + 1)), message);
  }
  static void sendAs(Fate fate, std::deque<Message>& channel, const Message& message) {
    if (fate == Fate::kDrop) {
      EXPECT_TRUE(mayBeLost(message)) << "a link loses nothing else as long as it lives";
      return;
    }
    channel.push_back(message);
    channel.back().held = fate == Fate::kHold;
    if (fate == Fate::kDouble) channel.push_back(message);
  }

  void act(int rank) {
    Node& me = node(rank);
    if (me.dead) return;
    switch (choose_(11)) {
      case 0: return me.held.push_back(me.references->own(newValue({rank, 0}, true)));
      case 1: return make(rank, anyRank());
      case 2: return choose_(2) == 0 ? (void)makeOne(rank) : (void)fetchOne(rank);
      case 3:
      case 4: return pass(rank, anyRank());
      case 5: return drop(rank);
      case 6: return fetch(rank);
      case 7: return (void)tellOfDeath(rank);
      case 8: return call(rank, anyRank());
      case 9: return giveUp(rank);
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
    if (owner != rank) node(rank).made.push_back(handle->entry());
    if (node(rank).knowsDead[static_cast<size_t>(owner)]) endMakesOf(owner, rank);
    node(rank).held.push_back(std::move(handle));
  }
  bool makeOne(int rank, const Status& outcome = {}) {
    Node& me = node(rank);
    if (me.dead || me.toMake.empty()) return false;
    ForkEntry entry = me.toMake.front();
    me.toMake.erase(me.toMake.begin());
    if (outcome.ok()) {
      me.references->fulfil(entry.ref, newValue(entry.ref, false));
    } else {
      failed_.insert(entry.ref);
      me.references->fulfil(entry.ref, outcome);
    }
    send(rank, entry.fork.rank, {Kind::kMade, {}, entry, 0, outcome}, true);
    return true;
  }
  void pass(int rank, int to) {
    Node& me = node(rank);
    if (me.held.empty()) return;
    HandlePtr handle = me.held[choose_(me.held.size())];
    ForkEntry entry = me.references->fork(handle, to);
    if (rank == entry.owner) note(entry);
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
  // The last fetch is number `lastNumber_`; `outcomes_` has what became of it.
  void fetch(int rank) {
    Node& me = node(rank);
    if (me.held.empty()) return;
    HandlePtr handle = me.held[choose_(me.held.size())];
    if (me.knowsDead[static_cast<size_t>(handle->entry().owner)]) return;
    me.fetches[++lastNumber_] = handle;
    send(rank, handle->entry().owner, {Kind::kFetch, {}, handle->entry(), lastNumber_});
  }
  // Of a function that takes the value where the caller has a reference.
  void call(int rank, int to) {
    Node& me = node(rank);
    if (me.held.empty() || me.knowsDead[static_cast<size_t>(to)]) return;
    HandlePtr handle = me.held[choose_(me.held.size())];
    me.calls[++lastNumber_] = {to, handle};
    callers_[lastNumber_] = rank;
    send(rank, to, {Kind::kCall, {}, handle->entry(), lastNumber_});
  }
  // The oldest call ends at its caller, and the callee is told.
  void giveUp(int rank) {
    Node& me = node(rank);
    if (me.calls.empty()) return;
    auto oldest = me.calls.extract(me.calls.begin());
    givenUp_.insert(oldest.key());
    send(rank, oldest.mapped().to, {Kind::kCancel, {}, oldest.mapped().input->entry(), oldest.key()});
  }

  void die(int rank) {
    Node& me = node(rank);
    me.dead = true;
    me.held.clear();
    me.fetches.clear();
    me.calls.clear();
    me.toFetch.clear();
    me.serving.clear();
    me.made.clear();
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
      me.references->onLost(other, peerLost(std::to_string(other), "it is dead"));
      endMakesOf(other, rank);
      endWorkFor(other, rank);
      std::erase_if(me.calls, [&](const auto& one) { return one.second.to == other; });
      endFetchesFrom(other, rank);
      return true;
    }
    return false;
  }

  bool deliverOne() {
    std::vector<std::tuple<int, int, bool>> full;
    for (const auto& [key, queue] : channels_)
      if (!queue.empty() && !queue.front().held && !node(std::get<1>(key)).dead) full.push_back(key);
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
      case Kind::kNotice:
        me.references->onNotice(from, message.notice, message.entry).ignore();
        return message.notice == RefNotice::kForkAdded ? note(message.entry) : void();
      case Kind::kPass:
        for (HandlePtr& handle : me.references->adopt(from, {message.entry})) me.held.push_back(std::move(handle));
        return;
      case Kind::kMake: me.references->adoptRequested(from, message.entry); return me.toMake.push_back(message.entry);
      case Kind::kMade:
        std::erase_if(me.made, [&](const ForkEntry& one) { return one.fork == message.entry.fork; });
        return me.references->confirm(message.entry, message.outcome);
      case Kind::kFetch: return awaitValue(from, at, message, Kind::kFetched);
      case Kind::kFetched: return onFetched(at, message.number, message.outcome);
      case Kind::kCall: return startCall(from, at, message);
      case Kind::kCalled: return onCalled(at, message);
      case Kind::kCancel: return cancel(from, at, message);
    }
  }

  // A callee that does not own the value fetches it, by the caller's reference, when it comes to it (`fetchOne`).
  void startCall(int from, int at, const Message& message) {
    if (message.entry.owner == at) return awaitValue(from, at, message, Kind::kCalled);
    node(at).toFetch.push_back({from, message.number, message.entry});
  }
  bool fetchOne(int rank) {
    Node& me = node(rank);
    if (me.dead || me.toFetch.empty()) return false;
    Serving call = me.toFetch.front();
    me.toFetch.erase(me.toFetch.begin());
    const int owner = call.input.owner;
    if (me.knowsDead[static_cast<size_t>(owner)]) return answer(rank, call, peerLost("dead", "it is dead")), true;
    me.fetches[++lastNumber_] = me.references->borrow(call.input.ref, owner);
    me.serving[lastNumber_] = call;
    callFor_[lastNumber_] = call.call;
    send(rank, owner, {Kind::kFetch, {}, call.input, lastNumber_});
    return true;
  }
  void answer(int rank, const Serving& call, const Status& outcome) {
    send(rank, call.caller, {Kind::kCalled, {}, call.input, call.call, outcome}, true);
  }
  // Nobody waits any more for one that was cancelled.
  void onFetched(int at, size_t number, const Status& outcome) {
    Node& me = node(at);
    if (me.fetches.erase(number) == 0) return;
    auto serving = me.serving.extract(number);
    if (!serving) return (void)outcomes_.emplace(number, outcome);
    answer(at, serving.mapped(), outcome);
  }
  void onCalled(int at, const Message& message) {
    node(at).calls.erase(message.number);
    outcomes_.emplace(message.number, message.outcome);
    const bool anyDead = std::any_of(nodes_.begin(), nodes_.end(), [](const Node& each) { return each.dead; });
    const bool mayFail = anyDead || failed_.contains(message.entry.ref) || mayBeUnheld(message.number);
    EXPECT_TRUE(message.outcome.ok() || mayFail) << message.outcome.toString();
  }
  // What waits here for a value, and a call whose value is to be fetched or is being fetched, which the owner is told.
  void cancel(int from, int at, const Message& message) {
    Node& me = node(at);
    const Status why = cancelled("it was given up");
    for (size_t i = 0; i < me.asked.size(); ++i) {
      if (me.asked[i].from != from || me.asked[i].asked != message.number) continue;
      const Asked one = me.asked[i];
      me.asked.erase(me.asked.begin() + static_cast<long>(i));
      me.references->stopWaiting(one.ref, one.number);
      send(at, from, {one.answer, {}, message.entry, message.number, why}, true);
      break;
    }
    endCalls(at, [&](const Serving& call) { return call.caller == from && call.call == message.number; }, why);
  }
  template <class Which>
  void endCalls(int at, Which which, const Status& why) {
    Node& me = node(at);
    std::vector<Serving> ended;
    for (const Serving& call : me.toFetch)
      if (which(call)) ended.push_back(call);
    std::erase_if(me.toFetch, which);
    for (auto next = me.serving.begin(); next != me.serving.end();) {
      auto [fetch, call] = *next++;
      if (!which(call)) continue;
      ended.push_back(call);
      me.serving.erase(fetch);
      me.fetches.erase(fetch);
      send(at, call.input.owner, {Kind::kCancel, {}, call.input, fetch});
    }
    for (const Serving& call : ended) answer(at, call, why);
  }

  void awaitValue(int from, int at, const Message& message, Kind answer) {
    uint64_t number =
        node(at).references->whenReady(message.entry.ref, [this, at, from, message, answer](Result<OwnedValue> value) {
          // The asker, or its caller, holds a reference until it has the answer.
          const bool mayFail =
              mayBeGone(message.entry) || mayBeUnheld(message.number) || node(from).dead || node(at).dead || over_;
          EXPECT_TRUE(value.ok() || mayFail) << value.status().toString();
          send(at, from, {answer, {}, message.entry, message.number, value.status()}, true);
        });
    if (number != 0) node(at).asked.push_back({from, message.number, answer, message.entry.ref, number});
  }
  // Whoever made this call, or the one that this fetch is for, keeps its reference no more.
  bool mayBeUnheld(size_t number) const {
    auto fetched = callFor_.find(number);
    const size_t call = fetched == callFor_.end() ? number : fetched->second;
    auto caller = callers_.find(call);
    return givenUp_.contains(call) || (caller != callers_.end() && nodes_[static_cast<size_t>(caller->second)].dead);
  }
  // The answers of the dead do not come any more.
  void endMakesOf(int dead, int at) {
    std::erase_if(node(at).made, [&](const ForkEntry& one) {
      if (one.owner == dead) node(at).references->confirm(one, peerLost("dead", "it is dead"));
      return one.owner == dead;
    });
  }
  // What the dead asked for nobody needs any more.
  void endWorkFor(int dead, int at) {
    for (const Asked& one : node(at).asked)
      if (one.from == dead) node(at).references->stopWaiting(one.ref, one.number);
    endCalls(at, [dead](const Serving& call) { return call.caller == dead; }, peerLost("dead", "it is dead"));
  }
  void endFetchesFrom(int dead, int at) {
    std::vector<size_t> ended;
    for (const auto& [number, handle] : node(at).fetches)
      if (handle->entry().owner == dead) ended.push_back(number);
    for (size_t number : ended) onFetched(at, number, peerLost("dead", "it is dead"));
  }

  void checkThatHeldValuesLive() {
    for (Node& each : nodes_) {
      std::vector<HandlePtr> kept = each.held;
      for (const auto& [number, calling] : each.calls) kept.push_back(calling.input);
      for (const HandlePtr& handle : kept) {
        auto value = values_.find(handle->entry().ref);
        bool ownerLives = !node(handle->entry().owner).dead;
        if (value == values_.end() || !ownerLives || mayBeGone(handle->entry())) continue;
        EXPECT_FALSE(value->second->gone) << "destroyed too early";
      }
    }
  }
  // The owner knows of this fork while the value is there: nobody else's death takes it from its holder.
  void note(const ForkEntry& entry) {
    auto value = values_.find(entry.ref);
    if (value != values_.end() && !value->second->gone) noted_.insert(entry.fork);
  }
  // The death of who asked for a value, or passed a reference to it on, may take it from those who got that and of whom
  // the owner has not heard, and from nobody else (scenario 5 of docs/protocol/references.md).
  bool mayBeGone(const ForkEntry& held) const {
    if (failed_.contains(held.ref)) return true;
    if (noted_.contains(held.fork)) return false;
    const auto dead = [this](int rank) { return nodes_[static_cast<size_t>(rank)].dead; };
    auto passers = passers_.find(held.ref);
    return dead(held.ref.rank) ||
           (passers != passers_.end() && std::any_of(passers->second.begin(), passers->second.end(), dead));
  }
  void checkThatNothingIsLeft() {
    for (int rank = 0; rank < size(); ++rank) {
      if (node(rank).dead) continue;
      EXPECT_TRUE(node(rank).fetches.empty()) << "a fetch was never answered at " << rank;
      EXPECT_TRUE(node(rank).calls.empty()) << "a call was never answered at " << rank;
      EXPECT_TRUE(node(rank).serving.empty() && node(rank).toFetch.empty()) << "a call waits for its value at " << rank;
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
  std::map<RefId, std::set<int>> passers_;  // who has passed references to it on
  std::set<ForkId> noted_;
  std::set<RefId> failed_;
  size_t lastNumber_ = 0;
  std::map<size_t, int> callers_;     // of calls
  std::set<size_t> givenUp_;          // likewise
  std::map<size_t, size_t> callFor_;  // of a fetch: the call that it is for
  std::map<size_t, Status> outcomes_;
  Hook hook_;
};

}  // namespace treadle::rpc::simulated
