#pragma once
// Sums for one kind of processor each; only sum.cc and tests see them. All yield the same bits.

#include "treadle/core/summation/sum.h"

namespace treadle::summation {

// Sums elements from `begin` on, up to `end` or less, as whole vectors; returns where it has stopped. See sum().
using Kernel = size_t (*)(Addends addends, size_t begin, size_t end, std::byte* result);

struct SumKernels {
  std::string_view name;
  Kernel float16, bfloat16, float32, float64, int8, int16, int32, int64;
};

const SumKernels& portableKernels();  // which sum all elements
// Null: this processor, or the compiler's target, has no such instructions.
const SumKernels* avx2Kernels();    // AVX2 and F16C, since 2013
const SumKernels* avx512Kernels();  // AVX-512 F and BW, since 2017

}  // namespace treadle::summation
