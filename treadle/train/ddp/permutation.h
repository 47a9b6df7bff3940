#pragma once
// A pseudo-random order of the numbers below `size`, of which any place can be computed by itself, in constant memory:
// a Feistel network over the next larger power of four, applied again while the result is too large (J. Black, P.
// Rogaway, "Ciphers with arbitrary finite domains", 2002, section 3). The same on every machine. A value; any thread.

#include <bit>
#include <cstdint>

namespace treadle::ddp {

class Permutation {
 public:
  // One order for each key.
  Permutation(uint64_t size, uint64_t key)
      : size_(size), key_(key), halfBits_(size < 2 ? 1 : (std::bit_width(size - 1) + 1) / 2) {}

  // The number at a place below `size`. Less than four steps on average.
  uint64_t operator[](uint64_t place) const {
    do place = mixed(place);
    while (place >= size_);
    return place;
  }

 private:
  uint64_t mixed(uint64_t value) const {
    const uint64_t mask = (uint64_t{1} << halfBits_) - 1;
    uint64_t left = value >> halfBits_, right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (hash(right ^ hash(key_ + round)) & mask);
      left = right;
      right = next;
    }
    return left << halfBits_ | right;
  }

  // SplitMix64 (G. L. Steele et al., "Fast splittable pseudorandom number generators", 2014).
  static uint64_t hash(uint64_t value) {
    value += 0x9E3779B97F4A7C15;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
    return value ^ (value >> 31);
  }

  static constexpr uint64_t kRounds = 8;
  uint64_t size_, key_;
  int halfBits_;
};

}  // namespace treadle::ddp
