#include "examples/hybrid_digits/digits.h"

#include <ATen/ATen.h>

#include <numeric>
#include <random>
#include <vector>

namespace hybrid {
namespace {

// The remainder favours small numbers by less than 1 in 10^15: of no account here, and simple to repeat
// elsewhere.
std::vector<size_t> shuffled(size_t count, uint64_t seed) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937_64 random(seed);
  for (size_t i = count - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
  return order;
}

}  // namespace

Digits loadDigits(const std::string& path, uint64_t seed) {
  std::vector<digits::Digit> all = digits::readFile(path);
  at::Tensor indices = at::empty({kDigits, kPixels}, at::kLong);
  at::Tensor labels = at::empty({kDigits}, at::kLong);
  auto* index = indices.mutable_data_ptr<int64_t>();
  auto* label = labels.mutable_data_ptr<int64_t>();
  for (size_t number : shuffled(all.size(), seed)) {
    const digits::Digit& digit = all[number];
    for (int64_t pixel = 0; pixel < kPixels; ++pixel)
      *index++ = pixel * kLevels + digit.levels[static_cast<size_t>(pixel)];
    *label++ = digit.label;
  }
  return {{indices.narrow(0, 0, kTrainDigits), labels.narrow(0, 0, kTrainDigits)},
          {indices.narrow(0, kTrainDigits, kDigits - kTrainDigits),
           labels.narrow(0, kTrainDigits, kDigits - kTrainDigits)}};
}

Samples shareOf(const Samples& samples, int64_t trainer, int64_t trainers) {
  return {samples.indices.slice(0, trainer, samples.size(), trainers).contiguous(),
          samples.labels.slice(0, trainer, samples.size(), trainers).contiguous()};
}

Samples batchOf(const Samples& samples, int64_t step, int64_t batchSize) {
  return {samples.indices.narrow(0, step * batchSize, batchSize),
          samples.labels.narrow(0, step * batchSize, batchSize)};
}

int64_t stepsPerEpoch(int64_t samples, int64_t trainers, int64_t batchSize) { return samples / trainers / batchSize; }

}  // namespace hybrid
