#include <algorithm>

#include "treadle/core/summation/local_plan.h"

namespace treadle::summation {

double LinkLoad::seconds() const { return static_cast<double>(std::max(up, down)) / bandwidth; }

std::vector<LinkLoad> loadsOf(const Topology& topology, const std::vector<LocalStep>& steps) {
  const size_t firstSwitch = topology.gpus.size(), firstNic = firstSwitch + topology.switches.size();
  const size_t memory = firstNic + topology.nics.size();
  std::vector<LinkLoad> links;
  links.reserve(memory + 1 + topology.nvlinks.size());
  const auto nameOf = [&](std::optional<size_t> index) { return index ? topology.switches[*index].name : "cpu"; };
  for (const auto& gpu : topology.gpus) links.push_back({gpu.name, nameOf(gpu.underSwitch), gpu.link});
  for (const auto& one : topology.switches) links.push_back({one.name, "cpu", one.uplink});
  for (const auto& nic : topology.nics) links.push_back({nic.name, nameOf(nic.underSwitch), nic.link});
  links.push_back({"memory", "cpu", topology.memory});
  for (const auto& [first, second, bandwidth] : topology.nvlinks)
    links.push_back({topology.gpus[first].name, topology.gpus[second].name, bandwidth});

  // The link at a place, and the switch at the other end of that link.
  const auto portOf = [&](LocalPlace place) -> std::pair<size_t, std::optional<size_t>> {
    if (place.isMemory()) return {memory, std::nullopt};
    if (place.kind == LocalPlace::Kind::kGpu) return {place.index, topology.gpus[place.index].underSwitch};
    return {firstNic + place.index, topology.nics[place.index].underSwitch};
  };
  const auto count = [&](const LocalTransfer& transfer) {
    if (transfer.nvlink) {
      LinkLoad& link = links[memory + 1 + *transfer.nvlink];
      (topology.nvlinks[*transfer.nvlink].first == transfer.from.index ? link.up : link.down) += transfer.bytes();
      return;
    }
    const auto [fromLink, fromSwitch] = portOf(transfer.from);
    const auto [toLink, toSwitch] = portOf(transfer.to);
    links[fromLink].up += transfer.bytes();
    // The CPU adds all addends in one pass, so it writes the sum only once.
    if (!transfer.adds || !transfer.to.isMemory()) links[toLink].down += transfer.bytes();
    if (fromSwitch == toSwitch) return;
    if (fromSwitch) links[firstSwitch + *fromSwitch].up += transfer.bytes();
    if (toSwitch) links[firstSwitch + *toSwitch].down += transfer.bytes();
  };
  for (const LocalStep& step : steps) std::ranges::for_each(step.transfers, count);
  return links;
}

}  // namespace treadle::summation
