#include "examples/data_parallel/digit_cnn.h"

#include <ATen/ATen.h>

namespace data_parallel {
namespace {

torch::nn::Conv2d convolution(int64_t inputs, int64_t outputs) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(inputs, outputs, /*kernel_size=*/3).padding(1));
}

}  // namespace

DigitCnn::DigitCnn()
    : edges_(register_module("edges", convolution(1, 32))),
      shapes_(register_module("shapes", convolution(32, 64))),
      hidden_(register_module("hidden", torch::nn::Linear(64 * 4 * 4, 128))),
      logits_(register_module("logits", torch::nn::Linear(128, 10))) {}

at::Tensor DigitCnn::forward(const at::Tensor& images) {
  const at::Tensor shapes = shapes_(edges_(images).relu()).relu();
  return logits_(hidden_(at::max_pool2d(shapes, {2, 2}).flatten(1)).relu());
}

}  // namespace data_parallel
