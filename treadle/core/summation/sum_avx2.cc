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

struct Halves {
  static constexpr size_t kElementBytes = 2, kBytes = 16;
  TREADLE_AVX2 static __m128i loadBits(const std::byte* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  }
  TREADLE_AVX2 static __m256 add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  TREADLE_AVX2 static void storeBits(std::byte* at, __m128i bits) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), bits);
  }
};

struct Float16 : Halves {
  TREADLE_AVX2 static __m256 load(const std::byte* at) { return _mm256_cvtph_ps(loadBits(at)); }
  TREADLE_AVX2 static void store(std::byte* at, __m256 sum) {
    storeBits(at, _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

// The upper half of a float. Rounds as group::toBFloat16 does.
struct BFloat16 : Halves {
  TREADLE_AVX2 static __m256 load(const std::byte* at) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(loadBits(at)), 16));
  }
  TREADLE_AVX2 static void store(std::byte* at, __m256 sum) {
    const __m256i bits = _mm256_castps_si256(sum), upper = _mm256_srli_epi32(bits, 16);
    const __m256i isOdd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(isOdd, _mm256_set1_epi32(0x7FFF)));
    const __m256i nan = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i isNan = _mm256_castps_si256(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
    const __m256i rounded = _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), nan, isNan);
    // Packs each half of the vector twice; the first and the third quarter are what is wanted.
    const __m256i packed = _mm256_packus_epi32(rounded, rounded);
    storeBits(at, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0))));
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

// One vector at a time: the processor begins the next ones meanwhile.
template <class V>
TREADLE_AVX2 size_t sumVectors(Addends addends, size_t begin, size_t end, std::byte* result) {
  size_t at = begin * V::kElementBytes;
  for (; at + V::kBytes <= end * V::kElementBytes; at += V::kBytes) {
    auto all = V::load(addends.front() + at);
    for (const std::byte* addend : addends.subspan(1)) all = V::add(all, V::load(addend + at));
    V::store(result + at, all);
  }
  return at / V::kElementBytes;
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
