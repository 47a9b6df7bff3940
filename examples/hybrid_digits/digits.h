#pragma once
// The handwritten digits (examples/data/README.md) as tensors for an embedding bag. Functions without state;
// any thread. They throw std::runtime_error with one sentence that names the file and, where there is one,
// the line.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "examples/data/digits_file.h"

namespace hybrid {

using digits::kClasses, digits::kDigits, digits::kLevels, digits::kPixels;
inline constexpr int64_t kTrainDigits = 1437;  // 80 %; the other 360 are for the test

struct Samples {
  at::Tensor indices;  // int64 [N, 64]: for each pixel the row pixel * 17 + level of the bag, 0 to 1087
  at::Tensor labels;   // int64 [N]: 0 to 9

  int64_t size() const { return labels.size(0); }
};

struct Digits {
  Samples train;  // 1,437
  Samples test;   // 360
};

// Reads the file, checks every number of it, shuffles by `seed` and splits. The shuffle is ours (Fisher-Yates
// over std::mt19937_64, whose numbers the C++ standard fixes), so that a seed means the same split on every
// machine.
Digits loadDigits(const std::string& path, uint64_t seed);

// What one of `trainers` trainers trains on: every trainers-th sample, from its own number on.
Samples shareOf(const Samples& samples, int64_t trainer, int64_t trainers);

// The step-th batch of `batchSize` samples, as views.
Samples batchOf(const Samples& samples, int64_t step, int64_t batchSize);

// Full batches in the smallest share: all trainers take the same number of steps, since each step of one
// waits for all.
int64_t stepsPerEpoch(int64_t samples, int64_t trainers, int64_t batchSize);

}  // namespace hybrid
