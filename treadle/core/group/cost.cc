#include "treadle/core/group/cost.h"

#include <algorithm>
#include <bit>
#include <map>

#include "treadle/core/group/binomial_tree.h"
#include "treadle/core/group/choice.h"

namespace treadle::group {
namespace {

class Chains {
 public:
  explicit Chains(const std::vector<Plan>& plans) : plans_(plans), sent_(plans.size()), combined_(plans.size()) {}

  // The longest chain of transfers.
  uint64_t longest() {
    uint64_t longest = 0;
    for (size_t member = 0; member < plans_.size(); ++member)
      for (size_t channel = 0; channel < plans_[member].channels.size(); ++channel)
        for (size_t transfer = 0; transfer < plans_[member].channels[channel].sends.size(); ++transfer)
          longest = std::max(longest, upToSend(member, channel, transfer));
    return longest;
  }

 private:
  // With it.
  uint64_t upToSend(size_t member, size_t channel, size_t transfer) {
    if (const auto known = sent_[member].find({channel, transfer}); known != sent_[member].end()) return known->second;
    const uint64_t steps = 1 + upToReceived(member, plans_[member].channels[channel].sends[transfer].after);
    return sent_[member][{channel, transfer}] = steps;
  }

  uint64_t upToReceived(size_t member, const Received& which) {
    if (which.channel == Received::kNone) return 0;
    const Channel& channel = plans_[member].channels[which.channel];
    const Receive& receive = channel.receives[which.transfer];
    if (receive.action == Action::kCombine) return upToCombined(member);
    return std::max(upToArrival(member, channel, which.transfer), upToReceived(member, receive.after));
  }

  // Combining waits for the first transfers of all channels that combine.
  uint64_t upToCombined(size_t member) {
    uint64_t& steps = combined_[member];
    if (steps > 0) return steps;
    for (const Channel& channel : plans_[member].channels)
      if (!channel.receives.empty() && channel.receives.front().action == Action::kCombine)
        steps = std::max(steps, upToArrival(member, channel, 0));
    return steps;
  }

  // The n-th transfer that a member receives is the n-th that its peer sends.
  uint64_t upToArrival(size_t member, const Channel& channel, size_t transfer) {
    const auto peer = static_cast<size_t>(channel.peer);
    return upToSend(peer, *plans_[peer].channelTo(static_cast<int>(member)), transfer);
  }

  const std::vector<Plan>& plans_;
  std::vector<std::map<std::pair<size_t, size_t>, uint64_t>> sent_;  // by member, channel and transfer
  std::vector<uint64_t> combined_;                                   // by member; 0: not known yet
};

uint64_t startsOf(Agreement::Kind kind, int size, int self) {
  if (kind == Agreement::Kind::kAllToAll) return static_cast<uint64_t>(size - 1);
  return childrenOf(self, size).size() + (self == 0 ? 0 : 1);
}

// The binomial tree of n members is log2 n deep, rounded down.
uint64_t stepsToAgree(Agreement::Kind kind, int size) {
  const auto depth = static_cast<uint64_t>(std::bit_width(static_cast<unsigned>(size)) - 1);
  return kind == Agreement::Kind::kAllToAll ? 1 : 2 * depth;
}

}  // namespace

Cost costOf(const Description& what, const Placement& placement) {
  const int size = placement.members();
  const Agreement::Kind agreement = agreementOf(what, size);
  const uint64_t chunkElements = std::max<uint64_t>(1, what.chunkBytes / sizeOf(what.movedType()));
  std::vector<Plan> plans;
  Cost cost;
  for (int self = 0; self < size; ++self) {
    const Plan& plan = plans.emplace_back(planOf({what, {}, {}}, placement, self));
    uint64_t messages = startsOf(agreement, size, self), elements = 0;
    for (const Channel& channel : plan.channels)
      for (const Send& send : channel.sends) {
        elements += send.range().count();
        if (!plan.withStarts) messages += (send.range().count() + chunkElements - 1) / chunkElements;
      }
    cost.messages = std::max(cost.messages, messages);
    cost.bytes = std::max(cost.bytes, elements * sizeOf(what.movedType()));
    cost.allMessages += messages;
    cost.allBytes += elements * sizeOf(what.movedType());
  }
  const uint64_t agreed = stepsToAgree(agreement, size), moved = Chains(plans).longest();
  cost.steps = plans.front().withStarts ? std::max(agreed, moved) : agreed + moved;
  return cost;
}

}  // namespace treadle::group
