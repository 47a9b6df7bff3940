#pragma once
// Property tests: the same check for many seeds, each of which is printed when the check fails. Variables of the
// environment choose others: TREADLE_TEST_SEED runs one seed alone, to look at a failure; TREADLE_TEST_SEED_FACTOR runs
// that many times as many seeds, and TREADLE_TEST_FIRST_SEED begins with another one than 1.

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include "gtest/gtest.h"

namespace treadle::test {

using Random = std::mt19937_64;

// A number in [0, below).
inline uint64_t pick(Random& random, uint64_t below) { return random() % below; }

inline uint64_t numberInEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// How many random graphs the oracles of autograd go through, over all numbers of workers: `make oracle SEEDS=2000`.
inline uint64_t oracleSeeds() { return numberInEnvironment("TREADLE_ORACLE_SEEDS", 100); }

// For a test that draws from one generator in all its parts: its seed, which counts as fixed. `make test-long` gives
// each round another one.
inline uint32_t seedOfRun() {
  ::testing::Test::RecordProperty("fixed_seed", "yes");
  const uint64_t alone = numberInEnvironment("TREADLE_TEST_SEED", 0);
  return static_cast<uint32_t>(alone != 0 ? alone : numberInEnvironment("TREADLE_TEST_FIRST_SEED", 1));
}

// Runs `property(random)` for `count` seeds, by default 1 to `count`, and stops at the first that fails.
template <class Property>
void forSeeds(uint64_t count, Property property) {
  ::testing::Test::RecordProperty("fixed_seed", "yes");  // one failure is enough: tools/reruns.py
  const uint64_t alone = numberInEnvironment("TREADLE_TEST_SEED", 0);
  const uint64_t first = alone != 0 ? alone : numberInEnvironment("TREADLE_TEST_FIRST_SEED", 1);
  const uint64_t seeds = alone != 0 ? 1 : count * numberInEnvironment("TREADLE_TEST_SEED_FACTOR", 1);
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    SCOPED_TRACE("TREADLE_TEST_SEED=" + std::to_string(seed));
    Random random(seed);
    property(random);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace treadle::test
