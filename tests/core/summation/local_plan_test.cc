// The ways to sum within a machine: the paper's numbers, and an oracle over machines drawn at random.

#include "treadle/core/summation/local_plan.h"

#include <gtest/gtest.h>

#include "tests/core/summation/local_plan_oracle.h"
#include "tests/support/seeds.h"

namespace treadle::summation::local_plan_test {
namespace {

using test::pick;
using test::Random;

constexpr uint64_t kBytes = 5040 * 1000;  // divided by all counts of GPUs here
constexpr double kGpuLink = 13.1e9, kUplink = 10e9;

// Switches with so many GPUs each: s0 with g0, g1, ..., s1 with those that follow.
Topology machineOf(const std::vector<size_t>& gpusOfSwitches, double uplink = kUplink) {
  Topology topology;
  for (const size_t gpus : gpusOfSwitches) {
    const size_t one = topology.switches.size();
    topology.switches.push_back({"s" + std::to_string(one), uplink});
    for (size_t i = 0; i < gpus; ++i)
      topology.gpus.push_back({"g" + std::to_string(topology.gpus.size()), one, kGpuLink});
  }
  return topology;
}

void addNic(Topology* topology, std::optional<size_t> underSwitch) {
  topology->nics.push_back(
      {.name = "n" + std::to_string(topology->nics.size()), .underSwitch = underSwitch, .link = 12.5e9});
}

void linkAll(Topology* topology) {
  for (size_t second = 0; second < topology->gpus.size(); ++second)
    for (size_t first = 0; first < second; ++first) topology->nvlinks.push_back({first, second, 25e9});
}

const LocalWay& wayNamed(const LocalPlan& plan, const std::string& name) {
  const auto found = std::ranges::find(plan.ways, name, &LocalWay::name);
  EXPECT_NE(plan.ways.end(), found) << "no way " << name;
  return found == plan.ways.end() ? plan.ways.front() : *found;
}

const LinkLoad& linkOf(const LocalWay& way, const std::string& first, const std::string& second) {
  const auto found = std::ranges::find_if(
      way.links, [&](const LinkLoad& link) { return link.first == first && link.second == second; });
  EXPECT_NE(way.links.end(), found) << first << " - " << second;
  return found == way.links.end() ? way.links.front() : *found;
}

void expectLoad(uint64_t up, uint64_t down, const LinkLoad& link) {
  EXPECT_EQ(up, link.up) << link.first << " to " << link.second;
  EXPECT_EQ(down, link.down) << link.second << " to " << link.first;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// ---- the paper

TEST(LocalPlan, OfThePapersMachineTakes23Point7PercentLessThanTheRing) {
  const LocalPlan plan = planLocally(machineOf({4, 4}), kBytes);
  EXPECT_EQ(kCpuAssistedWay, plan.chosen().name);
  EXPECT_NEAR(1 - 0.237, plan.chosen().seconds() / wayNamed(plan, kRingWay).seconds(), 0.0005);
  EXPECT_EQ("it takes 23.7% less time than the ring", plan.why);
}

TEST(LocalPlan, OfThePapersMachineTakesTheLargerOfSOverGAndFourSevenths) {
  for (const double share : {0.2, 0.5, 4.0 / 7, 0.6, 0.763, 0.9, 1.0}) {
    const LocalPlan plan = planLocally(machineOf({4, 4}, share * kGpuLink), kBytes);
    EXPECT_NEAR(std::max(share, 4.0 / 7),
                wayNamed(plan, kCpuAssistedWay).seconds() / wayNamed(plan, kRingWay).seconds(), 1e-9)
        << share;
  }
}

TEST(LocalPlan, MovesWhatTheFormulasSay) {
  for (size_t l = 2; l <= 4; ++l) {
    for (size_t g = 1; g <= 5; ++g) {
      SCOPED_TRACE(std::to_string(l) + " switches with " + std::to_string(g) + " GPUs each");
      const LocalPlan plan = planLocally(machineOf(std::vector<size_t>(l, g)), kBytes);
      const LocalWay &assisted = wayNamed(plan, kCpuAssistedWay), &ring = wayNamed(plan, kRingWay);
      const size_t n = l * g;
      const uint64_t ofGpu = (2 * g - 1) * kBytes / g, ofRing = 2 * (n - 1) * kBytes / n;
      expectLoad(ofGpu, ofGpu, linkOf(assisted, "g0", "s0"));
      expectLoad(kBytes, kBytes, linkOf(assisted, "s1", "cpu"));
      expectLoad((l + 1) * kBytes, 2 * l * kBytes, linkOf(assisted, "cpu", "memory"));
      expectLoad(ofRing, ofRing, linkOf(ring, "g0", "s0"));
      expectLoad(ofRing, ofRing, linkOf(ring, "s1", "cpu"));
      expectLoad(0, 0, linkOf(ring, "cpu", "memory"));
    }
  }
}

TEST(LocalPlan, DividesTheBytesAmongTheGpusOfEachSwitchAlone) {
  const LocalPlan plan = planLocally(machineOf({3, 1}), kBytes);
  const LocalWay& way = wayNamed(plan, kCpuAssistedWay);
  expectLoad(5 * kBytes / 3, 5 * kBytes / 3, linkOf(way, "g2", "s0"));
  expectLoad(kBytes, kBytes, linkOf(way, "g3", "s1"));
  expectLoad(kBytes, kBytes, linkOf(way, "s0", "cpu"));
  expectLoad(kBytes, kBytes, linkOf(way, "s1", "cpu"));
}

// ---- small machines

TEST(LocalPlan, OfOneSwitchIsTheRing) {
  const LocalPlan plan = planLocally(machineOf({4, 0}), kBytes);
  EXPECT_EQ(kRingWay, plan.chosen().name);
  EXPECT_EQ("no other way takes less time than the ring", plan.why);
  expectLoad(0, 0, linkOf(plan.chosen(), "s0", "cpu"));
}

TEST(LocalPlan, OfOneGpuDoesNothingWithoutANetwork) {
  const LocalPlan alone = planLocally(machineOf({1}), kBytes);
  EXPECT_TRUE(alone.chosen().steps.empty());
  EXPECT_EQ(0, alone.chosen().seconds());
  EXPECT_EQ("one GPU has nothing to sum", alone.why);
  Topology withNic = machineOf({1});
  addNic(&withNic, {});
  const LocalPlan plan = planLocally(withNic, kBytes);
  EXPECT_EQ(4U, plan.chosen().steps.size());
  expectLoad(kBytes, kBytes, linkOf(plan.chosen(), "g0", "s0"));
  expectLoad(kBytes, kBytes, linkOf(plan.chosen(), "n0", "cpu"));
}

TEST(LocalPlan, CountsMemoryOnlyWhereItsBandwidthIsGiven) {
  Topology slow = machineOf({4, 4});
  EXPECT_EQ("g0", planLocally(slow, kBytes).chosen().bottleneck().first);
  slow.memory = 1e9;
  const LocalPlan plan = planLocally(slow, kBytes);
  EXPECT_EQ(kRingWay, plan.chosen().name);
  EXPECT_EQ("memory", wayNamed(plan, kCpuAssistedWay).bottleneck().second);
}

// ---- NVLinks

TEST(LocalPlanOverNvLinks, ReducesToAGpuThatDoesNotShareTheNicsSwitch) {
  for (const size_t nic : {0, 1}) {
    Topology topology = machineOf({4, 4});
    addNic(&topology, nic);
    linkAll(&topology);
    const LocalPlan plan = planLocally(topology, kBytes);
    EXPECT_EQ(kNvLinkWay, plan.chosen().name);
    EXPECT_TRUE(has(plan.chosen().steps.front().what, nic == 0 ? "to g4" : "to g0"))
        << plan.chosen().steps.front().what;
    expectLoad(kBytes, kBytes, linkOf(plan.chosen(), "s0", "cpu"));
    expectLoad(kBytes, kBytes, linkOf(plan.chosen(), "s1", "cpu"));
    const LocalWay& shared = wayNamed(plan, kSharedNvLinkWay);
    const std::string ofNic = nic == 0 ? "s0" : "s1";
    expectLoad(2 * kBytes, 2 * kBytes, linkOf(shared, ofNic, "cpu"));
    EXPECT_DOUBLE_EQ(2, shared.seconds() / plan.chosen().seconds());
  }
}

TEST(LocalPlanOverNvLinks, SharesTheSwitchWhereThereIsNoOther) {
  Topology topology = machineOf({4});
  addNic(&topology, 0);
  linkAll(&topology);
  const LocalPlan plan = planLocally(topology, kBytes);
  ASSERT_EQ(1U, plan.notes.size());
  EXPECT_TRUE(has(plan.notes[0], "shares the switch s0 with the NIC"));
  EXPECT_EQ(2U + 1U, plan.ways.size()) << "nothing to compare with";
}

TEST(LocalPlanOverNvLinks, GivesEachOfSeveralNicsAnEqualPartAndAGpuWhereTheUplinksAreFree) {
  Topology topology = machineOf({2, 2, 2, 2});
  for (size_t nic = 0; nic < 4; ++nic) addNic(&topology, nic);
  linkAll(&topology);
  const LocalWay way = wayNamed(planLocally(topology, kBytes), kNvLinkWay);
  for (const std::string one : {"s0", "s1", "s2", "s3"}) expectLoad(kBytes / 2, kBytes / 2, linkOf(way, one, "cpu"));
  for (const std::string one : {"n0", "n1", "n2", "n3"})
    expectLoad(kBytes / 4, kBytes / 4, linkOf(way, one, "s" + one.substr(1)));
  topology.nics.resize(2);
  const LocalWay fewer = wayNamed(planLocally(topology, kBytes), kNvLinkWay);
  for (const std::string one : {"s0", "s1", "s2", "s3"}) expectLoad(kBytes / 2, kBytes / 2, linkOf(fewer, one, "cpu"));
}

TEST(LocalPlanOverNvLinks, LeavesPcieAloneWithoutANetwork) {
  Topology topology = machineOf({2, 2});
  linkAll(&topology);
  const LocalPlan plan = planLocally(topology, kBytes);
  EXPECT_EQ(kNvLinkWay, plan.chosen().name);
  for (size_t i = 0; i < topology.gpus.size() + topology.switches.size() + 1; ++i)
    expectLoad(0, 0, plan.chosen().links[i]);
  expectLoad(kBytes / 2, kBytes / 2, linkOf(plan.chosen(), "g0", "g1"));
}

TEST(LocalPlanOverNvLinks, GoesThroughOtherGpusWhereLinksLeadThere) {
  Topology topology = machineOf({2, 2});
  addNic(&topology, 1);
  topology.nvlinks = {{2, 3, 25e9}, {1, 2, 25e9}, {0, 1, 25e9}};
  const LocalWay way = wayNamed(planLocally(topology, kBytes), kNvLinkWay);
  EXPECT_TRUE(has(way.steps.front().what, "to g0"));
  expectLoad(kBytes, kBytes, linkOf(way, "g2", "g3"));
}

TEST(LocalPlanOverNvLinks, FallsBackToTheRulesForPcieWhereLinksAreMissing) {
  Topology topology = machineOf({4, 4});
  for (const size_t gpu : {0, 4})
    for (size_t other = gpu + 1; other < gpu + 4; ++other) topology.nvlinks.push_back({gpu, other, 25e9});
  const LocalPlan plan = planLocally(topology, kBytes);
  EXPECT_EQ(std::vector<std::string>{"NVLinks do not connect all GPUs, so the rules for PCIe hold"}, plan.notes);
  EXPECT_EQ(kCpuAssistedWay, plan.chosen().name);
}

// ---- any machine

double bandwidthFrom(Random& random) { return 1e9 * static_cast<double>(1 + pick(random, 40)); }

Topology drawnMachine(Random& random) {
  Topology topology;
  const size_t switches = 1 + pick(random, 4), gpus = 1 + pick(random, 9);
  for (size_t i = 0; i < switches; ++i) topology.switches.push_back({"s" + std::to_string(i), bandwidthFrom(random)});
  for (size_t i = 0; i < gpus; ++i)
    topology.gpus.push_back({"g" + std::to_string(i), pick(random, switches), bandwidthFrom(random)});
  for (size_t nics = pick(random, 4); nics > 0; --nics)
    addNic(&topology, pick(random, 3) == 0 ? std::nullopt : std::optional<size_t>(pick(random, switches)));
  if (pick(random, 2) == 0) topology.memory = bandwidthFrom(random);
  const uint64_t density = pick(random, 4);  // of NVLinks: none to all
  for (size_t second = 0; second < gpus; ++second)
    for (size_t first = 0; first < second; ++first)
      if (pick(random, 3) < density) topology.nvlinks.push_back({first, second, bandwidthFrom(random)});
  return topology;
}

TEST(LocalPlanOfAnyMachine, GivesEachGpuTheDataOfEachGpuOnce) {
  test::forSeeds(300, [](Random& random) {
    const Topology topology = drawnMachine(random);
    const uint64_t bytes = pick(random, 3) == 0 ? pick(random, 12) : pick(random, 100'000);
    for (const LocalWay& way : planLocally(topology, bytes).ways)
      EXPECT_EQ("", oracle::faultOf(topology, way, bytes)) << way.name;
  });
}

TEST(LocalPlanOfAnyMachine, MovesOverEachLinkWhatItsTransfersWalk) {
  test::forSeeds(60, [](Random& random) {
    const Topology topology = drawnMachine(random);
    const oracle::MachineGraph graph(topology);
    for (const LocalWay& way : planLocally(topology, 1 + pick(random, 100'000)).ways)
      EXPECT_EQ(graph.loadsOf(way), graph.plannedLoads(way)) << way.name;
  });
}

TEST(LocalPlanOfAnyMachine, TakesTheWayWhoseBusiestLinkEndsFirst) {
  test::forSeeds(300, [](Random& random) {
    const LocalPlan plan = planLocally(drawnMachine(random), kBytes);
    for (const LocalWay& way : plan.ways) {
      EXPECT_LE(plan.chosen().seconds(), way.seconds());
      for (const LinkLoad& link : way.links) {
        EXPECT_LE(link.seconds(), way.seconds());
        EXPECT_EQ(static_cast<double>(std::max(link.up, link.down)) / link.bandwidth, link.seconds());
      }
    }
    EXPECT_EQ(kRingWay, wayNamed(plan, kRingWay).name);
  });
}

TEST(LocalPlanOfAnyMachine, HoldsForNoBytesAndForTheMost) {
  Topology large = machineOf({32, 32});
  addNic(&large, 0);
  for (const uint64_t bytes : {uint64_t{0}, kMostLocalBytes}) {
    const LocalPlan plan = planLocally(large, bytes);
    expectLoad(2 * bytes, 2 * bytes, linkOf(wayNamed(plan, kCpuAssistedWay), "s0", "cpu"));
    EXPECT_FALSE(has(plan.why, "nan")) << plan.why;
  }
}

}  // namespace
}  // namespace treadle::summation::local_plan_test
