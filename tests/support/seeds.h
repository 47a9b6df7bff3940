#pragma once
// Property tests: the same check for many seeds, each of which is printed when the check fails. In the environment,
// TREADLE_TEST_SEED runs one seed alone, to look at a failure, and TREADLE_TEST_SEED_FACTOR that many times as many.

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include "gtest/gtest.h"

namespace treadle::test {

using Random = std::mt19937_64;

// A number in [0, below).
inline uint64_t pick(Random& random, uint64_t below) { return random() % below; }

// How many random graphs the oracles of autograd go through, over all numbers of workers: `make oracle SEEDS=2000`.
inline uint64_t oracleSeeds() {
  const char* wanted = std::getenv("TREADLE_ORACLE_SEEDS");
  return wanted == nullptr ? 100 : std::strtoull(wanted, nullptr, 10);
}

// Runs `property(random)` for the seeds 1 to `count` and stops at the first that fails.
template <class Property>
void forSeeds(uint64_t count, Property property) {
  ::testing::Test::RecordProperty("fixed_seed", "yes");  // one failure is enough: tools/reruns.py
  const char* only = std::getenv("TREADLE_TEST_SEED");
  uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  const char* factor = std::getenv("TREADLE_TEST_SEED_FACTOR");
  uint64_t last = only != nullptr ? first : count * (factor != nullptr ? std::strtoull(factor, nullptr, 10) : 1);
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("TREADLE_TEST_SEED=" + std::to_string(seed));
    Random random(seed);
    property(random);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace treadle::test
