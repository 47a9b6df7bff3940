// Sparse all-reduces without their data: blocks of any sizes, message by message, in random orders. Between two members
// messages keep their order. A member that waits forever is a failed test.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "tests/support/seeds.h"
#include "treadle/core/group/progress.h"

namespace treadle::group::growing_test {
namespace {

constexpr uint64_t kSmallBytes = 10, kChunkBytes = 4;

struct Message {
  enum class Kind { kStart, kResult, kChunk, kAck };
  Kind kind;
  uint64_t number;  // bytes of the block; position of the chunk; positions that were taken
};

// The plan of one member as it grows, and the rules of SparseOperation for it.
class Member {
 public:
  using Send = std::function<void(int peer, Message message)>;

  // `shares`: bytes to each member.
  Member(int self, std::vector<uint64_t> shares, uint64_t sumBytes, uint64_t window, Send send)
      : shares_(std::move(shares)),
        sumBytes_(sumBytes),
        plan_(planOf(self, shares_, window)),
        send_(std::move(send)),
        missingShares_(plan_.channels.size()),
        missingSums_(plan_.channels.size()),
        heard_(shares_.size()) {}

  bool begun() const { return begun_; }
  bool permitted() const { return permitted_; }
  bool done() const { return combined_ && missingSums_ == 0 && progress_.done(); }

  void begin() {
    begun_ = true;
    for (const Channel& channel : plan_.channels)
      send_(channel.peer, {Message::Kind::kStart, shares_[static_cast<size_t>(channel.peer)]});
    advance();
  }
  void permit() {
    permitted_ = true;
    advance();
  }
  void receive(int peer, const Message& message) {
    const size_t channel = *plan_.channelTo(peer);
    switch (message.kind) {
      case Message::Kind::kStart:
        heard_[static_cast<size_t>(peer)] = true;
        expect(peer, Area::kScratch, message.number);
        break;
      case Message::Kind::kResult:
        ASSERT_TRUE(begun_) << "its sender has the share of this member";
        expect(peer, Area::kOutput, message.number);
        break;
      case Message::Kind::kChunk: take(channel, message.number); break;
      case Message::Kind::kAck: ASSERT_TRUE(progress_.acknowledged(channel, message.number)); break;
    }
    advance();
  }

 private:
  static Plan planOf(int self, const std::vector<uint64_t>& shares, uint64_t window) {
    Plan plan;
    for (int peer = 0; peer < static_cast<int>(shares.size()); ++peer) {
      if (peer == self) continue;
      plan.channels.emplace_back().peer = peer;
      const uint64_t bytes = shares[static_cast<size_t>(peer)];
      if (bytes > kSmallBytes) plan.send(peer, {Area::kInput, {0, bytes}});
    }
    plan.setWindow(window);
    return plan;
  }

  void expect(int peer, Area area, uint64_t bytes) {
    if (bytes <= kSmallBytes) return complete(area);
    plan_.receive(peer, {area, {0, bytes}});
    progress_.grow(*plan_.channelTo(peer));
  }
  void take(size_t channel, uint64_t position) {
    const auto chunk = progress_.arrive(channel, position);
    ASSERT_TRUE(chunk && begun_);
    ASSERT_TRUE(progress_.take(channel));
    const Place& to = plan_.channels[channel].receives[chunk->transfer].to;
    if (chunk->end == to.range.end) complete(to.area);
  }
  void complete(Area area) { --(area == Area::kOutput ? missingSums_ : missingShares_); }

  void advance() {
    if (!begun_) return;
    for (size_t channel = 0; channel < plan_.channels.size(); ++channel)
      if (const auto taken = progress_.acknowledge(channel))
        send_(plan_.channels[channel].peer, {Message::Kind::kAck, *taken});
    if (missingShares_ == 0 && !combined_) sendResults();
    for (size_t channel = 0; channel < plan_.channels.size(); ++channel) {
      const int peer = plan_.channels[channel].peer;
      while (permitted_ && heard_[static_cast<size_t>(peer)] && progress_.send(channel))
        send_(peer, {Message::Kind::kChunk, progress_.sent(channel) - 1});
    }
  }
  void sendResults() {
    combined_ = true;
    for (size_t channel = 0; channel < plan_.channels.size(); ++channel) {
      const int peer = plan_.channels[channel].peer;
      send_(peer, {Message::Kind::kResult, sumBytes_});
      if (sumBytes_ <= kSmallBytes) continue;
      plan_.send(peer, {Area::kOutput, {0, sumBytes_}});
      progress_.grow(channel);
    }
  }

  const std::vector<uint64_t> shares_;
  const uint64_t sumBytes_;
  Plan plan_;
  Progress progress_{plan_, kChunkBytes};
  const Send send_;
  size_t missingShares_, missingSums_;
  std::vector<bool> heard_;  // by rank: its start
  bool begun_ = false, permitted_ = false, combined_ = false;
};

// All members of one operation.
class Operation {
 public:
  Operation(int size, uint64_t window, test::Random& random) : random_(random) {
    for (int self = 0; self < size; ++self) {
      std::vector<uint64_t> shares;
      for (int peer = 0; peer < size; ++peer) shares.push_back(anySize());
      members_.push_back(std::make_unique<Member>(
          self, std::move(shares), anySize(), window,
          [this, self](int peer, Message message) { wires_[{self, peer}].push_back(message); }));
    }
  }

  // Until nothing can happen any more.
  void run() {
    for (;;) {
      std::vector<std::function<void()>> possible;
      for (const auto& owner : members_) {
        Member* const member = owner.get();
        if (!member->begun()) possible.emplace_back([member] { member->begin(); });
        if (member->begun() && !member->permitted()) possible.emplace_back([member] { member->permit(); });
      }
      for (auto& entry : wires_)
        if (!entry.second.empty()) possible.emplace_back([this, wire = &entry] { pass(*wire); });
      if (possible.empty()) return;
      possible[test::pick(random_, possible.size())]();
    }
  }
  bool done() const {
    return std::all_of(members_.begin(), members_.end(), [](const auto& member) { return member->done(); });
  }

 private:
  using Wires = std::map<std::pair<int, int>, std::deque<Message>>;  // from, to

  // Nothing, small, and up to ten chunks.
  uint64_t anySize() {
    const uint64_t most = test::pick(random_, 3) == 0 ? kSmallBytes : 40;
    return test::pick(random_, most + 1);
  }
  void pass(Wires::value_type& wire) {
    const Message message = wire.second.front();
    wire.second.pop_front();
    const auto [from, to] = wire.first;
    members_[static_cast<size_t>(to)]->receive(from, message);
  }

  test::Random& random_;
  std::vector<std::unique_ptr<Member>> members_;
  Wires wires_;
};

TEST(GrowingPlans, EndInEveryOrderOfMessages) {
  for (uint64_t window : {1, 2, 16})
    for (int size : {2, 3, 5})
      test::forSeeds(100, [&](test::Random& random) {
        Operation operation(size, window, random);
        operation.run();
        ASSERT_TRUE(operation.done()) << size << " members, window " << window;
      });
}

}  // namespace
}  // namespace treadle::group::growing_test
