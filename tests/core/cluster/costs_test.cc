// The costs of a job's links as values: what counts as usable, how they are rounded and read.

#include "treadle/core/cluster/costs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "tests/support/seeds.h"
#include "treadle/core/base/error.h"
#include "treadle/core/cluster/host_costs.h"
#include "treadle/core/cluster/rendezvous_messages.h"

namespace treadle::cluster::costs_test {
namespace {

const Costs kSome{{12.5e-6, 7.5e9}, {80e-6, 1.1e9}, 3.25e-6, 48};

// Each number of the costs by itself.
std::vector<std::function<double&(Costs&)>> numbers() {
  return {[](Costs& costs) -> double& { return costs.sameHost.latency; },
          [](Costs& costs) -> double& { return costs.sameHost.bandwidth; },
          [](Costs& costs) -> double& { return costs.betweenHosts.latency; },
          [](Costs& costs) -> double& { return costs.betweenHosts.bandwidth; },
          [](Costs& costs) -> double& { return costs.message; }};
}

std::vector<double> impossible() {
  const double infinite = std::numeric_limits<double>::infinity();
  return {0, -0.0, -1e-6, infinite, -infinite, std::nan(""), 1e-13, 1e19};
}

TEST(Costs, areUsableWhenEachNumberIsWithinReason) {
  EXPECT_TRUE(isUsable({}));
  EXPECT_TRUE(isUsable(kSome));
  for (const auto& number : numbers())
    for (double value : impossible()) {
      Costs costs = kSome;
      number(costs) = value;
      EXPECT_FALSE(isUsable(costs)) << value;
    }
  Costs none = kSome;
  none.cores = 0;
  EXPECT_FALSE(isUsable(none));
}

TEST(Costs, travelWithTheRosterAndWithWhoIsPresent) {
  const Roster roster = {{{"ps", 0}, {"unix:a"}}, {{"trainer", 1}, {}}};
  EXPECT_EQ(kSome, parseRendezvous(encodeRoster(roster, kSome))->costs);
  EXPECT_EQ(2U, parseRendezvous(encodeRoster(roster, kSome))->roster.size());
  EXPECT_EQ(kSome, parseRendezvous(encodePresent({0, roster, kSome}))->present.costs);
}

TEST(Costs, thatAreNotUsableMakeTheMessageWrong) {
  for (const auto& number : numbers())
    for (double value : impossible()) {
      Costs costs = kSome;
      number(costs) = value;
      EXPECT_EQ(Code::kDataLoss, parseRendezvous(encodeRoster({{{"ps", 0}, {}}}, costs)).status().code()) << value;
      EXPECT_EQ(Code::kDataLoss, parseRendezvous(encodePresent({0, {{{"ps", 0}, {}}}, costs})).status().code());
    }
  Costs none = kSome;
  none.cores = 0;
  EXPECT_EQ(Code::kDataLoss, parseRendezvous(encodeRoster({}, none)).status().code());
}

TEST(Costs, areRoundedToQuartersOfAnOctave) {
  std::mt19937_64 random(test::seedOfRun());
  std::uniform_real_distribution<double> exponent(-30, 40);
  for (int i = 0; i < 1000; ++i)
    for (const auto& number : numbers()) {
      Costs costs = kSome;
      number(costs) = std::exp2(exponent(random));
      Costs once = rounded(costs);
      EXPECT_NEAR(std::log2(number(once)), std::log2(number(costs)), 0.125 + 1e-9);
      const double quarters = 4 * std::log2(number(once));
      EXPECT_NEAR(quarters, std::round(quarters), 1e-9);
      EXPECT_EQ(once, rounded(once));
    }
  EXPECT_EQ(48U, rounded(kSome).cores);
}

// 8% around a grid point: a noisy measurement is the same number.
TEST(Costs, thatDifferByNoiseAreOneAfterRounding) {
  for (double noise : {0.92, 0.97, 1.0, 1.03, 1.08}) {
    Costs costs;
    costs.sameHost.latency = std::exp2(-15.75) * noise;
    EXPECT_EQ(std::exp2(-15.75), rounded(costs).sameHost.latency);
  }
}

TEST(Costs, areDescribedAsOptionsOfTreadlePlan) {
  EXPECT_EQ(
      "--latency 12.5 --bandwidth 7500 --network-latency 80 --network-bandwidth 1100 --message-cost 3.25 --cores 48",
      describe(kSome));
}

TEST(Costs, areReadAsTheyAreDescribed) {
  for (const Costs& costs : {Costs(), kSome}) EXPECT_EQ(costs, valueOrThrow(parseCosts(describe(costs))));
  EXPECT_EQ(Costs(), valueOrThrow(parseCosts(" ")));
  const Costs one = valueOrThrow(parseCosts("--cores 7  --network-latency 33"));
  EXPECT_EQ(7U, one.cores);
  EXPECT_DOUBLE_EQ(33e-6, one.betweenHosts.latency);
  EXPECT_EQ(Costs().sameHost, one.sameHost);
  for (const char* text :
       {"latency 5", "--latency", "--latency x", "--latency 5us", "--latency 0", "--latency -1", "--latency inf",
        "--latency nan", "--cores 0", "--cores 1.5", "--speed 3", "--latency 5 6"}) {
    const Status why = parseCosts(text).status();
    EXPECT_EQ(Code::kInvalidArgument, why.code()) << text;
    EXPECT_NE(std::string::npos, why.message().find("is none of the costs, such as --latency 8")) << why.toString();
  }
}

TEST(HostCosts, haveTheCoresOfThisHost) {
  Costs expected;
  expected.cores = std::max(1U, std::thread::hardware_concurrency());
  EXPECT_EQ(expected, costsOfThisHost());
}

TEST(HostCosts, areThoseOfTheEnvironmentIfItHasAny) {
  EXPECT_FALSE(valueOrThrow(costsOfEnvironment()).has_value());
  ::setenv("TREADLE_COSTS", describe(kSome).c_str(), 1);
  EXPECT_EQ(kSome, valueOrThrow(costsOfEnvironment()).value());
  ::setenv("TREADLE_COSTS", "fast", 1);
  const Status why = costsOfEnvironment().status();
  ::unsetenv("TREADLE_COSTS");
  EXPECT_EQ(Code::kInvalidArgument, why.code());
  EXPECT_NE(std::string::npos, why.message().find("TREADLE_COSTS: 'fast ' is none of the costs")) << why.toString();
}

TEST(HostOf, isTheSameForWorkersOfOneHost) {
  const auto hostOf = [](std::vector<std::string> addresses) {
    return cluster::hostOf({{"w", 1}, std::move(addresses)});
  };
  EXPECT_EQ("", hostOf({"unix:a", "tcp://127.0.0.1:4000"}));
  EXPECT_EQ("", hostOf({"unix:a"}));
  EXPECT_EQ("", hostOf({"tcp://[::1]:4000"}));
  EXPECT_EQ("", hostOf({}));
  EXPECT_EQ("", hostOf({"nonsense"})) << "an address that nobody can dial";
  EXPECT_EQ(hostOf({"tcp://10.0.0.7:4000"}), hostOf({"unix:b", "tcp://10.0.0.7:4001"}));
  EXPECT_NE(hostOf({"tcp://10.0.0.7:4000"}), hostOf({"tcp://10.0.0.8:4000"}));
  EXPECT_NE(hostOf({"tcp://10.0.0.7:4000"}), hostOf({"unix:a"}));
}

}  // namespace
}  // namespace treadle::cluster::costs_test
