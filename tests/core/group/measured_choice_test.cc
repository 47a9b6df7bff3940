// The algorithms that are chosen, against those that were measured as the fastest ones.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "treadle/core/group/choice.h"

namespace treadle::group::measured_choice_test {
namespace {

// Measured on the machine of docs/benchmarks.md, which has two cores, partly beside a compiler: microseconds of an
// operation by each algorithm in the order of their numbers, the least of three medians; 0 where it cannot. The bytes
// are those of all blocks.
struct Measured {
  int members;
  uint64_t bytes;
  std::array<double, 6> micros;
  OperationKind operation = OperationKind::kAllReduce;
};

constexpr Measured kMeasured[] = {
    // clang-format off
    {2, 400, {26, 0, 54, 64, 63, 64}},
    {2, 4096, {28, 0, 56, 69, 66, 68}},
    {2, 16384, {33, 0, 70, 88, 84, 83}},
    {2, 65536, {38, 0, 68, 78, 74, 78}},
    {2, 262144, {0, 0, 105, 111, 105, 113}},
    {2, 1048576, {0, 0, 256, 211, 202, 231}},
    {2, 10485760, {0, 0, 2129, 1832, 1819, 2258}},
    {2, 104857600, {0, 0, 17980, 16819, 15010, 16801}},
    {4, 400, {92, 0, 152, 265, 214, 223}},
    {4, 4096, {93, 0, 150, 256, 219, 219}},
    {4, 16384, {126, 0, 179, 331, 273, 272}},
    {4, 65536, {170, 0, 209, 338, 279, 293}},
    {4, 262144, {0, 0, 302, 434, 377, 387}},
    {4, 1048576, {0, 0, 685, 711, 680, 723}},
    {4, 10485760, {0, 0, 7394, 5627, 6577, 6350}},
    {4, 104857600, {0, 0, 58386, 48691, 46803, 51113}},
    {8, 400, {301, 0, 331, 916, 639, 844}},
    {8, 4096, {379, 0, 384, 1005, 694, 947}},
    {8, 16384, {511, 0, 485, 1236, 859, 1167}},
    {8, 65536, {1146, 0, 706, 1458, 1132, 1511}},
    {8, 262144, {0, 0, 1025, 1374, 1042, 1325}},
    {8, 1048576, {0, 0, 3827, 2650, 2239, 2590}},
    {8, 10485760, {0, 0, 36419, 19020, 19990, 22935}},
    {8, 104857600, {0, 0, 302737, 168799, 148773, 193428}},
    {64, 400, {0, 2798, 4822, 60094, 13882, 72897}},
    {64, 4096, {0, 4198, 5758, 64581, 16582, 84718}},
    {64, 16384, {0, 5922, 7090, 73793, 19642, 91071}},
    {64, 65536, {0, 6112, 8864, 75390, 23684, 92960}},
    {64, 262144, {0, 0, 15062, 97817, 32418, 114944}},
    {64, 1048576, {0, 0, 51691, 124002, 47666, 152402}},
    {64, 10485760, {0, 0, 419058, 307517, 272879, 422080}},
    {64, 104857600, {0, 0, 4373877, 3585475, 3151352, 5502810}},
    {4, 262144, {0, 0, 0, 0, 292, 287}, OperationKind::kAllGather},
    {4, 1048576, {0, 0, 0, 0, 609, 598}, OperationKind::kAllGather},
    {4, 10485760, {0, 0, 0, 0, 5861, 5649}, OperationKind::kAllGather},
    {8, 262144, {0, 0, 0, 0, 868, 864}, OperationKind::kAllGather},
    {8, 1048576, {0, 0, 0, 0, 1582, 1425}, OperationKind::kAllGather},
    {8, 10485760, {0, 0, 0, 0, 13828, 13976}, OperationKind::kAllGather},
    {16, 262144, {0, 0, 0, 0, 2999, 3517}, OperationKind::kAllGather},
    {16, 1048576, {0, 0, 0, 0, 5119, 4839}, OperationKind::kAllGather},
    {16, 10485760, {0, 0, 0, 0, 31983, 31071}, OperationKind::kAllGather},
    {20, 4096, {0, 0, 0, 0, 1334, 2513}, OperationKind::kAllGather},
    {20, 65536, {0, 0, 0, 0, 1520, 2629}, OperationKind::kAllGather},
    {20, 262144, {0, 0, 0, 0, 1812, 2964}, OperationKind::kAllGather},
    {20, 1048576, {0, 0, 0, 0, 4591, 5326}, OperationKind::kAllGather},
    {20, 10485760, {0, 0, 0, 0, 39227, 39632}, OperationKind::kAllGather},
    {32, 4096, {0, 0, 0, 0, 2247, 5902}, OperationKind::kAllGather},
    {32, 65536, {0, 0, 0, 0, 2470, 6256}, OperationKind::kAllGather},
    {32, 262144, {0, 0, 0, 0, 3147, 7608}, OperationKind::kAllGather},
    {32, 1048576, {0, 0, 0, 0, 8653, 11234}, OperationKind::kAllGather},
    {32, 10485760, {0, 0, 0, 0, 72267, 76288}, OperationKind::kAllGather},
    {64, 4096, {0, 0, 0, 0, 5279, 28873}, OperationKind::kAllGather},
    {64, 65536, {0, 0, 0, 0, 5943, 32122}, OperationKind::kAllGather},
    {64, 262144, {0, 0, 0, 0, 8638, 35994}, OperationKind::kAllGather},
    {64, 1048576, {0, 0, 0, 0, 21908, 44434}, OperationKind::kAllGather},
    {64, 10485760, {0, 0, 0, 0, 176444, 148109}, OperationKind::kAllGather},
    {4, 262144, {0, 0, 0, 0, 331, 337}, OperationKind::kReduceScatter},
    {4, 1048576, {0, 0, 0, 0, 1564, 754}, OperationKind::kReduceScatter},
    {4, 10485760, {0, 0, 0, 0, 12756, 6286}, OperationKind::kReduceScatter},
    {8, 262144, {0, 0, 0, 0, 926, 953}, OperationKind::kReduceScatter},
    {8, 1048576, {0, 0, 0, 0, 2110, 1920}, OperationKind::kReduceScatter},
    {8, 10485760, {0, 0, 0, 0, 24101, 15521}, OperationKind::kReduceScatter},
    {16, 262144, {0, 0, 0, 0, 3159, 3553}, OperationKind::kReduceScatter},
    {16, 1048576, {0, 0, 0, 0, 5861, 6636}, OperationKind::kReduceScatter},
    {16, 10485760, {0, 0, 0, 0, 41042, 45101}, OperationKind::kReduceScatter},
    {20, 4096, {0, 0, 0, 0, 1428, 2677}, OperationKind::kReduceScatter},
    {20, 65536, {0, 0, 0, 0, 1580, 2642}, OperationKind::kReduceScatter},
    {20, 262144, {0, 0, 0, 0, 1994, 3433}, OperationKind::kReduceScatter},
    {20, 1048576, {0, 0, 0, 0, 5678, 6969}, OperationKind::kReduceScatter},
    {20, 10485760, {0, 0, 0, 0, 47146, 56326}, OperationKind::kReduceScatter},
    {32, 4096, {0, 0, 0, 0, 2243, 5954}, OperationKind::kReduceScatter},
    {32, 65536, {0, 0, 0, 0, 2481, 6365}, OperationKind::kReduceScatter},
    {32, 262144, {0, 0, 0, 0, 3665, 8697}, OperationKind::kReduceScatter},
    {32, 1048576, {0, 0, 0, 0, 9368, 14898}, OperationKind::kReduceScatter},
    {32, 10485760, {0, 0, 0, 0, 124762, 107695}, OperationKind::kReduceScatter},
    {64, 4096, {0, 0, 0, 0, 5450, 30115}, OperationKind::kReduceScatter},
    {64, 65536, {0, 0, 0, 0, 6532, 32243}, OperationKind::kReduceScatter},
    {64, 262144, {0, 0, 0, 0, 9541, 38875}, OperationKind::kReduceScatter},
    {64, 1048576, {0, 0, 0, 0, 23408, 51560}, OperationKind::kReduceScatter},
    {64, 10485760, {0, 0, 0, 0, 209478, 209346}, OperationKind::kReduceScatter},
    // clang-format on
};

double microsOf(Algorithm algorithm, const Measured& row) { return row.micros.at(static_cast<size_t>(algorithm) - 1); }

double fastestOf(const Measured& row) {
  double fastest = std::numeric_limits<double>::infinity();
  for (double micros : row.micros)
    if (micros > 0) fastest = std::min(fastest, micros);
  return fastest;
}

void expectGoodChoices(const cluster::Costs& costs) {
  for (const Measured& row : kMeasured) {
    const Description what{row.operation, DataType::kFloat32, ReduceOp::kSum, 0, row.bytes / sizeof(float), 0, 65'536,
                           262'144};
    const Algorithm chosen = *choose({}, what, {Placement::onOneHost(row.members), costs});
    EXPECT_GT(microsOf(chosen, row), 0) << nameOf(chosen) << " was not measured for " << describe(what);
    EXPECT_LE(microsOf(chosen, row), 1.3 * fastestOf(row))
        << nameOf(chosen) << " for " << describe(what) << " among " << row.members << " by " << describe(costs);
  }
}

TEST(MeasuredChoice, TakesAtMost30PercentLongerThanTheFastest) { expectGoodChoices({}); }

// A step of the rounding more or less, in each number at once; and the latency of a busy machine.
TEST(MeasuredChoice, StaysGoodWhenCostsAreMeasuredWithNoise) {
  const double step = std::exp2(0.25);
  for (double latency : {1 / step, 1.0, step, 3.0})
    for (double bandwidth : {1 / step, 1.0, step})
      for (double message : {1 / step, 1.0, step}) {
        cluster::Costs costs;
        costs.sameHost.latency *= latency;
        costs.sameHost.bandwidth *= bandwidth;
        costs.message *= message;
        expectGoodChoices(costs);
      }
}

}  // namespace
}  // namespace treadle::group::measured_choice_test
