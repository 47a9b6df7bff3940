// Compiled with -O3 and without errno of sqrt, so that all loops are vectors (bench/CMakeLists.txt).

#include "bench/limits/optimizer_steps.h"

#include <cmath>

// For the processor that it runs on.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define BENCH_BEST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define BENCH_BEST
#endif

namespace bench {
namespace {

constexpr float kRate = 0.01F, kDecay = 0.9F, kSquareDecay = 0.999F, kEpsilon = 1e-8F;

}  // namespace

BENCH_BEST void stepSgd(float* __restrict weights, const float* __restrict gradient, size_t count) {
  for (size_t i = 0; i < count; ++i) weights[i] -= kRate * gradient[i];
}

BENCH_BEST void stepMomentum(float* __restrict weights, float* __restrict momentum, const float* __restrict gradient,
                             size_t count) {
  for (size_t i = 0; i < count; ++i) {
    momentum[i] = kDecay * momentum[i] + gradient[i];
    weights[i] -= kRate * momentum[i];
  }
}

BENCH_BEST void stepRmsProp(float* __restrict weights, float* __restrict meanSquare, const float* __restrict gradient,
                            size_t count) {
  for (size_t i = 0; i < count; ++i) {
    meanSquare[i] = kDecay * meanSquare[i] + (1 - kDecay) * gradient[i] * gradient[i];
    weights[i] -= kRate * gradient[i] / (std::sqrt(meanSquare[i]) + kEpsilon);
  }
}

BENCH_BEST void stepAdam(float* __restrict weights, float* __restrict mean, float* __restrict meanSquare,
                         const float* __restrict gradient, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    mean[i] = kDecay * mean[i] + (1 - kDecay) * gradient[i];
    meanSquare[i] = kSquareDecay * meanSquare[i] + (1 - kSquareDecay) * gradient[i] * gradient[i];
    weights[i] -= kRate * mean[i] / (std::sqrt(meanSquare[i]) + kEpsilon);
  }
}

}  // namespace bench
