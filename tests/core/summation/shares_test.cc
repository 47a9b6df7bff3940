// The shares of a summation service against the paper's equations, and against shares drawn at random: none takes less
// time.

#include "treadle/core/summation/shares.h"

#include <algorithm>
#include <functional>

#include "tests/support/seeds.h"

namespace treadle::summation::shares_test {
namespace {

using test::pick;
using test::Random;

constexpr double kBytes = 64e6, kBandwidth = 25e6;

// Equal machines: each pair (n, k) of the paper's Figure 12, and others.
void forEachPair(const std::function<void(double n, double k, const Bandwidths&)>& check) {
  for (size_t workers = 2; workers <= 9; ++workers) {
    for (size_t servers = 0; servers <= workers; ++servers) {
      SCOPED_TRACE(std::to_string(workers) + " workers, " + std::to_string(servers) + " servers");
      check(static_cast<double>(workers), static_cast<double>(servers), Bandwidths::even(workers, servers, kBandwidth));
    }
  }
}

TEST(Shares, areThoseOfThePapersEquationsForEqualMachines) {
  forEachPair([](double n, double k, const Bandwidths& bandwidths) {
    const Shares shares = bestShares(bandwidths);
    const double all = n * n + k * n - 2 * k;
    for (double one : shares.workers) EXPECT_NEAR((n - k) / all, one, 1e-12);
    for (double one : shares.servers) EXPECT_NEAR(2 * (n - 1) / all, one, 1e-12);
    EXPECT_NEAR(2 * n * (n - 1) * kBytes / (all * kBandwidth), leastSeconds(bandwidths, kBytes), 1e-9);
  });
}

TEST(Shares, keepAllEqualMachinesBusyToTheEnd) {
  forEachPair([](double n, double, const Bandwidths& bandwidths) {
    if (n == 2) return;  // its workers move the same whatever they sum
    const PerMachine moved = traffic(bestShares(bandwidths), kBytes);
    const double all = leastSeconds(bandwidths, kBytes) * kBandwidth;
    for (double one : moved.workers) EXPECT_NEAR(all, one, 1e-3);
    for (double one : moved.servers) EXPECT_NEAR(all, one, 1e-3);
  });
}

TEST(Shares, gainNothingForTwoWorkers) {
  for (size_t servers : {0, 1, 2, 5}) {
    const Bandwidths two = Bandwidths::even(2, servers, kBandwidth);
    EXPECT_DOUBLE_EQ(kBytes / kBandwidth, leastSeconds(two, kBytes));
    EXPECT_DOUBLE_EQ(ringSeconds(two, kBytes), leastSeconds(two, kBytes));
  }
}

TEST(Shares, withoutServersTakeAsLongAsARing) {
  for (size_t workers = 2; workers <= 16; ++workers) {
    const Bandwidths alone = Bandwidths::even(workers, 0, kBandwidth);
    EXPECT_DOUBLE_EQ(ringSeconds(alone, kBytes), leastSeconds(alone, kBytes)) << workers;
  }
}

// The paper's section 3: by (n^2 + k n - 2 k) / n^2, at most twice.
TEST(Shares, gainOverARingWhatThePaperStates) {
  forEachPair([](double n, double k, const Bandwidths& bandwidths) {
    EXPECT_NEAR((n * n + k * n - 2 * k) / (n * n), ringSeconds(bandwidths, 1) / leastSeconds(bandwidths, 1), 1e-12);
  });
}

TEST(Shares, leaveNothingToWorkersWhereServersAreEnough) {
  for (size_t servers : {4, 5, 9}) {
    const Bandwidths many = Bandwidths::even(4, servers, kBandwidth);
    for (double one : bestShares(many).workers) EXPECT_NEAR(0, one, 1e-12);
    EXPECT_DOUBLE_EQ(kBytes / kBandwidth, leastSeconds(many, kBytes)) << "a worker sends its data once";
  }
}

TEST(Shares, ofAWorkerAloneAreItsOwnAndMoveNothing) {
  const Bandwidths alone = Bandwidths::even(1, 2, kBandwidth);
  EXPECT_EQ(std::vector<double>{1}, bestShares(alone).workers);
  EXPECT_EQ(0, seconds(bestShares(alone), alone, kBytes));
  EXPECT_EQ(0, leastSeconds(alone, kBytes));
  EXPECT_EQ(0, ringSeconds(alone, kBytes));
}

// The paper's Table 1.
TEST(Shares, ofParameterServersTakeAsLongAsTheSlowerSide) {
  for (size_t servers = 1; servers <= 6; ++servers) {
    const Bandwidths bandwidths = Bandwidths::even(4, servers, kBandwidth);
    const double expected = std::max(kBytes / kBandwidth, 4 * kBytes / (static_cast<double>(servers) * kBandwidth));
    EXPECT_NEAR(expected, seconds(serverShares(bandwidths), bandwidths, kBytes), 1e-9) << servers;
  }
}

// ---- machines that differ

double between(Random& random, double low, double high) {
  return low + (high - low) * static_cast<double>(pick(random, 1'000'001)) / 1e6;
}

std::vector<double> drawn(Random& random, size_t count, double low, double high) {
  std::vector<double> numbers(count);
  for (double& one : numbers) one = between(random, low, high);
  return numbers;
}

Bandwidths drawnBandwidths(Random& random) {
  const double low = kBandwidth / between(random, 1, 20);
  return {drawn(random, 1 + pick(random, 9), low, kBandwidth), drawn(random, pick(random, 10), low, kBandwidth)};
}

void divide(std::vector<double>* numbers, double by) {
  for (double& one : *numbers) one /= by;
}

Shares drawnShares(Random& random, const Bandwidths& bandwidths) {
  Shares shares{drawn(random, bandwidths.workers.size(), 0, 1), drawn(random, bandwidths.servers.size(), 0, 1)};
  shares.workers[0] += 1e-9;
  const double all = shares.sum();
  divide(&shares.workers, all);
  divide(&shares.servers, all);
  return shares;
}

TEST(SharesOfUnequalMachines, addUpToOneAndTakeTheLeastTime) {
  test::forSeeds(300, [](Random& random) {
    const Bandwidths bandwidths = drawnBandwidths(random);
    const Shares best = bestShares(bandwidths);
    const double least = leastSeconds(bandwidths, kBytes);
    EXPECT_NEAR(1, best.sum(), 1e-12);
    for (double one : best.workers) EXPECT_GE(one, 0);
    for (double one : best.servers) EXPECT_GE(one, 0);
    EXPECT_NEAR(least, seconds(best, bandwidths, kBytes), 1e-9 * least);
    for (int tries = 0; tries < 50; ++tries)
      EXPECT_GE(seconds(drawnShares(random, bandwidths), bandwidths, kBytes), least * (1 - 1e-9));
  });
}

// From the best shares, no move of a little from one machine to another takes less.
TEST(SharesOfUnequalMachines, cannotBeImprovedByMovingALittle) {
  test::forSeeds(100, [](Random& random) {
    const Bandwidths bandwidths = drawnBandwidths(random);
    const double least = leastSeconds(bandwidths, kBytes);
    for (int tries = 0; tries < 50; ++tries) {
      Shares moved = bestShares(bandwidths);
      const auto at = [&](size_t machine) -> double& {
        return machine < moved.workers.size() ? moved.workers[machine] : moved.servers[machine - moved.workers.size()];
      };
      const size_t machines = moved.workers.size() + moved.servers.size();
      double &from = at(pick(random, machines)), &to = at(pick(random, machines));
      const double amount = from * between(random, 0, 0.1);
      from -= amount;
      to += amount;
      EXPECT_GE(seconds(moved, bandwidths, kBytes), least * (1 - 1e-9));
    }
  });
}

TEST(SharesOfUnequalMachines, waitForTheSlowestWorkerWhichMustMoveItsOwnData) {
  const Bandwidths slow{{kBandwidth, kBandwidth, kBandwidth / 10}, {kBandwidth, kBandwidth}};
  EXPECT_DOUBLE_EQ(10 * kBytes / kBandwidth, leastSeconds(slow, kBytes));
  EXPECT_NEAR(0, bestShares(slow).workers[2], 1e-12);
}

// Those of the machines that are left, in their places.
TEST(SharesWithoutLostServers, areThoseOfTheOthers) {
  const Shares without =
      serviceSharesWithout({{1, 2, 3}, {4, 5, 6, 7}}, false, {false, false, false, true, false, true, false});
  const Shares others = bestShares({{1, 2, 3}, {5, 7}});
  EXPECT_EQ(others.workers, without.workers);
  EXPECT_EQ((std::vector<double>{0, others.servers[0], 0, others.servers[1]}), without.servers);
  const Shares alone = serviceSharesWithout(Bandwidths::even(2, 1, 1), false, {false, false, true});
  EXPECT_EQ((std::vector<double>{0.5, 0.5}), alone.workers);
  EXPECT_EQ(std::vector<double>{0}, alone.servers);
}

TEST(SharesOfAsynchronousServices, areOnServersAsLongAsThereAreSome) {
  const Bandwidths bandwidths{{1, 2}, {1, 3, 4}};
  EXPECT_EQ((std::vector<double>{0, 0}), serviceShares(bandwidths, true).workers);
  const Shares some = serviceSharesWithout(bandwidths, true, {false, false, false, false, true});
  EXPECT_EQ((std::vector<double>{0, 0}), some.workers);
  EXPECT_EQ((std::vector<double>{0.25, 0.75, 0}), some.servers);
  const Shares none = serviceSharesWithout(bandwidths, true, {false, false, true, true, true});
  EXPECT_EQ(bestShares({{1, 2}, {}}).workers, none.workers);
}

}  // namespace
}  // namespace treadle::summation::shares_test
