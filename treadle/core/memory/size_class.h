#pragma once
// The sizes that blocks come in: four to each power of two, so that at most a fifth of a block is beyond what was asked
// for (and not touched, as a rule). Pure functions.

#include <bit>
#include <cstddef>
#include <cstdint>

namespace treadle::memory {

inline constexpr size_t kSmallestBlock = 16U << 10;  // four pages; anything less travels beside its message's values

// The class that holds `sizeBytes`, counted from 0.
constexpr uint32_t sizeClass(size_t sizeBytes) {
  if (sizeBytes <= kSmallestBlock) return 0;
  // The quarter that holds it: sizes of the form (4 + q) * 2^e, for q of 0 to 3, are the largest of their class.
  size_t last = sizeBytes - 1;
  auto exponent = static_cast<uint32_t>(std::bit_width(last)) - 3;
  auto quarter = static_cast<uint32_t>(last >> exponent) - 4;
  uint32_t smallest = static_cast<uint32_t>(std::bit_width(kSmallestBlock)) - 3;
  return 4 * (exponent - smallest) + quarter + 1;
}

// What a block of a class holds; a multiple of the page size.
constexpr size_t classBytes(uint32_t sizeClass) {
  uint32_t smallest = static_cast<uint32_t>(std::bit_width(kSmallestBlock)) - 3;
  return (size_t{4} + sizeClass % 4) << (smallest + sizeClass / 4);
}

}  // namespace treadle::memory
