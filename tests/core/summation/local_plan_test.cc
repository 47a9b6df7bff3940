// The strategies to sum within a machine: closed forms, and an oracle over machines drawn at random.

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

// A switch for each count, with that many GPUs: s0 with g0, g1, ..., s1 with the GPUs that follow.
Topology machineOf(const std::vector<size_t>& gpusOfSwitches, double uplink = kUplink) {
  Topology topology;
  for (const size_t gpus : gpusOfSwitches) {
    const size_t index = topology.switches.size();
    topology.switches.push_back({"s" + std::to_string(index), uplink});
    for (size_t i = 0; i < gpus; ++i)
      topology.gpus.push_back({"g" + std::to_string(topology.gpus.size()), index, kGpuLink});
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

const LocalStrategy& strategyNamed(const LocalPlan& plan, const std::string& name) {
  const auto found = std::ranges::find(plan.strategies, name, &LocalStrategy::name);
  EXPECT_NE(plan.strategies.end(), found) << "no strategy " << name;
  return found == plan.strategies.end() ? plan.strategies.front() : *found;
}

std::vector<std::string> namesOf(const LocalPlan& plan) {
  std::vector<std::string> names;
  for (const LocalStrategy& one : plan.strategies) names.push_back(one.name);
  return names;
}

const LinkLoad& linkOf(const LocalStrategy& strategy, const std::string& first, const std::string& second) {
  const auto found = std::ranges::find_if(
      strategy.links, [&](const LinkLoad& link) { return link.first == first && link.second == second; });
  EXPECT_NE(strategy.links.end(), found) << first << " - " << second;
  return found == strategy.links.end() ? strategy.links.front() : *found;
}

void expectLoad(uint64_t up, uint64_t down, const LinkLoad& link) {
  EXPECT_EQ(up, link.up) << link.first << " to " << link.second;
  EXPECT_EQ(down, link.down) << link.second << " to " << link.first;
}

// ---- closed forms

// The paper has the ratio. The two bandwidths are ours, chosen so that the formula gives it.
TEST(LocalPlan, OfThePapersMachineTakes23Point7PercentLessThanTheRing) {
  const LocalPlan plan = planLocally(machineOf({4, 4}), kBytes);
  EXPECT_EQ(kCpuAssistedStrategy, plan.chosen().name);
  EXPECT_NEAR(1 - 0.237, plan.chosen().seconds() / strategyNamed(plan, kRingStrategy).seconds(), 0.0005);
  EXPECT_EQ("it takes 23.7% less time than the ring", plan.why);
}

TEST(LocalPlan, OfThePapersMachineTakesTheLargerOfSOverGAndFourSevenths) {
  for (const double share : {0.2, 0.5, 4.0 / 7, 0.6, 0.763, 0.9, 1.0}) {
    const LocalPlan plan = planLocally(machineOf({4, 4}, share * kGpuLink), kBytes);
    EXPECT_NEAR(std::max(share, 4.0 / 7),
                strategyNamed(plan, kCpuAssistedStrategy).seconds() / strategyNamed(plan, kRingStrategy).seconds(),
                1e-9)
        << share;
  }
}

TEST(LocalPlan, MovesTheBytesOfTheFormulas) {
  for (size_t l = 2; l <= 4; ++l) {
    for (size_t g = 1; g <= 5; ++g) {
      SCOPED_TRACE(std::to_string(l) + " switches with " + std::to_string(g) + " GPUs each");
      const LocalPlan plan = planLocally(machineOf(std::vector<size_t>(l, g)), kBytes);
      const LocalStrategy &assisted = strategyNamed(plan, kCpuAssistedStrategy),
                          &ring = strategyNamed(plan, kRingStrategy);
      const size_t n = l * g;
      const uint64_t ofGpu = (2 * g - 1) * kBytes / g, ofRing = 2 * (n - 1) * kBytes / n;
      expectLoad(ofGpu, ofGpu, linkOf(assisted, "g0", "s0"));
      expectLoad(kBytes, kBytes, linkOf(assisted, "s1", "cpu"));
      expectLoad(2 * l * kBytes, (l + 1) * kBytes, linkOf(assisted, "memory", "cpu"));
      expectLoad(ofRing, ofRing, linkOf(ring, "g0", "s0"));
      expectLoad(ofRing, ofRing, linkOf(ring, "s1", "cpu"));
      expectLoad(0, 0, linkOf(ring, "memory", "cpu"));
    }
  }
}

TEST(LocalPlan, DividesTheBytesAmongTheGpusOfEachSwitchAlone) {
  const LocalPlan plan = planLocally(machineOf({3, 1}), kBytes);
  const LocalStrategy& assisted = strategyNamed(plan, kCpuAssistedStrategy);
  expectLoad(5 * kBytes / 3, 5 * kBytes / 3, linkOf(assisted, "g2", "s0"));
  expectLoad(kBytes, kBytes, linkOf(assisted, "g3", "s1"));
  expectLoad(kBytes, kBytes, linkOf(assisted, "s0", "cpu"));
  expectLoad(kBytes, kBytes, linkOf(assisted, "s1", "cpu"));
}

TEST(LocalPlan, CountsEachDirectionOfALink) {
  Topology topology = machineOf({1, 1});
  topology.nvlinks = {{0, 1, 25e9}};
  LocalTransfer transfer{.from = {LocalPlace::Kind::kGpu, 0}, .to = {LocalPlace::Kind::kGpu, 1}, .end = 10};
  const LocalStrategy pcie{"", {}, loadsOf(topology, {{"", {transfer}}})};
  expectLoad(10, 0, linkOf(pcie, "s0", "cpu"));
  expectLoad(0, 10, linkOf(pcie, "g1", "s1"));
  transfer.nvlink = 0;
  expectLoad(10, 0, linkOf({"", {}, loadsOf(topology, {{"", {transfer}}})}, "g0", "g1"));
}

// ---- small machines

TEST(LocalPlan, OfOneSwitchHasTheRingOnly) {
  const LocalPlan plan = planLocally(machineOf({4, 0}), kBytes);
  EXPECT_EQ(std::vector<std::string>{kRingStrategy}, namesOf(plan));
  EXPECT_EQ("this machine has no other strategy", plan.why);
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
  EXPECT_EQ("one GPU only copies its data to the network and back", plan.why);
  expectLoad(kBytes, kBytes, linkOf(plan.chosen(), "g0", "s0"));
  expectLoad(kBytes, kBytes, linkOf(plan.chosen(), "n0", "cpu"));
}

TEST(LocalPlan, CountsMemoryOnlyWhereItsBandwidthIsGiven) {
  Topology slow = machineOf({4, 4});
  EXPECT_EQ("g0", planLocally(slow, kBytes).chosen().busiest().first);
  slow.memory = 1e9;
  const LocalPlan plan = planLocally(slow, kBytes);
  EXPECT_EQ(kRingStrategy, plan.chosen().name);
  EXPECT_EQ("no other strategy takes less time than the ring", plan.why);
  EXPECT_EQ("memory", strategyNamed(plan, kCpuAssistedStrategy).busiest().first);
}

// Each GPU is alone under its switch, so the ring and the CPU move M over each link.
TEST(LocalPlan, SaysHowLittleItGains) {
  Topology topology = machineOf({1, 1});
  EXPECT_EQ("it takes as long as the ring, and no other strategy takes less", planLocally(topology, kBytes).why);
  topology = machineOf({2, 2}, 0.9999 * kGpuLink);  // 3/2 M over each link; the CPU takes it off the uplinks
  EXPECT_EQ("it takes less time than the ring, by less than 0.1%", planLocally(topology, kBytes).why);
}

TEST(LocalPlan, HoldsForNoBytesAndForTheMost) {
  Topology large = machineOf({32, 32});
  addNic(&large, 0);
  for (const uint64_t bytes : {uint64_t{0}, kMostLocalBytes})
    expectLoad(2 * bytes, 2 * bytes,
               linkOf(strategyNamed(planLocally(large, bytes), kCpuAssistedStrategy), "s0", "cpu"));
  EXPECT_EQ("it takes as long as the ring, and no other strategy takes less", planLocally(large, 0).why);
}

// ---- NVLinks

TEST(LocalPlanOverNvLinks, ReducesToAGpuThatDoesNotShareTheNicsSwitch) {
  for (const size_t nic : {0, 1}) {
    Topology topology = machineOf({4, 4});
    addNic(&topology, nic);
    linkAll(&topology);
    const LocalPlan plan = planLocally(topology, kBytes);
    EXPECT_EQ(kNvLinkStrategy, plan.chosen().name);
    EXPECT_EQ(std::string("all GPUs reduce over NVLink to ") + (nic == 0 ? "g4" : "g0"),
              plan.chosen().steps.front().what);
    EXPECT_TRUE(plan.notes.empty());
    expectLoad(kBytes, kBytes, linkOf(plan.chosen(), "s0", "cpu"));
    expectLoad(kBytes, kBytes, linkOf(plan.chosen(), "s1", "cpu"));
    const LocalStrategy shared = nvLinkStrategy(topology, kBytes, {nic == 0 ? size_t{0} : 4});
    expectLoad(2 * kBytes, 2 * kBytes, linkOf(shared, nic == 0 ? "s0" : "s1", "cpu"));
    EXPECT_DOUBLE_EQ(2, shared.seconds() / plan.chosen().seconds());
  }
}

TEST(LocalPlanOverNvLinks, SharesTheSwitchWhereThereIsNoOther) {
  Topology topology = machineOf({4});
  addNic(&topology, 0);
  linkAll(&topology);
  const LocalPlan plan = planLocally(topology, kBytes);
  EXPECT_EQ(std::vector<std::string>{"with nvlink, g0 gathers the sum although it shares the switch s0 with the NIC: "
                                     "no other GPU is faster"},
            plan.notes);
}

// g1 is under another switch than the NIC, but has a slow NVLink to g0.
TEST(LocalPlanOverNvLinks, AvoidsARootWithASlowNvLink) {
  Topology topology = machineOf({1, 2, 0});
  topology.gpus.push_back({"g3", 0, kGpuLink});
  addNic(&topology, 0);
  topology.nvlinks = {{0, 1, 1e9}, {0, 2, 50e9}, {1, 2, 50e9}, {3, 2, 50e9}};
  const LocalPlan plan = planLocally(topology, 1'000'000);
  EXPECT_EQ(kNvLinkStrategy, plan.chosen().name);
  EXPECT_EQ("all GPUs reduce over NVLink to g2", plan.chosen().steps.front().what);
  EXPECT_DOUBLE_EQ(1e-4, plan.chosen().seconds());
}

// The uplink of the other switch is slow, and so is an NVLink of the first GPU.
TEST(LocalPlanOverNvLinks, TakesTheFastestRootUnderTheNicsSwitch) {
  Topology topology = machineOf({2, 1});
  topology.switches[0].uplink = 40e9;
  topology.switches[1].uplink = 5e9;
  addNic(&topology, 0);
  topology.nics[0].link = Topology::kUnlimited;
  topology.nvlinks = {{0, 2, 2e9}, {1, 2, 50e9}, {1, 0, 50e9}};
  const LocalPlan plan = planLocally(topology, 1'000'000);
  EXPECT_EQ("all GPUs reduce over NVLink to g1", plan.chosen().steps.front().what);
  EXPECT_DOUBLE_EQ(1e6 / kGpuLink, plan.chosen().seconds());
  EXPECT_EQ(1U, plan.notes.size());
}

// The NIC is slow, so all roots take the same time.
TEST(LocalPlanOverNvLinks, LeavesTheNicsSwitchAloneWhereThatCostsNothing) {
  Topology topology = machineOf({1, 1});
  addNic(&topology, 0);
  topology.nics[0].link = 1e9;
  linkAll(&topology);
  EXPECT_EQ("all GPUs reduce over NVLink to g1", planLocally(topology, kBytes).strategies[0].steps.front().what);
}

TEST(LocalPlanOverNvLinks, GivesEachOfSeveralNicsAnEqualPartAndAGpuWhereTheUplinksAreFree) {
  Topology topology = machineOf({2, 2, 2, 2});
  for (size_t nic = 0; nic < 4; ++nic) addNic(&topology, nic);
  linkAll(&topology);
  const LocalStrategy four = strategyNamed(planLocally(topology, kBytes), kNvLinkStrategy);
  for (const std::string one : {"s0", "s1", "s2", "s3"}) expectLoad(kBytes / 2, kBytes / 2, linkOf(four, one, "cpu"));
  for (const std::string one : {"n0", "n1", "n2", "n3"})
    expectLoad(kBytes / 4, kBytes / 4, linkOf(four, one, "s" + one.substr(1)));
  topology.nics.resize(2);
  const LocalStrategy two = strategyNamed(planLocally(topology, kBytes), kNvLinkStrategy);
  for (const std::string one : {"s0", "s1", "s2", "s3"}) expectLoad(kBytes / 2, kBytes / 2, linkOf(two, one, "cpu"));
}

TEST(LocalPlanOverNvLinks, LeavesPcieAloneWithoutANetwork) {
  Topology topology = machineOf({2, 2});
  linkAll(&topology);
  const LocalPlan plan = planLocally(topology, kBytes);
  EXPECT_EQ(kNvLinkStrategy, plan.chosen().name);
  for (size_t i = 0; i < topology.gpus.size() + topology.switches.size() + 1; ++i)
    expectLoad(0, 0, plan.chosen().links[i]);
  expectLoad(kBytes / 2, kBytes / 2, linkOf(plan.chosen(), "g0", "g1"));
}

TEST(LocalPlanOverNvLinks, PassesOtherGpusWhereNoDirectLinkExists) {
  Topology topology = machineOf({2, 2});
  addNic(&topology, 1);
  topology.nvlinks = {{2, 3, 25e9}, {1, 2, 25e9}, {0, 1, 25e9}};
  const LocalStrategy strategy = strategyNamed(planLocally(topology, kBytes), kNvLinkStrategy);
  EXPECT_EQ("all GPUs reduce over NVLink to g0", strategy.steps.front().what);
  expectLoad(kBytes, kBytes, linkOf(strategy, "g2", "g3"));
}

TEST(LocalPlanOverNvLinks, UsesNoneWhereLinksAreMissing) {
  Topology topology = machineOf({4, 4});
  for (const size_t gpu : {0, 4})
    for (size_t other = gpu + 1; other < gpu + 4; ++other) topology.nvlinks.push_back({gpu, other, 25e9});
  const LocalPlan plan = planLocally(topology, kBytes);
  EXPECT_EQ(std::vector<std::string>{"NVLinks do not connect all GPUs, so the plan uses none of them"}, plan.notes);
  EXPECT_EQ((std::vector<std::string>{kCpuAssistedStrategy, kRingStrategy}), namesOf(plan));
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
    for (const LocalStrategy& one : planLocally(topology, bytes).strategies)
      EXPECT_EQ("", oracle::faultOf(topology, one, bytes)) << one.name;
  });
}

TEST(LocalPlanOfAnyMachine, CountsTheLinksThatItsTransfersCross) {
  test::forSeeds(60, [](Random& random) {
    const Topology topology = drawnMachine(random);
    const oracle::MachineGraph graph(topology);
    for (const LocalStrategy& one : planLocally(topology, 1 + pick(random, 100'000)).strategies)
      EXPECT_EQ(graph.loadsOf(one), graph.plannedLoads(one)) << one.name;
  });
}

TEST(LocalPlanOfAnyMachine, GathersOnTheFastestGpu) {
  test::forSeeds(300, [](Random& random) {
    Topology topology = drawnMachine(random);
    if (topology.nics.empty()) addNic(&topology, {});
    topology.nics.resize(1);
    const LocalPlan plan = planLocally(topology, kBytes);
    const auto names = namesOf(plan);
    if (!std::ranges::count(names, kNvLinkStrategy)) return;
    for (size_t root = 0; root < topology.gpus.size(); ++root)
      EXPECT_LE(strategyNamed(plan, kNvLinkStrategy).seconds(), nvLinkStrategy(topology, kBytes, {root}).seconds())
          << root;
  });
}

}  // namespace
}  // namespace treadle::summation::local_plan_test
