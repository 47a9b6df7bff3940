#pragma once
// The effect of a local plan's steps, computed differently from the planner: each transfer walks the shortest
// path through the machine's graph, and each place keeps which GPUs' data it has. The fuzzer uses it too.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "treadle/core/summation/local_plan.h"

namespace treadle::summation::oracle {

// ---- loads

// A link and a direction: from one end to the other, and whether it is an NVLink.
using DirectedLink = std::tuple<std::string, std::string, bool>;
using Loads = std::map<DirectedLink, uint64_t>;

class MachineGraph {
 public:
  explicit MachineGraph(const Topology& topology) : topology_(topology) {
    const auto switchName = [&](size_t index) { return "switch " + topology.switches[index].name; };
    connect("cpu", "memory");
    for (const auto& one : topology.switches) connect("switch " + one.name, "cpu");
    for (const auto& gpu : topology.gpus) connect("device " + gpu.name, switchName(gpu.underSwitch));
    for (const auto& nic : topology.nics)
      connect("device " + nic.name, nic.underSwitch ? switchName(*nic.underSwitch) : "cpu");
  }

  Loads loadsOf(const LocalStrategy& strategy) const {
    Loads loads;
    for (const LocalStep& step : strategy.steps)
      for (const LocalTransfer& transfer : step.transfers) walk(transfer, &loads);
    std::erase_if(loads, [](const auto& load) { return load.second == 0; });
    return loads;
  }

  // The planner's figures in the same form.
  Loads plannedLoads(const LocalStrategy& strategy) const {
    Loads loads;
    const size_t gpus = topology_.gpus.size(), firstNic = gpus + topology_.switches.size();
    const size_t memory = firstNic + topology_.nics.size();
    for (size_t i = 0; i < strategy.links.size(); ++i) {
      const LinkLoad& link = strategy.links[i];
      const bool isDevice = i < gpus || (i >= firstNic && i < memory) || i > memory;
      const std::string first = (isDevice ? "device " : i == memory ? "" : "switch ") + link.first;
      const bool isAtCpu = link.second == "cpu" || link.second == "memory";
      const std::string second = (i > memory ? "device " : isAtCpu ? "" : "switch ") + link.second;
      if (link.up > 0) loads[{first, second, i > memory}] = link.up;
      if (link.down > 0) loads[{second, first, i > memory}] = link.down;
    }
    return loads;
  }

 private:
  void connect(const std::string& a, const std::string& b) {
    neighbours_[a].insert(b);
    neighbours_[b].insert(a);
  }

  std::string nameOf(LocalPlace place) const {
    if (place.isMemory()) return "memory";
    return "device " +
           (place.kind == LocalPlace::Kind::kGpu ? topology_.gpus[place.index].name : topology_.nics[place.index].name);
  }

  void walk(const LocalTransfer& transfer, Loads* loads) const {
    const std::string from = nameOf(transfer.from), to = nameOf(transfer.to);
    if (transfer.nvlink) {
      (*loads)[{from, to, true}] += transfer.bytes();
    } else if (from == to) {  // the CPU reads each addend, and writes the sum once
      (*loads)[{"memory", "cpu", false}] += transfer.bytes();
      if (!transfer.adds) (*loads)[{"cpu", "memory", false}] += transfer.bytes();
    } else {
      const std::vector<std::string> path = shortestPath(from, to);
      for (size_t i = 0; i + 1 < path.size(); ++i) (*loads)[{path[i], path[i + 1], false}] += transfer.bytes();
    }
  }

  std::vector<std::string> shortestPath(const std::string& from, const std::string& to) const {
    std::vector<std::vector<std::string>> paths = {{from}};
    std::set<std::string> seen = {from};
    for (size_t i = 0; i < paths.size(); ++i) {
      const std::vector<std::string> path = paths[i];
      if (path.back() == to) return path;
      for (const std::string& next : neighbours_.at(path.back())) {
        if (!seen.insert(next).second) continue;
        paths.push_back(path);
        paths.back().push_back(next);
      }
    }
    return {};
  }

  const Topology& topology_;
  std::map<std::string, std::set<std::string>> neighbours_;
};

// ---- contents

// How often each GPU's data is in a value.
using Addends = std::vector<int>;

// Runs the steps over every range of bytes that no transfer divides. Empty: each GPU ends with the data of each GPU
// once, and so does the network get it, where there is one. Otherwise what is wrong.
inline std::string faultOf(const Topology& topology, const LocalStrategy& strategy, uint64_t bytes) {
  std::set<uint64_t> bounds = {0};
  for (const LocalStep& step : strategy.steps)
    for (const LocalTransfer& transfer : step.transfers) bounds.insert(transfer.begin);
  const Addends all(topology.gpus.size(), 1);
  for (const uint64_t at : bounds) {
    if (at >= bytes) continue;
    std::map<std::pair<LocalPlace::Kind, size_t>, Addends> values;
    for (size_t gpu = 0; gpu < all.size(); ++gpu) {
      values[{LocalPlace::Kind::kGpu, gpu}].assign(all.size(), 0);
      values[{LocalPlace::Kind::kGpu, gpu}][gpu] = 1;
    }
    size_t networks = 0;
    for (const LocalStep& step : strategy.steps) {
      for (const LocalTransfer& transfer : step.transfers) {
        if (at < transfer.begin || at >= transfer.end) continue;
        const auto source = values.find({transfer.from.kind, transfer.from.index});
        if (source == values.end()) return "byte " + std::to_string(at) + " is taken from where nothing is";
        Addends value = source->second;
        Addends& target = values[{transfer.to.kind, transfer.to.index}];
        if (transfer.adds && target.empty()) return "byte " + std::to_string(at) + " is added to nothing";
        for (size_t gpu = 0; transfer.adds && gpu < value.size(); ++gpu) value[gpu] += target[gpu];
        target = value;
        if (transfer.to.kind != LocalPlace::Kind::kNic) continue;
        ++networks;
        if (target != all) return "byte " + std::to_string(at) + " of the network is not the sum";
      }
    }
    if (networks != (topology.nics.empty() ? 0U : 1U))
      return "byte " + std::to_string(at) + " passes the network wrongly";
    for (size_t gpu = 0; gpu < all.size(); ++gpu)
      if (values[{LocalPlace::Kind::kGpu, gpu}] != all)
        return "byte " + std::to_string(at) + " of " + topology.gpus[gpu].name + " is not the sum";
  }
  return {};
}

}  // namespace treadle::summation::oracle
