// Parts of tensors on machines: each byte once, each machine its share, and the same result everywhere.

#include "treadle/core/summation/part_placement.h"

#include "tests/support/seeds.h"

namespace treadle::summation::part_placement_test {
namespace {

using test::pick;
using test::Random;

using Sizes = std::vector<uint64_t>;

Shares evenShares(size_t workers, size_t servers) { return bestShares(Bandwidths::even(workers, servers, 1)); }

// Parts follow each other in the order of tensors and bytes, and leave out nothing.
void expectCovers(const std::vector<Part>& parts, const Sizes& tensors) {
  size_t next = 0;
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    uint64_t covered = 0;
    for (; next < parts.size() && parts[next].tensor == tensor; ++next) {
      EXPECT_EQ(covered, parts[next].begin);
      EXPECT_GT(parts[next].bytes(), 0u);
      covered = parts[next].end;
    }
    EXPECT_EQ(tensors[tensor], covered) << "tensor " << tensor;
  }
  EXPECT_EQ(parts.size(), next);
}

std::vector<double> bytesOf(const std::vector<Part>& parts, size_t machines) {
  std::vector<double> bytes(machines, 0);
  for (const Part& part : parts) bytes.at(part.machine) += static_cast<double>(part.bytes());
  return bytes;
}

Sizes drawnTensors(Random& random) {
  Sizes tensors(1 + pick(random, 60));
  for (uint64_t& bytes : tensors) bytes = 4 * pick(random, uint64_t{1} << (2 + pick(random, 22)));
  tensors[0] += 4;
  return tensors;
}

Bandwidths drawnBandwidths(Random& random) {
  Bandwidths drawn{std::vector<double>(1 + pick(random, 9)), std::vector<double>(pick(random, 10))};
  for (double& one : drawn.workers) one = static_cast<double>(1 + pick(random, 10));
  for (double& one : drawn.servers) one = static_cast<double>(1 + pick(random, 10));
  return drawn;
}

double shareOf(const Shares& shares, Machine machine) {
  const size_t workers = shares.workers.size();
  return machine < workers ? shares.workers[machine] : shares.servers[machine - workers];
}

TEST(PlaceInOrder, GivesEachByteToOneMachine) {
  test::forSeeds(300, [](Random& random) {
    const Sizes tensors = drawnTensors(random);
    const Shares shares = bestShares(drawnBandwidths(random));
    const std::vector<Part> parts = placeInOrder(tensors, shares);
    expectCovers(parts, tensors);
    for (const Part& part : parts) {
      EXPECT_LE(part.bytes(), kMostPartBytes);
      EXPECT_EQ(0u, part.begin % kCutAlignment);
    }
    EXPECT_EQ(parts, placeInOrder(tensors, shares));
  });
}

// Gradients come one after the other, and each of them is to keep all machines busy.
TEST(PlaceInOrder, GivesNoMachineMuchMoreThanItsShareOfTheFirstTensorsHoweverMany) {
  test::forSeeds(300, [](Random& random) {
    const Sizes tensors = drawnTensors(random);
    const Shares shares = bestShares(drawnBandwidths(random));
    std::vector<double> bytes(shares.workers.size() + shares.servers.size());
    double all = 0;
    const std::vector<Part> parts = placeInOrder(tensors, shares);
    for (auto part = parts.begin(); part != parts.end();) {
      const size_t tensor = part->tensor;
      for (; part != parts.end() && part->tensor == tensor; ++part) {
        bytes[part->machine] += static_cast<double>(part->bytes());
        all += static_cast<double>(part->bytes());
      }
      for (Machine machine = 0; machine < bytes.size(); ++machine)
        EXPECT_LE(bytes[machine], shareOf(shares, machine) * all + 2 * kLeastPartBytes)
            << "machine " << machine << " after tensor " << tensor;
    }
  });
}

TEST(PlaceInOrder, CutsNoSmallTensor) {
  const Sizes tensors(24, 2 * kLeastPartBytes - 4);
  EXPECT_EQ(24u, placeInOrder(tensors, evenShares(4, 0)).size());
  EXPECT_EQ(24u, placeInOrder(tensors, evenShares(2, 2)).size());
}

TEST(PlaceInOrder, CutsALargeTensorOnceForEachMachineAndOnceForEachLargestPart) {
  const Sizes tensors(16, uint64_t{16} << 20);
  for (size_t servers = 0; servers <= 8; ++servers)
    EXPECT_LE(placeInOrder(tensors, evenShares(8, servers)).size(), 16 * (4 + 8 + servers)) << servers;
}

TEST(PlaceInOrder, LeavesOutEmptyTensors) {
  const std::vector<Part> parts = placeInOrder({0, 100, 0}, evenShares(2, 0));
  EXPECT_EQ((std::vector<Part>{{1, 0, 100, 0}}), parts);
  EXPECT_TRUE(placeInOrder({}, evenShares(2, 0)).empty());
}

// Every pair that is measured in a shaped network takes the least time within 0.3%.
TEST(PlaceInOrder, TakesTheLeastTimeForOneLargeTensorOnAllMachines) {
  for (size_t workers = 3; workers <= 8; ++workers) {
    for (size_t servers = 0; servers <= workers; ++servers) {
      const Bandwidths bandwidths = Bandwidths::even(workers, servers, 1);
      const std::vector<Part> parts = placeInOrder({32'000'000}, bestShares(bandwidths));
      EXPECT_LE(seconds(sharesOf(parts, workers, servers), bandwidths, 1), 1.003 * leastSeconds(bandwidths, 1))
          << workers << " workers, " << servers << " servers";
    }
  }
}

// ---- by hash

TEST(PlaceByHash, givesEachByteToOneMachineInPartsOf4096000Bytes) {
  const Sizes tensors = {10'000'000, 4, 0, 4'096'000};
  const std::vector<Part> parts = *placeByHash(tensors, 4, 2);
  expectCovers(parts, tensors);
  EXPECT_EQ(5u, parts.size());
  for (const Part& part : parts) EXPECT_LT(part.machine, 6u);
}

// djb2("0") = 5381 * 33 + 48 is 63 modulo 101, not below 101 * 12 / 20, the share of 2 servers among 4 workers: so a
// worker sums it, and djb2("63") = 5861742 is 2 modulo 4. The next tensor's key is 1 << 16, djb2 of it 34 modulo 101: a
// server, and djb2("34") = 5861644 is even.
TEST(PlaceByHash, goesByTheHashOfTheKeysDigits) {
  const std::vector<Part> parts = *placeByHash({4, 4}, 4, 2);
  EXPECT_EQ(2u, parts[0].machine);
  EXPECT_EQ(4u, parts[1].machine);
}

TEST(PlaceByHash, isUndefinedForMoreServersThanWorkersOrMoreThan101Machines) {
  EXPECT_FALSE(placeByHash({4}, 2, 3));
  EXPECT_FALSE(placeByHash({4}, 60, 42));
  EXPECT_TRUE(placeByHash({4}, 60, 41));
  EXPECT_TRUE(placeByHash({4}, 2, 0));
}

TEST(SharesOf, areWhatEachMachineHasOfAllBytes) {
  const Shares shares = sharesOf({{0, 0, 30, 0}, {0, 30, 60, 2}, {1, 0, 40, 2}}, 2, 1);
  EXPECT_EQ((std::vector<double>{0.3, 0}), shares.workers);
  EXPECT_DOUBLE_EQ(0.7, shares.servers[0]);
}

// Servers are lost one after the other. What moves goes to machines that are left, and to none that has its share.
TEST(PlaceAnew, givesThePartsOfALostMachineToThoseThatLackMost) {
  test::forSeeds(200, [](Random& random) {
    const Bandwidths bandwidths = drawnBandwidths(random);
    const size_t workers = bandwidths.workers.size(), machines = workers + bandwidths.servers.size();
    const bool isAsynchronous = pick(random, 2) == 0;
    std::vector<Part> parts = placeInOrder(drawnTensors(random), serviceShares(bandwidths, isAsynchronous));
    const std::vector<Part> before = parts;
    std::vector<bool> isLost(machines);
    for (Machine lost = workers; lost < machines; ++lost) {
      isLost[lost] = true;
      const Shares shares = serviceSharesWithout(bandwidths, isAsynchronous, isLost);
      const std::vector<Machine> places = placeAnew(parts, lost, shares, isLost);
      double all = 0, largest = 0;
      size_t next = 0;
      std::vector<bool> hasMore(machines);
      for (Part& part : parts) {
        all += static_cast<double>(part.bytes());
        if (part.machine != lost) continue;
        ASSERT_LT(next, places.size());
        part.machine = places[next++];
        largest = std::max(largest, static_cast<double>(part.bytes()));
        EXPECT_FALSE(isLost[part.machine]);
        hasMore[part.machine] = true;
      }
      EXPECT_EQ(next, places.size());
      const std::vector<double> bytes = bytesOf(parts, machines);
      for (Machine one = 0; one < machines; ++one) {
        if (hasMore[one]) {
          EXPECT_LE(bytes[one], shareOf(shares, one) * all + largest + 1) << "machine " << one;
        }
      }
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      if (before[i].machine < workers) {
        EXPECT_EQ(before[i].machine, parts[i].machine) << "it had no reason to move";
      }
    }
  });
}

}  // namespace
}  // namespace treadle::summation::part_placement_test
