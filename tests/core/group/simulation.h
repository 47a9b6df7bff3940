#pragma once
// Executes the plans of all members together, on tables of numbers. Chunks and acknowledgements between two members
// keep their order; everything else happens in a random order.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>

#include "treadle/core/group/progress.h"
#include "treadle/core/group/shape.h"

namespace treadle::test {

using Numbers = std::vector<int64_t>;

class Simulation {
 public:
  struct Member {
    Member(group::Plan itsPlan, uint64_t chunkElements)
        : plan(std::move(itsPlan)), progress(plan, chunkElements), arrived(plan.channels.size()) {}

    const group::Plan plan;
    group::Progress progress;
    std::vector<std::deque<Numbers>> arrived;  // by channel
    Numbers input, output, scratch;
    bool inPlace = false;   // all is in the output
    uint64_t elements = 0;  // sent
  };

  // `average`: reductions divide at the end.
  Simulation(bool average, std::mt19937& random) : average_(average), random_(random) {}

  // By rank. Without an `input` the operation is in place.
  void add(group::Plan plan, uint64_t chunkElements, std::optional<Numbers> input, Numbers output) {
    Member& member = *members_.emplace_back(std::make_unique<Member>(std::move(plan), chunkElements));
    member.inPlace = !input;
    member.input = std::move(input).value_or(Numbers());
    member.output = std::move(output);
    member.scratch.resize(member.plan.scratch);
    for (const group::Copy& copy : member.plan.copies) {
      const group::Chunk whole{0, 0, 0, copy.from.range.count()};
      const Numbers::iterator from = at(member, copy.from, whole);
      std::copy_n(from, whole.count(), at(member, copy.to, whole));
    }
  }

  // Before anything else, as the starts of an operation do: every member sends what it can.
  void sendFirst() {
    for (size_t self = 0; self < members_.size(); ++self)
      for (size_t channel = 0; channel < members_[self]->plan.channels.size(); ++channel) send(self, channel);
  }

  // Until nothing can happen any more. The member `frozen` does nothing.
  void run(std::optional<int> frozen = {}) {
    std::vector<std::function<bool()>> actors;
    for (size_t self = 0; self < members_.size(); ++self)
      for (size_t channel = 0; channel < members_[self]->plan.channels.size(); ++channel) {
        if (static_cast<int>(self) == frozen) continue;
        actors.emplace_back([=, this] { return send(self, channel); });
        actors.emplace_back([=, this] { return take(self, channel); });
        actors.emplace_back([=, this] { return acknowledge(self, channel); });
        actors.emplace_back([=, this] { return deliver(self, channel); });
      }
    for (bool moved = true; moved;) {
      moved = false;
      std::shuffle(actors.begin(), actors.end(), random_);
      for (auto& actor : actors)
        for (int times = static_cast<int>(random_() % 4); times >= 0 && actor(); --times) moved = true;
    }
  }

  const Member& member(int rank) const { return *members_[static_cast<size_t>(rank)]; }
  bool done() const {
    return std::all_of(members_.begin(), members_.end(), [](const auto& one) { return one->progress.done(); });
  }

 private:
  struct Message {
    bool isAck = false;
    uint64_t position = 0;
    Numbers chunk;
  };

  bool send(size_t self, size_t channel) {
    Member& from = *members_[self];
    const auto chunk = from.progress.send(channel);
    if (!chunk) return false;
    const group::Channel& to = from.plan.channels[channel];
    const Numbers::iterator begin = at(from, to.sends[chunk->transfer].from, *chunk);
    from.elements += chunk->count();
    wire(self, to.peer)
        .push_back(
            {false, from.progress.sent(channel) - 1, Numbers(begin, begin + static_cast<ptrdiff_t>(chunk->count()))});
    return true;
  }

  bool acknowledge(size_t self, size_t channel) {
    const auto positions = members_[self]->progress.acknowledge(channel);
    if (positions) wire(self, members_[self]->plan.channels[channel].peer).push_back({true, *positions, {}});
    return positions.has_value();
  }

  bool deliver(size_t self, size_t channel) {
    Member& to = *members_[self];
    auto& from = wire(static_cast<size_t>(to.plan.channels[channel].peer), static_cast<int>(self));
    if (from.empty()) return false;
    const Message message = std::move(from.front());
    from.pop_front();
    if (message.isAck) {
      EXPECT_TRUE(to.progress.acknowledged(channel, message.position));
      return true;
    }
    const auto chunk = to.progress.arrive(channel, message.position);
    EXPECT_TRUE(chunk && chunk->count() == message.chunk.size()) << "both sides number the chunks alike";
    to.arrived[channel].push_back(message.chunk);
    return true;
  }

  bool take(size_t self, size_t channel) {
    Member& member = *members_[self];
    const auto chunk = member.progress.take(channel);
    if (!chunk) return false;
    const group::Receive& receive = member.plan.channels[channel].receives[chunk->transfer];
    const bool combines = receive.action == group::Action::kCombine;
    Numbers result;
    if (receive.action != group::Action::kReplace) {
      const Numbers::iterator operand = at(member, receive.operand, *chunk);
      result.assign(operand, operand + static_cast<ptrdiff_t>(chunk->count()));
    }
    for (size_t one = 0; one < member.arrived.size(); ++one)
      if (one == channel || (combines && member.progress.combines(one))) include(popArrived(member, one), result);
    const bool whole = combines || receive.action == group::Action::kReduceLast;
    if (whole && average_)
      for (int64_t& value : result) value /= static_cast<int64_t>(members_.size());
    std::copy(result.begin(), result.end(), at(member, receive.to, *chunk));
    return true;
  }

  static Numbers popArrived(Member& member, size_t channel) {
    Numbers chunk = std::move(member.arrived[channel].front());
    member.arrived[channel].pop_front();
    return chunk;
  }

  static void include(const Numbers& chunk, Numbers& result) {
    result.resize(chunk.size());
    for (size_t i = 0; i < chunk.size(); ++i) result[i] += chunk[i];
  }

  static Numbers::iterator at(Member& member, const group::Place& place, const group::Chunk& chunk) {
    Numbers& area = place.area == group::Area::kScratch                    ? member.scratch
                    : place.area == group::Area::kInput && !member.inPlace ? member.input
                                                                           : member.output;
    EXPECT_LE(place.range.begin + chunk.end, area.size());
    return area.begin() + static_cast<ptrdiff_t>(place.range.begin + chunk.begin);
  }

  std::deque<Message>& wire(size_t from, int to) { return wires_[{from, static_cast<size_t>(to)}]; }

  const bool average_;
  std::mt19937& random_;
  std::vector<std::unique_ptr<Member>> members_;
  std::map<std::pair<size_t, size_t>, std::deque<Message>> wires_;
};

}  // namespace treadle::test
