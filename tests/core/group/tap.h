#pragma once
// The messages that a worker gets from the other members of its groups, seen and held back on purpose. A tap stands
// between a worker's membership and its group service. A message that a tap holds counts as in flight: it arrives
// when the tap lets go, and never if that does not happen. Any thread may call anything but `connect`.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tests/support/gate.h"
#include "treadle/core/cluster/membership.h"
#include "treadle/core/group/messages.h"

namespace treadle::test {

class Tap final : public cluster::MessageHandler {
 public:
  // Whether the tap holds the message of the job's rank `from`. Called for each message of a group in the order of
  // arrival, with a lock held; the message comes without its data.
  using Rule = std::function<bool(int from, const group::Message&)>;

  // Before the first message.
  void connect(cluster::MessageHandler& receiver) { receiver_ = &receiver; }

  // How many groups have had messages.
  size_t groups() const {
    MutexLock lock(mutex_);
    return groups_.size();
  }
  // The number of the group whose first message was the `index`-th first message of any group.
  uint64_t groupAt(size_t index) const {
    MutexLock lock(mutex_);
    return groups_.at(index);
  }

  // Counts the messages of the group that have come, and those of them that the tap holds or held until it let go.
  Counter& seenOf(uint64_t group) {
    MutexLock lock(mutex_);
    return holdOf(group).seen;
  }
  Counter& heldOf(uint64_t group) {
    MutexLock lock(mutex_);
    return holdOf(group).held;
  }
  void setRule(uint64_t group, Rule rule) {
    MutexLock lock(mutex_);
    holdOf(group).rule = std::move(rule);
  }

  // Delivers the messages that it holds, in their order, and holds no more.
  void letGo() {
    {
      MutexLock lock(mutex_);
      for (auto& [group, hold] : holds_) hold->rule = {};
      delivering_ = true;  // what arrives meanwhile stays behind the older messages
    }
    while (std::optional<Held> next = take())
      receiver_->onMessage(next->from, next->connection, std::move(next->message));
  }
  // The messages that it holds never arrive. The rules stay.
  void drop() {
    std::deque<Held> dropped;  // their buffers end without the lock
    MutexLock lock(mutex_);
    dropped.swap(held_);
  }

  void onMessage(int from, const std::shared_ptr<link::Connection>& connection, link::Message message) override {
    const Result<group::Message> seen = group::parse({message.subject, message.payload, {}, {}});
    if (seen.ok()) {
      MutexLock lock(mutex_);
      Hold& hold = holdOf(seen->group);
      hold.seen.add();
      const bool holds = delivering_ || (hold.rule && hold.rule(from, *seen));
      if (holds) {
        held_.push_back({from, connection, std::move(message)});
        hold.held.add();
        return;
      }
    }
    receiver_->onMessage(from, connection, std::move(message));
  }
  void onLost(int rank, const Status& why) override { receiver_->onLost(rank, why); }

 private:
  struct Hold {
    Rule rule;
    Counter seen, held;
  };
  struct Held {
    int from;
    std::shared_ptr<link::Connection> connection;
    link::Message message;
  };

  Hold& holdOf(uint64_t group) TREADLE_REQUIRES(mutex_) {
    std::unique_ptr<Hold>& hold = holds_[group];
    if (!hold) {
      hold = std::make_unique<Hold>();
      groups_.push_back(group);
    }
    return *hold;
  }
  std::optional<Held> take() {
    MutexLock lock(mutex_);
    delivering_ = !held_.empty();
    if (!delivering_) return {};
    std::optional<Held> next = std::move(held_.front());
    held_.pop_front();
    return next;
  }

  cluster::MessageHandler* receiver_ = nullptr;
  mutable Mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Hold>> holds_ TREADLE_GUARDED_BY(mutex_);
  std::vector<uint64_t> groups_ TREADLE_GUARDED_BY(mutex_);
  std::deque<Held> held_ TREADLE_GUARDED_BY(mutex_);
  bool delivering_ TREADLE_GUARDED_BY(mutex_) = false;
};

}  // namespace treadle::test
