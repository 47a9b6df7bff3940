#include "treadle/core/wire/crc32c_x86.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstring>

namespace treadle::wire::x86 {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected: the highest bit is the coefficient of x^0

constexpr uint32_t timesX(uint32_t sum) { return (sum >> 1) ^ ((sum & 1) != 0 ? kPolynomial : 0); }

// What so many zero bytes make of a sum: linear, so the images of its four bytes are looked up and added.
template <size_t Zeros>
class Shift {
 public:
  constexpr Shift() {
    static_assert((Zeros & (Zeros - 1)) == 0, "doubling comes to powers of two");
    std::array<uint32_t, 32> images{};
    for (size_t bit = 0; bit < 32; ++bit) {
      images[bit] = uint32_t{1} << bit;
      for (size_t i = 0; i < 8; ++i) images[bit] = timesX(images[bit]);
    }
    for (size_t zeros = 1; zeros < Zeros; zeros *= 2) {
      std::array<uint32_t, 32> twice{};
      for (size_t bit = 0; bit < 32; ++bit) twice[bit] = image(images, images[bit]);
      images = twice;
    }
    for (size_t at = 0; at < 4; ++at)
      for (uint32_t byte = 0; byte < 256; ++byte) tables_[at][byte] = image(images, byte << (8 * at));
  }

  uint32_t operator()(uint32_t sum) const {
    return tables_[0][sum & 0xFF] ^ tables_[1][(sum >> 8) & 0xFF] ^ tables_[2][(sum >> 16) & 0xFF] ^
           tables_[3][sum >> 24];
  }

 private:
  static constexpr uint32_t image(const std::array<uint32_t, 32>& images, uint32_t sum) {
    uint32_t added = 0;
    for (size_t bit = 0; bit < 32; ++bit)
      if ((sum >> bit & 1) != 0) added ^= images[bit];
    return added;
  }

  std::array<std::array<uint32_t, 256>, 4> tables_{};
};

constexpr size_t kLong = 4096, kShort = 256;  // bytes of each of the three
constexpr Shift<kLong> kShiftLong;
constexpr Shift<kShort> kShiftShort;

// Takes 8 bytes into `sum`, and copies them if there is somewhere to.
template <bool Copies>
__attribute__((target("sse4.2"), always_inline)) inline uint64_t takeWord(uint64_t sum, const std::byte* from,
                                                                          std::byte* to, size_t at) {
  uint64_t word;
  std::memcpy(&word, from + at, sizeof word);
  if constexpr (Copies) std::memcpy(to + at, &word, sizeof word);
  return __builtin_ia32_crc32di(sum, word);
}

// All that is there in threes of `Each` bytes; moves on what it is given.
template <bool Copies, size_t Each>
__attribute__((target("sse4.2"))) uint32_t takeThrees(Bytes& from, std::byte*& to, uint32_t crc,
                                                      const Shift<Each>& shift) {
  while (from.size() >= 3 * Each) {
    uint64_t one = crc, two = 0, three = 0;
    for (size_t at = 0; at < Each; at += sizeof one) {
      one = takeWord<Copies>(one, from.data(), to, at);
      two = takeWord<Copies>(two, from.data(), to, at + Each);
      three = takeWord<Copies>(three, from.data(), to, at + 2 * Each);
    }
    crc = shift(static_cast<uint32_t>(one)) ^ static_cast<uint32_t>(two);
    crc = shift(crc) ^ static_cast<uint32_t>(three);
    from = from.subspan(3 * Each);
    if constexpr (Copies) to += 3 * Each;
  }
  return crc;
}

template <bool Copies>
__attribute__((target("sse4.2"))) uint32_t inThreesOf(Bytes from, std::byte* to, uint32_t crc) {
  crc = takeThrees<Copies>(from, to, crc, kShiftLong);
  crc = takeThrees<Copies>(from, to, crc, kShiftShort);
  uint64_t wide = crc;
  size_t at = 0;
  for (; at + sizeof wide <= from.size(); at += sizeof wide) wide = takeWord<Copies>(wide, from.data(), to, at);
  crc = static_cast<uint32_t>(wide);
  for (; at < from.size(); ++at) {
    const std::byte byte = from[at];
    if constexpr (Copies) to[at] = byte;
    crc = __builtin_ia32_crc32qi(crc, static_cast<unsigned char>(byte));
  }
  return crc;
}

// x^n modulo the polynomial, as the factor of a carry-less product of 64 bits: its highest bit is x^0.
constexpr uint64_t factor(size_t n) {
  uint32_t power = uint32_t{1} << 31;
  for (size_t i = 0; i < n; ++i) power = timesX(power);
  return uint64_t{power} << 32;
}

constexpr size_t kWide = 64, kAtOnce = 4, kFolded = kWide * kAtOnce;  // bytes of a register, registers, bytes of all

// Four registers hold a remainder of 2,048 bits. Moved on by as many, each of their 128-bit lanes is its first half
// times x^(2,048 + 64) plus the second times x^2,048. (One less: a product of reflected factors comes out times x.)
template <bool Copies>
__attribute__((target("avx512f,vpclmulqdq,sse4.2"))) uint32_t fold(Bytes from, std::byte* to, uint32_t crc) {
  constexpr auto kFirst = static_cast<long long>(factor(8 * kFolded + 63));
  constexpr auto kSecond = static_cast<long long>(factor(8 * kFolded - 1));
  const __m512i factors = _mm512_set4_epi64(kSecond, kFirst, kSecond, kFirst);
  __m512i sums[kAtOnce];  // NOLINT: std::array would drop the alignment of its elements' type
  for (size_t i = 0; i < kAtOnce; ++i) {
    sums[i] = _mm512_loadu_si512(from.data() + kWide * i);
    if constexpr (Copies) _mm512_storeu_si512(to + kWide * i, sums[i]);
  }
  sums[0] = _mm512_xor_si512(sums[0], _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, crc));
  size_t at = kFolded;
  for (; at + kFolded <= from.size(); at += kFolded) {
    for (size_t i = 0; i < kAtOnce; ++i) {
      const __m512i more = _mm512_loadu_si512(from.data() + at + kWide * i);
      if constexpr (Copies) _mm512_storeu_si512(to + at + kWide * i, more);
      sums[i] = _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sums[i], factors, 0x00),
                                          _mm512_clmulepi64_epi128(sums[i], factors, 0x11), more, 0x96);  // a ^ b ^ c
    }
  }
  std::array<std::byte, kFolded> remainder;
  for (size_t i = 0; i < kAtOnce; ++i) _mm512_storeu_si512(remainder.data() + kWide * i, sums[i]);
  crc = inThreesOf<false>(remainder, nullptr, 0);
  return inThreesOf<Copies>(from.subspan(at), Copies ? to + at : nullptr, crc);
}

}  // namespace

bool hasCrcInstruction() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}

uint32_t inThrees(Bytes from, std::byte* to, uint32_t crc) {
  return to == nullptr ? inThreesOf<false>(from, to, crc) : inThreesOf<true>(from, to, crc);
}

bool hasWideMultiplication() {
  static const bool has =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0 && hasCrcInstruction();
  return has;
}

uint32_t byFolding(Bytes from, std::byte* to, uint32_t crc) {
  if (from.size() < 2 * kFolded) return inThrees(from, to, crc);
  return to == nullptr ? fold<false>(from, to, crc) : fold<true>(from, to, crc);
}

}  // namespace treadle::wire::x86

#endif
