#include "treadle/core/summation/local_plan.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "treadle/core/base/check.h"
#include "treadle/core/base/listed.h"

namespace treadle::summation {
namespace {

using PlaceKind = LocalPlace::Kind;
using Gpus = std::vector<size_t>;
using Transfers = std::vector<LocalTransfer>;

constexpr LocalPlace kSumPlace{PlaceKind::kSum, 0};
constexpr const char* kSendStep = "each NIC sends its part of the sum";
constexpr const char* kReceiveStep = "each NIC receives its part of the sum of all machines";

LocalPlace onGpu(size_t gpu) { return {PlaceKind::kGpu, gpu}; }

// Moves the part `index` of `count` parts, which are as equal as whole bytes allow.
LocalTransfer transferOf(LocalPlace from, LocalPlace to, uint64_t bytes, size_t index = 0, size_t count = 1) {
  return {.from = from, .to = to, .begin = bytes * index / count, .end = bytes * (index + 1) / count};
}

void append(const Transfers& more, Transfers* all) { all->insert(all->end(), more.begin(), more.end()); }

// The transfers in the other direction, the last one first.
Transfers reversed(Transfers transfers) {
  std::ranges::reverse(transfers);
  for (LocalTransfer& one : transfers) std::swap(one.from, one.to);
  return transfers;
}

// A reduce-scatter leaves part i of the sum on the i-th GPU, and an all-gather begins with that.
Transfers ringRounds(const Gpus& gpus, uint64_t bytes, bool reduces) {
  Transfers transfers;
  const size_t n = gpus.size();
  for (size_t round = 0; round + 1 < n; ++round) {
    for (size_t i = 0; i < n; ++i) {
      const size_t part = (i + n - round - (reduces ? 1 : 0)) % n;
      transfers.push_back(transferOf(onGpu(gpus[i]), onGpu(gpus[(i + 1) % n]), bytes, part, n));
      transfers.back().adds = reduces;
    }
  }
  return transfers;
}

// Each GPU copies its part to memory.
Transfers copiesTo(LocalPlace memory, const Gpus& gpus, uint64_t bytes) {
  Transfers transfers;
  for (size_t i = 0; i < gpus.size(); ++i)
    transfers.push_back(transferOf(onGpu(gpus[i]), memory, bytes, i, gpus.size()));
  return transfers;
}

// Each NIC sends an equal part of the sum.
Transfers sendsOf(const Topology& topology, uint64_t bytes) {
  Transfers transfers;
  for (size_t nic = 0; nic < topology.nics.size(); ++nic)
    transfers.push_back(transferOf(kSumPlace, {PlaceKind::kNic, nic}, bytes, nic, topology.nics.size()));
  return transfers;
}

// Leaves out the steps in which nothing moves.
LocalStrategy strategyOf(const Topology& topology, const char* name, std::vector<LocalStep> steps) {
  std::erase_if(steps, [](const LocalStep& step) { return step.transfers.empty(); });
  std::vector<LinkLoad> links = loadsOf(topology, steps);
  return {name, std::move(steps), std::move(links)};
}

LocalStrategy cpuAssistedStrategy(const Topology& topology, uint64_t bytes) {
  Transfers scatter, copy, sum, back, gather;
  for (size_t switchIndex = 0; switchIndex < topology.switches.size(); ++switchIndex) {
    const Gpus gpus = topology.gpusUnder(switchIndex);
    if (gpus.empty()) continue;
    const LocalPlace buffer{PlaceKind::kAddend, switchIndex};
    append(ringRounds(gpus, bytes, true), &scatter);
    append(copiesTo(buffer, gpus, bytes), &copy);
    sum.push_back(transferOf(buffer, kSumPlace, bytes));
    sum.back().adds = sum.size() > 1;
    append(reversed(copiesTo(kSumPlace, gpus, bytes)), &back);
    append(ringRounds(gpus, bytes, false), &gather);
  }
  const Transfers sends = sendsOf(topology, bytes);
  return strategyOf(topology, kCpuAssistedStrategy,
                    {{"the GPUs of each switch reduce-scatter", scatter},
                     {"each GPU copies its part to CPU memory", copy},
                     {"the CPU adds the parts of all switches", sum},
                     {kSendStep, sends},
                     {kReceiveStep, reversed(sends)},
                     {"each GPU copies its part of the sum back", back},
                     {"the GPUs of each switch all-gather", gather}});
}

// The GPUs of a switch are neighbours, so the ring crosses each uplink once per direction.
LocalStrategy ringStrategy(const Topology& topology, uint64_t bytes) {
  Gpus order;
  for (size_t switchIndex = 0; switchIndex < topology.switches.size(); ++switchIndex)
    for (const size_t gpu : topology.gpusUnder(switchIndex)) order.push_back(gpu);
  const Transfers sends = sendsOf(topology, bytes);
  const Transfers copies = sends.empty() ? Transfers() : copiesTo(kSumPlace, order, bytes);
  return strategyOf(topology, kRingStrategy,
                    {{"all GPUs reduce-scatter in a ring", ringRounds(order, bytes, true)},
                     {"each GPU copies its part to CPU memory", copies},
                     {kSendStep, sends},
                     {kReceiveStep, reversed(sends)},
                     {"each GPU copies its part of the sum back", reversed(copies)},
                     {"all GPUs all-gather in a ring", ringRounds(order, bytes, false)}});
}

// ---- NVLinks

// Moves the bytes of `part` from a root to all GPUs that it reaches, over the fewest NVLinks and to nearer GPUs first.
Transfers treeFrom(size_t root, const Topology& topology, const LocalTransfer& part) {
  Transfers tree;
  std::vector<size_t> distances(topology.gpus.size(), topology.gpus.size());
  distances[root] = 0;
  for (size_t near = 0; near < topology.gpus.size() && tree.size() + 1 < topology.gpus.size(); ++near) {
    for (size_t link = 0; link < topology.nvlinks.size(); ++link) {
      auto [from, to, bandwidth] = topology.nvlinks[link];
      if (distances[to] == near) std::swap(from, to);
      if (distances[from] != near || distances[to] <= near + 1) continue;
      distances[to] = near + 1;
      tree.push_back({onGpu(from), onGpu(to), part.begin, part.end, false, link});
    }
  }
  return tree;
}

// A root for each NIC, one after the other: the GPU with which the roots so far take the least time. Where the times
// are equal, prefers a GPU under another switch than the NIC.
Gpus rootsFor(const Topology& topology, uint64_t bytes) {
  Gpus roots;
  for (const Topology::Nic& nic : topology.nics) {
    std::tuple<double, bool, size_t> best{Topology::kUnlimited, true, 0};
    roots.push_back(0);
    for (size_t gpu = 0; gpu < topology.gpus.size(); ++gpu) {
      roots.back() = gpu;
      best = std::min(best, {nvLinkStrategy(topology, bytes, roots).seconds(),
                             topology.gpus[gpu].underSwitch == nic.underSwitch, gpu});
    }
    roots.back() = std::get<size_t>(best);
  }
  return roots;
}

void addNvLinkStrategy(const Topology& topology, uint64_t bytes, LocalPlan* plan) {
  if (topology.nvlinks.empty()) return;
  if (treeFrom(0, topology, {}).size() + 1 < topology.gpus.size()) {
    plan->notes.emplace_back("NVLinks do not connect all GPUs, so the plan uses none of them");
    return;
  }
  Gpus roots(topology.gpus.size());
  for (size_t gpu = 0; gpu < roots.size(); ++gpu) roots[gpu] = gpu;
  if (!topology.nics.empty()) roots = rootsFor(topology, bytes);
  plan->strategies.push_back(nvLinkStrategy(topology, bytes, roots));
  const auto& [name, underSwitch, link] = topology.gpus[roots[0]];
  if (topology.nics.size() == 1 && topology.nics[0].underSwitch == underSwitch)
    plan->notes.push_back("with nvlink, " + name + " gathers the sum although it shares the switch " +
                          topology.switches[underSwitch].name + " with the NIC: no other GPU is faster");
}

std::string whyChosen(const Topology& topology, const LocalPlan& plan) {
  if (topology.gpus.size() == 1)
    return topology.nics.empty() ? "one GPU has nothing to sum"
                                 : "one GPU only copies its data to the network and back";
  if (plan.strategies.size() == 1) return "this machine has no other strategy";
  if (plan.chosen().name == kRingStrategy) return "no other strategy takes less time than the ring";
  const double chosen = plan.chosen().seconds();
  const double ring = std::ranges::find(plan.strategies, kRingStrategy, &LocalStrategy::name)->seconds();
  if (chosen == ring) return "it takes as long as the ring, and no other strategy takes less";
  const auto tenths = std::min(std::lround(1000 * (1 - chosen / ring)), 999L);
  if (tenths == 0) return "it takes less time than the ring, by less than 0.1%";
  return "it takes " + std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + "% less time than the ring";
}

bool isComplete(const Topology& topology) {
  const size_t gpus = topology.gpus.size(), switches = topology.switches.size();
  const auto isUnder = [&](const auto& device) { return device.underSwitch < switches; };
  return gpus > 0 && std::ranges::all_of(topology.gpus, isUnder) &&
         std::ranges::all_of(topology.nics, [&](const auto& nic) { return nic.underSwitch.value_or(0) < switches; }) &&
         std::ranges::all_of(topology.nvlinks,
                             [&](const auto& link) { return std::max(link.first, link.second) < gpus; });
}

}  // namespace

const LinkLoad& LocalStrategy::busiest() const { return *std::ranges::max_element(links, {}, &LinkLoad::seconds); }

LocalStrategy nvLinkStrategy(const Topology& topology, uint64_t bytes, const Gpus& roots) {
  const Transfers sends = sendsOf(topology, bytes);
  Transfers broadcast, copies;
  std::set<std::string> names;
  for (size_t i = 0; i < roots.size(); ++i) {
    const LocalTransfer copy = transferOf(onGpu(roots[i]), kSumPlace, bytes, i, roots.size());
    if (!sends.empty()) copies.push_back(copy);
    append(treeFrom(roots[i], topology, copy), &broadcast);
    names.insert(topology.gpus[roots[i]].name);
  }
  Transfers reduce = reversed(broadcast);
  for (LocalTransfer& edge : reduce) edge.adds = true;
  const std::vector<std::string> named(names.begin(), names.end());
  const std::string gatherers = listed(named, 16, [](const std::string& name) { return name; });
  return strategyOf(topology, kNvLinkStrategy,
                    {{"all GPUs reduce over NVLink to " + gatherers, reduce},
                     {"they copy the sum to CPU memory", copies},
                     {kSendStep, sends},
                     {kReceiveStep, reversed(sends)},
                     {"they copy the sum back", reversed(copies)},
                     {"they broadcast over NVLink", broadcast}});
}

LocalPlan planLocally(const Topology& topology, uint64_t bytes) {
  TREADLE_CHECK(isComplete(topology) && bytes <= kMostLocalBytes, "a plan needs a complete topology");
  LocalPlan plan;
  addNvLinkStrategy(topology, bytes, &plan);
  if (topology.gpusUnder(topology.gpus.front().underSwitch).size() < topology.gpus.size())
    plan.strategies.push_back(cpuAssistedStrategy(topology, bytes));
  plan.strategies.push_back(ringStrategy(topology, bytes));
  std::ranges::stable_sort(plan.strategies, {}, &LocalStrategy::seconds);
  plan.why = whyChosen(topology, plan);
  return plan;
}

}  // namespace treadle::summation
