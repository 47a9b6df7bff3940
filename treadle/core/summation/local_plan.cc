#include "treadle/core/summation/local_plan.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "treadle/core/base/check.h"
#include "treadle/core/summation/link_loads.h"

namespace treadle::summation {
namespace {

using PlaceKind = LocalPlace::Kind;
using Gpus = std::vector<size_t>;
using Transfers = std::vector<LocalTransfer>;

constexpr LocalPlace kSumPlace{PlaceKind::kSum, 0};

LocalPlace onGpu(size_t gpu) { return {PlaceKind::kGpu, gpu}; }

// The part `index` of `count` parts that are as equal as whole bytes allow.
LocalTransfer partOfBytes(uint64_t bytes, size_t index, size_t count) {
  return {.from = {}, .to = {}, .begin = bytes * index / count, .end = bytes * (index + 1) / count};
}

LocalTransfer between(LocalPlace from, LocalPlace to, LocalTransfer part) {
  part.from = from;
  part.to = to;
  return part;
}

// All GPUs, those of a switch side by side: a ring over them crosses each uplink once per direction.
Gpus ringOrder(const Topology& topology) {
  Gpus order;
  for (size_t one = 0; one < topology.switches.size(); ++one)
    for (const size_t gpu : topology.gpusUnder(one)) order.push_back(gpu);
  return order;
}

// A reduce-scatter leaves part i of the sum on the i-th GPU, and an all-gather begins with that.
Transfers ringRounds(const Gpus& gpus, uint64_t bytes, bool reduces) {
  Transfers transfers;
  const size_t n = gpus.size();
  for (size_t round = 0; round + 1 < n; ++round) {
    for (size_t i = 0; i < n; ++i) {
      const size_t part = (i + n - round - (reduces ? 1 : 0)) % n;
      transfers.push_back(between(onGpu(gpus[i]), onGpu(gpus[(i + 1) % n]), partOfBytes(bytes, part, n)));
      transfers.back().adds = reduces;
    }
  }
  return transfers;
}

// Each GPU's part to a buffer in memory, or back.
Transfers copiesOf(const Gpus& gpus, uint64_t bytes, LocalPlace memory, bool isBack) {
  Transfers transfers;
  for (size_t i = 0; i < gpus.size(); ++i) {
    const LocalPlace gpu = onGpu(gpus[i]);
    transfers.push_back(between(isBack ? memory : gpu, isBack ? gpu : memory, partOfBytes(bytes, i, gpus.size())));
  }
  return transfers;
}

// ---- ways

class WayMaker {
 public:
  WayMaker(const Topology& topology, uint64_t bytes, std::string name)
      : topology_(topology), bytes_(bytes), way_{.name = std::move(name), .steps = {}, .links = {}} {}

  LocalWay cpuAssisted() &&;
  LocalWay ring() &&;
  // Each GPU of `roots` gathers an equal part of the sum.
  LocalWay overNvLinks(const Gpus& roots) &&;

 private:
  // A step in which nothing moves is left out.
  void step(const std::string& what, Transfers transfers) {
    if (!transfers.empty()) way_.steps.push_back({what, std::move(transfers)});
  }
  void network();
  LocalWay counted() {
    way_.links = loadsOf(topology_, way_.steps);
    return std::move(way_);
  }

  const Topology& topology_;
  const uint64_t bytes_;
  LocalWay way_;
};

// An equal part through each NIC.
void WayMaker::network() {
  Transfers out, back;
  for (size_t nic = 0; nic < topology_.nics.size(); ++nic) {
    const LocalTransfer part = partOfBytes(bytes_, nic, topology_.nics.size());
    out.push_back(between(kSumPlace, {PlaceKind::kNic, nic}, part));
    back.push_back(between({PlaceKind::kNic, nic}, kSumPlace, part));
  }
  step("each NIC sends its part of the sum", std::move(out));
  step("each NIC receives its part of the sum of all machines", std::move(back));
}

LocalWay WayMaker::cpuAssisted() && {
  Transfers scatter, copy, sum, back, gather;
  const auto append = [](Transfers& all, const Transfers& more) { all.insert(all.end(), more.begin(), more.end()); };
  const Gpus first = topology_.gpusUnder(topology_.gpus.front().underSwitch);
  const bool isAlone = first.size() == topology_.gpus.size();  // one switch has all GPUs, so the CPU adds nothing
  for (size_t one = 0; one < topology_.switches.size(); ++one) {
    const Gpus gpus = topology_.gpusUnder(one);
    if (gpus.empty()) continue;
    const LocalPlace buffer = isAlone ? kSumPlace : LocalPlace{PlaceKind::kAddend, one};
    append(scatter, ringRounds(gpus, bytes_, true));
    append(copy, copiesOf(gpus, bytes_, buffer, false));
    if (!isAlone) sum.push_back(between(buffer, kSumPlace, partOfBytes(bytes_, 0, 1)));
    if (sum.size() > 1) sum.back().adds = true;
    append(back, copiesOf(gpus, bytes_, kSumPlace, true));
    append(gather, ringRounds(gpus, bytes_, false));
  }
  step("the GPUs of each switch reduce-scatter", std::move(scatter));
  step("each GPU copies its part to CPU memory", std::move(copy));
  step("the CPU adds the parts of all switches", std::move(sum));
  network();
  step("each GPU copies its part of the sum back", std::move(back));
  step("the GPUs of each switch all-gather", std::move(gather));
  return counted();
}

LocalWay WayMaker::ring() && {
  const Gpus order = ringOrder(topology_);
  const bool hasNetwork = !topology_.nics.empty();
  step("all GPUs reduce-scatter in a ring", ringRounds(order, bytes_, true));
  if (hasNetwork) step("each GPU copies its part to CPU memory", copiesOf(order, bytes_, kSumPlace, false));
  network();
  if (hasNetwork) step("each GPU copies its part of the sum back", copiesOf(order, bytes_, kSumPlace, true));
  step("all GPUs all-gather in a ring", ringRounds(order, bytes_, false));
  return counted();
}

// ---- NVLinks

// The shortest ways over NVLinks from a root to all GPUs that it reaches: a transfer to each, nearer GPUs first.
Transfers treeFrom(const Topology& topology, size_t root) {
  Transfers tree;
  std::vector<bool> isReached(topology.gpus.size());
  isReached[root] = true;
  Gpus reached = {root};
  for (size_t next = 0; next < reached.size(); ++next) {
    for (size_t link = 0; link < topology.nvlinks.size(); ++link) {
      const auto& [first, second, bandwidth] = topology.nvlinks[link];
      if (reached[next] != first && reached[next] != second) continue;
      const size_t other = reached[next] == first ? second : first;
      if (isReached[other]) continue;
      isReached[other] = true;
      reached.push_back(other);
      tree.push_back({.from = onGpu(reached[next]), .to = onGpu(other), .nvlink = link});
    }
  }
  return tree;
}

bool connectAll(const Topology& topology) {
  return !topology.nvlinks.empty() && treeFrom(topology, 0).size() + 1 == topology.gpus.size();
}

LocalWay WayMaker::overNvLinks(const Gpus& roots) && {
  Transfers reduce, broadcast, copy, back;
  for (size_t i = 0; i < roots.size(); ++i) {
    const LocalTransfer part = partOfBytes(bytes_, i, roots.size());
    const LocalPlace root = onGpu(roots[i]);
    Transfers tree = treeFrom(topology_, roots[i]);
    for (LocalTransfer& edge : tree) {
      edge.begin = part.begin;
      edge.end = part.end;
    }
    broadcast.insert(broadcast.end(), tree.begin(), tree.end());
    std::ranges::reverse(tree);
    for (const LocalTransfer& edge : tree) {
      reduce.push_back(edge);
      std::swap(reduce.back().from, reduce.back().to);
      reduce.back().adds = true;
    }
    copy.push_back(between(root, kSumPlace, part));
    back.push_back(between(kSumPlace, root, part));
  }
  std::string gathers;
  for (const size_t root : std::set(roots.begin(), roots.end()))
    gathers += (gathers.empty() ? "" : ", ") + topology_.gpus[root].name;
  const bool hasNetwork = !topology_.nics.empty();
  step("all GPUs reduce over NVLink to " + gathers, std::move(reduce));
  if (hasNetwork) step("they copy the sum to CPU memory", std::move(copy));
  network();
  if (hasNetwork) step("they copy the sum back", std::move(back));
  step("they broadcast over NVLink", std::move(broadcast));
  return counted();
}

// For each NIC the GPU whose links to the CPU end first, with what the NICs move beside it. So it is under another
// switch than the NIC, where that gains anything.
Gpus rootsFor(const Topology& topology, uint64_t bytes) {
  Gpus roots;
  const double part = static_cast<double>(bytes) / static_cast<double>(topology.nics.size());
  std::vector<double> ofSwitch(topology.switches.size()), ofGpu(topology.gpus.size());
  for (const auto& nic : topology.nics)
    if (nic.underSwitch) ofSwitch[*nic.underSwitch] += part;
  const auto secondsWith = [&](size_t gpu) {
    const auto& [name, one, link] = topology.gpus[gpu];
    return std::max((ofSwitch[one] + part) / topology.switches[one].uplink, (ofGpu[gpu] + part) / link);
  };
  for (size_t nic = 0; nic < topology.nics.size(); ++nic) {
    size_t best = 0;
    for (size_t gpu = 1; gpu < topology.gpus.size(); ++gpu)
      if (secondsWith(gpu) < secondsWith(best)) best = gpu;
    ofSwitch[topology.gpus[best].underSwitch] += part;
    ofGpu[best] += part;
    roots.push_back(best);
  }
  return roots;
}

void addNvLinkWays(const Topology& topology, uint64_t bytes, LocalPlan* plan) {
  if (topology.nvlinks.empty()) return;
  if (!connectAll(topology)) {
    plan->notes.emplace_back("NVLinks do not connect all GPUs, so the rules for PCIe hold");
    return;
  }
  Gpus roots = ringOrder(topology);  // without a network each GPU gathers a part
  if (!topology.nics.empty()) roots = rootsFor(topology, bytes);
  plan->ways.push_back(WayMaker(topology, bytes, kNvLinkWay).overNvLinks(roots));
  if (topology.nics.size() != 1 || !topology.nics[0].underSwitch) return;
  const size_t shared = *topology.nics[0].underSwitch;
  const Gpus sharing = topology.gpusUnder(shared);
  const std::string& name = topology.switches[shared].name;
  if (topology.gpus[roots[0]].underSwitch == shared) {
    plan->notes.push_back("the GPU that gathers shares the switch " + name + " with the NIC: no other one is faster");
  } else if (!sharing.empty()) {
    plan->ways.push_back(WayMaker(topology, bytes, kSharedNvLinkWay).overNvLinks({sharing[0]}));
  }
}

std::string whyChosen(const Topology& topology, const LocalPlan& plan) {
  if (topology.gpus.size() == 1)
    return topology.nics.empty() ? "one GPU has nothing to sum"
                                 : "one GPU only copies its data to the network and back";
  const double chosen = plan.chosen().seconds();
  const double ring = std::ranges::find(plan.ways, kRingWay, &LocalWay::name)->seconds();
  if (plan.chosen().name == kRingWay) return "no other way takes less time than the ring";
  if (chosen == ring) return "it takes as long as the ring, and no other way takes less";
  const auto tenths = std::lround(1000 * (1 - chosen / ring));
  return "it takes " + std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + "% less time than the ring";
}

}  // namespace

const LinkLoad& LocalWay::bottleneck() const { return *std::ranges::max_element(links, {}, &LinkLoad::seconds); }

LocalPlan planLocally(const Topology& topology, uint64_t bytes) {
  TREADLE_CHECK(!topology.gpus.empty() && bytes <= kMostLocalBytes, "a plan is for a parsed topology");
  LocalPlan plan;
  addNvLinkWays(topology, bytes, &plan);
  plan.ways.push_back(WayMaker(topology, bytes, kCpuAssistedWay).cpuAssisted());
  plan.ways.push_back(WayMaker(topology, bytes, kRingWay).ring());
  std::ranges::stable_sort(plan.ways, {}, &LocalWay::seconds);
  plan.why = whyChosen(topology, plan);
  return plan;
}

}  // namespace treadle::summation
