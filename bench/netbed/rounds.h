#pragma once
// What the programs of the bed (bench/netbed.py) print of each round, and how they check its sums.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
#include <stdexcept>

namespace treadle::netbed {

// Of the clock that all namespaces of a host share.
inline long microseconds() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline void check(std::span<const int32_t> sums, int32_t expected) {
  const bool isRight = std::all_of(sums.begin(), sums.end(), [&](int32_t number) { return number == expected; });
  if (!isRight) throw std::runtime_error("a sum is wrong");
}

inline void print(int round, long begin, long end) {
  std::printf("%d %ld %ld\n", round, begin, end);
  std::fflush(stdout);
}

}  // namespace treadle::netbed
