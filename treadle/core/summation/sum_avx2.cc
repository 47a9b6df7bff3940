#include "treadle/core/summation/sum_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

namespace treadle::summation {
namespace avx2 {
namespace {

// Each function is compiled for these instructions alone, and runs only where they are.
#define TREADLE_AVX2 __attribute__((target("avx2,f16c")))

// A vector of a type: how many bytes it takes in memory, and how it is loaded, added and stored.
struct Float32 {
  static constexpr size_t kElementBytes = 4, kBytes = 32;
  TREADLE_AVX2 static __m256 load(const std::byte* at) { return _mm256_loadu_ps(reinterpret_cast<const float*>(at)); }
  TREADLE_AVX2 static __m256 add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  TREADLE_AVX2 static void store(std::byte* at, __m256 sum) { _mm256_storeu_ps(reinterpret_cast<float*>(at), sum); }
};

struct Float64 {
  static constexpr size_t kElementBytes = 8, kBytes = 32;
  TREADLE_AVX2 static __m256d load(const std::byte* at) { return _mm256_loadu_pd(reinterpret_cast<const double*>(at)); }
  TREADLE_AVX2 static __m256d add(__m256d a, __m256d b) { return _mm256_add_pd(a, b); }
  TREADLE_AVX2 static void store(std::byte* at, __m256d sum) { _mm256_storeu_pd(reinterpret_cast<double*>(at), sum); }
};

struct Float16 {
  static constexpr size_t kElementBytes = 2, kBytes = 16;
  TREADLE_AVX2 static __m256 load(const std::byte* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  TREADLE_AVX2 static __m256 add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  TREADLE_AVX2 static void store(std::byte* at, __m256 sum) {
    const __m128i halves = _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), halves);
  }
};

// The upper half of a float. Rounds as group::toBFloat16 does. The elements with an even index and those with an odd
// one are added apart: each half of 32 bits becomes a float by one instruction, and back, and none has to change its
// place.
struct BFloat16 {
  static constexpr size_t kElementBytes = 2, kBytes = 32;
  struct Floats {
    __m256 even, odd;
  };
  TREADLE_AVX2 static Floats load(const std::byte* at) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    const __m256i odd = _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)), _mm256_castsi256_ps(odd)};
  }
  TREADLE_AVX2 static Floats add(Floats a, Floats b) {
    return {_mm256_add_ps(a.even, b.even), _mm256_add_ps(a.odd, b.odd)};
  }
  TREADLE_AVX2 static void store(std::byte* at, Floats sums) {
    const __m256i even = _mm256_srli_epi32(rounded(sums.even), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm256_blend_epi16(even, rounded(sums.odd), 0xAA));
  }

 private:
  // The rounded value is in the upper half of each float.
  TREADLE_AVX2 static __m256i rounded(__m256 sum) {
    const __m256i bits = _mm256_castps_si256(sum);
    const __m256i isOdd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(isOdd, _mm256_set1_epi32(0x7FFF)));
    const __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i isNan = _mm256_castps_si256(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(up, nan, isNan);
  }
};

template <size_t ElementBytes>
struct Integers {
  static constexpr size_t kElementBytes = ElementBytes, kBytes = 32;
  TREADLE_AVX2 static __m256i load(const std::byte* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }
  TREADLE_AVX2 static __m256i add(__m256i a, __m256i b) {
    if constexpr (ElementBytes == 1) return _mm256_add_epi8(a, b);
    if constexpr (ElementBytes == 2) return _mm256_add_epi16(a, b);
    if constexpr (ElementBytes == 4) return _mm256_add_epi32(a, b);
    return _mm256_add_epi64(a, b);
  }
  TREADLE_AVX2 static void store(std::byte* at, __m256i sum) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), sum);
  }
};

// Asks the memory for bytes 768 bytes ahead, as the processor alone does not look beyond a page of 4 KiB. They may lie
// past the end: none is read.
template <size_t Bytes>
void fetchAhead(const std::byte* at) {
  constexpr size_t kDistance = 768, kLine = 64;
  for (size_t line = 0; line < Bytes; line += kLine) __builtin_prefetch(at + kDistance + line);
}

// Vectors I... together, so that the loop over the addends counts little.
template <class V, size_t... I>
TREADLE_AVX2 size_t sumTogether(Addends addends, size_t begin, size_t end, std::byte* result) {
  constexpr size_t kStep = sizeof...(I) * V::kBytes;
  size_t at = begin * V::kElementBytes;
  for (; at + kStep <= end * V::kElementBytes; at += kStep) {
    fetchAhead<kStep>(addends.front() + at);
    decltype(V::load(nullptr)) sums[] = {V::load(addends.front() + at + I * V::kBytes)...};
    for (const std::byte* addend : addends.subspan(1)) {
      fetchAhead<kStep>(addend + at);
      ((sums[I] = V::add(sums[I], V::load(addend + at + I * V::kBytes))), ...);
    }
    (V::store(result + at + I * V::kBytes, sums[I]), ...);
  }
  return at / V::kElementBytes;
}

template <class V>
TREADLE_AVX2 size_t sumVectors(Addends addends, size_t begin, size_t end, std::byte* result) {
  const size_t rest = sumTogether<V, 0, 1, 2, 3>(addends, begin, end, result);
  return sumTogether<V, 0>(addends, rest, end, result);
}

}  // namespace
}  // namespace avx2

const SumKernels* avx2Kernels() {
  static constexpr SumKernels kKernels = {"AVX2",
                                          avx2::sumVectors<avx2::Float16>,
                                          avx2::sumVectors<avx2::BFloat16>,
                                          avx2::sumVectors<avx2::Float32>,
                                          avx2::sumVectors<avx2::Float64>,
                                          avx2::sumVectors<avx2::Integers<1>>,
                                          avx2::sumVectors<avx2::Integers<2>>,
                                          avx2::sumVectors<avx2::Integers<4>>,
                                          avx2::sumVectors<avx2::Integers<8>>};
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0 ? &kKernels : nullptr;
}

}  // namespace treadle::summation

#else

namespace treadle::summation {
const SumKernels* avx2Kernels() { return nullptr; }
}  // namespace treadle::summation

#endif
