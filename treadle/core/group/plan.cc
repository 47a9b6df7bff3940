#include "treadle/core/group/plan.h"

#include <algorithm>

namespace treadle::group {

void Plan::send(int peer, Place from, Received after) { channels[channelTo(peer)].sends.push_back({from, after}); }

Received Plan::receive(int peer, Place to, Received after) { return add(peer, {to, Action::kReplace, {}, after}); }

Received Plan::reduce(int peer, Action action, Place operand, Place to, Received after) {
  return add(peer, {to, action, operand, after});
}

void Plan::setWindow(uint64_t chunks) {
  for (Channel& channel : channels) channel.window = chunks;
}

size_t Plan::channelTo(int peer) {
  auto found = std::find_if(channels.begin(), channels.end(), [&](const Channel& one) { return one.peer == peer; });
  if (found == channels.end()) {
    channels.emplace_back().peer = peer;
    return channels.size() - 1;
  }
  return static_cast<size_t>(found - channels.begin());
}

Received Plan::add(int peer, const Receive& receive) {
  const size_t channel = channelTo(peer);
  std::vector<Receive>& receives = channels[channel].receives;
  receives.push_back(receive);
  return {channel, receives.size() - 1};
}

}  // namespace treadle::group
