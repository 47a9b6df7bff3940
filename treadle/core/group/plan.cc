#include "treadle/core/group/plan.h"

#include <algorithm>

namespace treadle::group {

void Plan::send(int peer, Place from, Received after) { channels[addChannelTo(peer)].sends.push_back({from, after}); }

Received Plan::receive(int peer, Place to, Received after) { return add(peer, {to, Action::kReplace, {}, after}); }

Received Plan::reduce(int peer, Action action, Place operand, Place to, Received after) {
  return add(peer, {to, action, operand, after});
}

void Plan::setWindow(uint64_t chunks) {
  for (Channel& channel : channels) channel.window = chunks;
}

std::optional<size_t> Plan::channelTo(int peer) const {
  const auto found =
      std::find_if(channels.begin(), channels.end(), [&](const Channel& one) { return one.peer == peer; });
  if (found == channels.end()) return {};
  return static_cast<size_t>(found - channels.begin());
}

size_t Plan::addChannelTo(int peer) {
  if (const std::optional<size_t> channel = channelTo(peer)) return *channel;
  channels.emplace_back().peer = peer;
  return channels.size() - 1;
}

Received Plan::add(int peer, const Receive& receive) {
  const size_t channel = addChannelTo(peer);
  std::vector<Receive>& receives = channels[channel].receives;
  receives.push_back(receive);
  return {channel, receives.size() - 1};
}

}  // namespace treadle::group
