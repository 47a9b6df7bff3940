#include "treadle/core/summation/link_loads.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace treadle::summation {
namespace {

class LoadCounter {
 public:
  explicit LoadCounter(const Topology& topology)
      : topology_(topology),
        firstSwitch_(topology.gpus.size()),
        firstNic_(firstSwitch_ + topology.switches.size()),
        memory_(firstNic_ + topology.nics.size()) {
    const auto nameOf = [&](size_t one) { return topology.switches[one].name; };
    for (const auto& gpu : topology.gpus) add(gpu.name, nameOf(gpu.underSwitch), gpu.link);
    for (const auto& one : topology.switches) add(one.name, "cpu", one.uplink);
    for (const auto& nic : topology.nics) add(nic.name, nic.underSwitch ? nameOf(*nic.underSwitch) : "cpu", nic.link);
    add("cpu", "memory", topology.memory);
    for (const auto& link : topology.nvlinks)
      add(topology.gpus[link.first].name, topology.gpus[link.second].name, link.link);
  }

  void count(const LocalTransfer& transfer) {
    if (transfer.nvlink) {
      LinkLoad& link = links_[memory_ + 1 + *transfer.nvlink];
      (topology_.nvlinks[*transfer.nvlink].first == transfer.from.index ? link.up : link.down) += transfer.bytes();
    } else {
      countPcie(transfer.from, transfer.to, transfer.bytes(), transfer.adds);
    }
  }
  std::vector<LinkLoad> loads() && { return std::move(links_); }

 private:
  void add(const std::string& first, const std::string& second, double bandwidth) {
    links_.push_back({.first = first, .second = second, .bandwidth = bandwidth});
  }

  // Up to the lowest place above both ends, and down from there.
  void countPcie(LocalPlace from, LocalPlace to, uint64_t bytes, bool adds) {
    if (from.isMemory()) {
      links_[memory_].down += bytes;
    } else {
      links_[linkOf(from)].up += bytes;
    }
    if (!to.isMemory()) {
      links_[linkOf(to)].down += bytes;
    } else if (!adds) {  // the CPU adds all addends in one pass, and writes the sum once
      links_[memory_].up += bytes;
    }
    const auto source = switchOf(from), target = switchOf(to);
    if (source == target) return;
    if (source) links_[firstSwitch_ + *source].up += bytes;
    if (target) links_[firstSwitch_ + *target].down += bytes;
  }

  size_t linkOf(LocalPlace device) const {
    return device.kind == LocalPlace::Kind::kGpu ? device.index : firstNic_ + device.index;
  }
  std::optional<size_t> switchOf(LocalPlace place) const {
    if (place.isMemory()) return {};
    return place.kind == LocalPlace::Kind::kGpu ? topology_.gpus[place.index].underSwitch
                                                : topology_.nics[place.index].underSwitch;
  }

  const Topology& topology_;
  const size_t firstSwitch_, firstNic_, memory_;  // among the links
  std::vector<LinkLoad> links_;
};

}  // namespace

double LinkLoad::seconds() const { return static_cast<double>(std::max(up, down)) / bandwidth; }

std::vector<LinkLoad> loadsOf(const Topology& topology, const std::vector<LocalStep>& steps) {
  LoadCounter counter(topology);
  for (const LocalStep& step : steps)
    for (const LocalTransfer& transfer : step.transfers) counter.count(transfer);
  return std::move(counter).loads();
}

}  // namespace treadle::summation
