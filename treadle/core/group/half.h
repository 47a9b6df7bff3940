#pragma once
// 16-bit floats to float and back (IEEE 754 binary16, and bfloat16, the upper half of a float), and from double. Rounds
// to nearest, ties to even, once; NaN stays NaN, too large a value becomes infinity. Pure functions, any thread.

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "treadle/core/group/data_type.h"

namespace treadle::group {

inline float toFloat(BFloat16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

inline BFloat16 toBFloat16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (value != value) return {static_cast<uint16_t>((bits >> 16) | 0x40U)};  // keeps it a NaN when cut
  bits += 0x7FFFU + ((bits >> 16) & 1U);
  return {static_cast<uint16_t>(bits >> 16)};
}

inline float toFloat(Float16 value) {
  uint32_t sign = uint32_t{value.bits & 0x8000U} << 16;
  uint32_t rest = uint32_t{value.bits & 0x7FFFU} << 13;
  constexpr uint32_t kExponent = 0x7C00U << 13;
  if ((rest & kExponent) == kExponent) return std::bit_cast<float>(sign | rest | 0x7F800000U);  // infinity, NaN
  // Scaling by 2^112 moves the exponent's bias from 15 to 127, and makes subnormal halves normal floats.
  float scaled = std::bit_cast<float>(rest) * 0x1p112F;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

inline Float16 toFloat16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  uint32_t magnitude = bits & 0x7FFFFFFFU;
  uint32_t half;
  if (magnitude > 0x7F800000U) {
    half = 0x7E00U;  // NaN
  } else if (magnitude >= 0x47800000U) {
    half = 0x7C00U;  // 65536 and above: infinity
  } else if (magnitude < 0x38800000U) {
    // Below 2^-14 halves are subnormal, 2^-24 apart: adding 0.5 leaves just those bits, rounded by the hardware.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - std::bit_cast<uint32_t>(0.5F);
  } else {
    uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
    half = (rounded - (112U << 23)) >> 13;  // may carry into infinity, as it should
  }
  return {static_cast<uint16_t>(sign | half)};
}

// A float that rounds to a 16-bit float as `value` would: towards zero, with the last bit set for what was cut off (S.
// Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
inline float roundedToOdd(double value) {
  const auto nearest = static_cast<float>(value);
  if (value != value || nearest == value) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::abs(double{nearest}) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1U);
}

// Half is Float16 or BFloat16.
template <class Half>
Half toHalf(float value) {
  if constexpr (std::is_same_v<Half, Float16>) {
    return toFloat16(value);
  } else {
    return toBFloat16(value);
  }
}

template <class Half>
Half rounded(double value) {
  return toHalf<Half>(roundedToOdd(value));
}

}  // namespace treadle::group
