#include "bench/ours/ddp_models.h"

#include <ATen/ATen.h>

#include <cmath>

namespace bench {
namespace {

// Numbers from -1 to 1, by a hash of first, first + 1 and so on. torch_models.py has the same one.
at::Tensor hashed(int64_t first, int64_t count) {
  at::Tensor bits = at::arange(first, first + count, at::kLong);
  for (int round = 0; round < 2; ++round)
    bits = (at::bitwise_xor(bits, at::bitwise_right_shift(bits, 16)) * 0x45d9f3b).bitwise_and(0xffffffff);
  bits = at::bitwise_xor(bits, at::bitwise_right_shift(bits, 16));
  return bits.to(at::kDouble) / 0x1p31 - 1;
}

}  // namespace

void fillParameters(torch::nn::Module& module) {
  at::NoGradGuard noGradients;
  int64_t first = 0;
  for (const auto& named : module.named_parameters()) {
    at::Tensor parameter = named.value();
    const int64_t count = parameter.numel();
    if (parameter.dim() > 1) {
      const double inputs = static_cast<double>(count) / static_cast<double>(parameter.size(0));
      parameter.copy_(hashed(first, count).view_as(parameter) / std::sqrt(inputs));
    } else {
      parameter.fill_(named.key().ends_with("bias") ? 0 : 1);
    }
    first += count;
  }
}

std::vector<size_t> samplesOf(int64_t step, int rank, int ranks, size_t batch, size_t stride, size_t samples) {
  std::vector<size_t> found;
  const size_t first = static_cast<size_t>(step * ranks + rank) * batch;
  for (size_t i = first; i < first + batch; ++i) found.push_back(i * stride % samples);
  return found;
}

}  // namespace bench
