#pragma once
// The hybrid model of the oracles, in float64: an embedding bag on a parameter server, a linear layer on two trainers;
// and their data by trainer and step.

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <treadle/nn.h>

#include "tests/support/tensor_job.h"

namespace treadle::test::hybrid {

constexpr int64_t kRows = 50, kWidth = 6, kClasses = 4, kBatch = 8, kBagSize = 5;

inline at::Generator generator(int64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
}

// In double precision and the same whoever makes it: torch's own generator is shared by all threads.
template <class Holder>
Holder seeded(Holder module, int64_t seed) {
  module->to(torch::kFloat64);
  torch::NoGradGuard noGradients;
  for (at::Tensor& parameter : module->parameters()) parameter.normal_(0, 0.5, generator(seed++));
  return module;
}

inline torch::nn::EmbeddingBag makeBag(int64_t seed) {
  return seeded(torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(kRows, kWidth).mode(torch::kSum)), seed);
}
inline torch::nn::Linear makeLinear(int64_t seed) { return seeded(torch::nn::Linear(kWidth, kClasses), seed); }

inline at::Tensor integers(int64_t below, at::IntArrayRef sizes, int64_t seed) {
  return at::randint(below, sizes, generator(seed), at::TensorOptions(at::kLong));
}
inline at::Tensor indicesOf(int64_t trainer, int64_t step) {
  return integers(kRows, {kBatch, kBagSize}, 1000 + 100 * trainer + step);
}
inline at::Tensor labelsOf(int64_t trainer, int64_t step) {
  return integers(kClasses, {kBatch}, 2000 + 100 * trainer + step);
}

using Bag = RemoteModule<torch::nn::EmbeddingBag>;

}  // namespace treadle::test::hybrid
